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
      paragraph("Drop recordings on this page, or open them above. Each is shown like the job of an agent, two side by side."),
      listOf([
        ["To record a job, on one of its hosts: ", command("psidecar record --out job.psr")],
        ["To open a recording larger than ", bytes(agent.recording_bytes), ": ", command("psidecar show job.psr")],
      ]),
      facts([["psidecar", agent.version]]),
    );
    return;
  }
  const cost = `${(agent.cpu_percent + agent.kernel_percent).toPrecision(2)}% of a core, ${bytes(agent.memory_bytes)}`;
  if (fleet) {
    const hosts = agent.hosts ?? [];
    host.replaceChildren(
      paragraph(hosts.length === 0 ? "No agent reports to this planner." : `${count(hosts.length)} hosts report, but none has seen a job.`),
      listOf([
        ["On each host of the job: ", command("psidecar agent --planner PLANNER-HOST:9811")],
        ["To check the requirements of a host: ", command("psidecar doctor")],
        ["Jobs are found by the environment of their processes (DMLC_ROLE, DMLC_PS_ROOT_URI), whether they start before or after the agent."],
      ]),
      facts([["planner", `${agent.host}, psidecar ${agent.version}`], ["hosts", hosts.map((h) => h.host).join(", ") || "none"]]),
    );
    return;
  }
  host.replaceChildren(
    paragraph("No job on this host yet. Jobs appear here within seconds of their start; running ones are found too."),
    listOf([
      ["For a trial without a cluster: ", command("psjob local --model count --steps 100000")],
      ["To check the requirements of this host: ", command("psidecar doctor")],
      ["Jobs are found by the environment of their processes (DMLC_ROLE, DMLC_PS_ROOT_URI). If their cgroup is not visible from here, specify it: ", command("psidecar agent --cgroup PATH")],
    ]),
    facts([["agent", `${agent.host}, psidecar ${agent.version}`], ["overhead", cost], ["planner", agent.planner?.address ?? "none"]]),
  );
}
