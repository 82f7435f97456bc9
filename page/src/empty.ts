// What stands where there is no job: one card that says what to do.

import type { Agent } from "./api";
import { element } from "./controls";
import { command } from "./copy";
import { bytes, count } from "./format";
import { facts } from "./table";

function paragraph(...parts: (string | HTMLElement)[]): HTMLElement {
  const out = document.createElement("p");
  out.append(...parts);
  return out;
}

function listOf(items: (string | HTMLElement)[][]): HTMLElement {
  const out = document.createElement("ul");
  for (const parts of items) {
    const item = document.createElement("li");
    item.append(...parts);
    out.append(item);
  }
  return out;
}

export function drawEmpty(host: HTMLElement, agent: Agent, fleet: boolean): void {
  element("empty-title").textContent = agent.recording_bytes ? "No recording is open yet" : "No parameter-server job yet";
  if (agent.recording_bytes) {
    host.replaceChildren(
      paragraph("Drop recordings on this page, or open them above: each is shown as an agent shows a job, and two of them side by side."),
      listOf([
        ["A recording is made on a host of the job: ", command("psidecar record --out job.psr")],
        ["Longer ones than ", bytes(agent.recording_bytes), " are opened by ", command("psidecar show job.psr")],
      ]),
      facts([["psidecar", agent.version]]),
    );
    return;
  }
  const cost = `${(agent.cpu_percent + agent.kernel_percent).toPrecision(2)}% of a core, ${bytes(agent.memory_bytes)}`;
  if (fleet) {
    const hosts = agent.hosts ?? [];
    host.replaceChildren(
      paragraph(hosts.length === 0 ? "No agent reports to this planner." : `${count(hosts.length)} hosts report, and none of them has seen a job.`),
      listOf([
        ["On each host of the job: ", command("psidecar agent --planner PLANNER-HOST:9811")],
        ["Does the host have what it takes? ", command("psidecar doctor")],
        ["A job is found by the environment of its processes (DMLC_ROLE, DMLC_PS_ROOT_URI), while it runs or before it starts."],
      ]),
      facts([["planner", `${agent.host}, psidecar ${agent.version}`], ["hosts", hosts.map((h) => h.host).join(", ") || "none"]]),
    );
    return;
  }
  host.replaceChildren(
    paragraph("This agent watches and waits: start a job on this host, and it is shown here within seconds. One that runs already is found too."),
    listOf([
      ["Something to look at, without a cluster: ", command("psjob local --model count --steps 100000")],
      ["Does this host have what it takes? ", command("psidecar doctor")],
      ["A job is found by the environment of its processes (DMLC_ROLE, DMLC_PS_ROOT_URI). Where they run in a cgroup that is not seen from here, name it: ", command("psidecar agent --cgroup PATH")],
    ]),
    facts([["agent", `${agent.host}, psidecar ${agent.version}`], ["cost", cost], ["planner", agent.planner?.address ?? "none"]]),
  );
}
