// The panels below the heatmap, each a function from an answer to elements.

import type { Agent, Host, Job, Keys, Latency, Servers, Stall } from "./api";
import { bytes, count, duration, key, megabits, percent } from "./format";
import { placeColumns, type Places } from "./places";
import { facts, table, type Column } from "./table";

export function drawKeys(host: HTMLElement, keys: Keys): void {
  const most = keys.hottest[0]?.accesses ?? 1;
  table(
    host,
    [
      { title: "key", text: (k) => key(BigInt(k.key_text)) },
      { title: "accesses", number: true, text: (k) => (k.estimated ? "≤ " : "") + count(k.accesses), bar: (k) => k.accesses / most },
      { title: "pulls", number: true, text: (k) => count(k.pulls) },
      { title: "pushes", number: true, text: (k) => count(k.pushes) },
      { title: "bytes", number: true, text: (k) => bytes(k.bytes) },
      { title: "home", text: (k) => k.server ?? "" },
    ],
    keys.hottest.slice(0, 25),
  );
  const note = document.createElement("p");
  note.className = "hint";
  if (keys.sketch.distinct_keys > 0) {
    note.textContent = sketchText(keys);
    host.append(note);
  }
}

function sketchText({ sketch }: Keys): string {
  const keys = `${count(sketch.distinct_keys)} ${sketch.at_least ? "or more " : ""}distinct keys in ${bytes(sketch.memory_bytes)}`;
  const note = sketch.at_least ? " Hosts use some of the same keys: a key that is hot on one host alone may have been used more, and the skew is at least this strong." : "";
  if (sketch.exact) {
    return `${keys}, every one counted exactly.${note}`;
  }
  const exactly = sketch.exact_keys > 0 ? `${count(sketch.exact_keys)} counted exactly; ` : "";
  return (
    `About ${keys}: ${exactly}block sums are exact; for the other keys a count ` +
    `is never too low, and at most ${count(sketch.bound)} too high for ${sketch.percent}% of them.${note}`
  );
}

/** A quantile of a distribution, where there is one. */
function took(latency: Latency, quantile: "p50" | "p99"): string {
  return latency.count > 0 ? duration(latency[quantile]) : "–";
}

export function drawServers(host: HTMLElement, { servers }: Servers, places: Places): void {
  const busiestFirst = [...servers].sort((a, b) => b.share - a.share);
  table(
    host,
    [
      { title: "server", text: (s) => s.name },
      ...placeColumns<Servers["servers"][number]>(places),
      { title: "share of bytes", number: true, text: (s) => percent(s.share), bar: (s) => s.share },
      { title: "in", number: true, text: (s) => bytes(s.bytes_in) },
      { title: "out", number: true, text: (s) => bytes(s.bytes_out) },
      { title: "requests", number: true, text: (s) => count(s.requests) },
      { title: "p50", number: true, text: (s) => took(s.latency, "p50") },
      { title: "p99", number: true, text: (s) => took(s.latency, "p99") },
    ],
    busiestFirst,
  );
}

export function drawWorkers(host: HTMLElement, { workers }: Servers, places: Places): void {
  table(
    host,
    [
      { title: "worker", text: (w) => w.name + (w.straggler ? " (straggler)" : "") },
      ...placeColumns<Servers["workers"][number]>(places),
      { title: "steps/s", number: true, text: (w) => w.steps_per_second.toPrecision(3) },
      { title: "requests", number: true, text: (w) => count(w.requests) },
      { title: "out", number: true, text: (w) => bytes(w.bytes_out) },
      { title: "in", number: true, text: (w) => bytes(w.bytes_in) },
      { title: "p50", number: true, text: (w) => took(w.latency, "p50") },
      { title: "p99", number: true, text: (w) => took(w.latency, "p99") },
    ],
    workers,
    (w) => w.straggler,
  );
}

/** What the hosts are, where their agents say so. */
function machineColumns(hosts: Host[]): Column<Host>[] {
  if (!hosts.some((h) => h.machine)) {
    return [];
  }
  return [
    { title: "cores", number: true, text: (h) => (h.machine ? count(h.machine.cores) : "–") },
    { title: "link", text: ({ machine }) => (machine ? (machine.link_mbit > 0 ? `${megabits(machine.link_mbit)}, ` : "") + machine.link_source : "–") },
  ];
}

/** What the agents that report to a planner cost and miss. */
function drawHosts(host: HTMLElement, agent: Agent, hosts: Host[]): void {
  host.replaceChildren(
    facts([
      ["planner", `${agent.host}, psidecar ${agent.version}`],
      ["hosts", `${hosts.length} report`],
      ["processor", `${agent.cpu_percent.toPrecision(2)}% of a core in all agents, ${agent.kernel_percent.toPrecision(2)}% in the kernels`],
      ["memory", `${bytes(agent.memory_bytes)} in all agents`],
    ]),
  );
  const list = document.createElement("div");
  table(
    list,
    [
      { title: "host", text: (h) => h.host },
      { title: "reported", number: true, text: (h) => `${duration(Math.max(0, (Date.now() - Date.parse(h.reported)) / 1000))} ago` },
      { title: "processor", number: true, text: (h) => `${h.cpu_percent.toPrecision(2)}%` },
      { title: "in the kernel", number: true, text: (h) => `${h.kernel_percent.toPrecision(2)}%` },
      { title: "memory", number: true, text: (h) => bytes(h.memory_bytes) },
      ...machineColumns(hosts),
      { title: "keys of", text: (h) => (h.sampled_one_in <= 1 ? "all requests" : `one in ${h.sampled_one_in} requests`) },
      { title: "lost", text: (h) => h.lost.map((c) => `${c.reason} ${count(c.events)}×`).join(", ") || "nothing" },
    ],
    hosts,
    (h) => h.lost.length > 0,
  );
  host.append(list, counterTable(agent));
}

export function drawCost(host: HTMLElement, agent: Agent): void {
  if (agent.hosts) {
    drawHosts(host, agent, agent.hosts);
    return;
  }
  const { sampling } = agent;
  host.replaceChildren(
    facts([
      ["host", `${agent.host}, psidecar ${agent.version}`],
      ["processor", `${agent.cpu_percent.toPrecision(2)}% of a core here, ${agent.kernel_percent.toPrecision(2)}% in the kernel`],
      ["memory", bytes(agent.memory_bytes)],
      ["sampling", samplingText(sampling)],
      ["planner", agent.planner ? plannerText(agent.planner) : "none"],
    ]),
  );
  const programs = document.createElement("div");
  table(
    programs,
    [
      { title: "program", text: (p) => p.name },
      { title: "runs", number: true, text: (p) => count(p.runs) },
      { title: "each", number: true, text: (p) => duration(p.nanoseconds_per_run / 1e9) },
    ],
    agent.programs ?? [],
  );
  host.append(programs, counterTable(agent));
}

function counterTable(agent: Agent): HTMLElement {
  const counters = document.createElement("div");
  table(
    counters,
    [
      { title: "counted", text: (c) => c.reason },
      { title: "as", text: (c) => c.class },
      { title: "events", number: true, text: (c) => count(c.events) },
      { title: "bytes", number: true, text: (c) => bytes(c.bytes) },
      { title: "", text: (c) => c.help },
    ],
    (agent.counters ?? []).filter((c) => c.events > 0 || c.class === "lost"),
    (c) => c.class === "lost" && c.events > 0,
  );
  return counters;
}

function samplingText(s: Agent["sampling"]): string {
  const rate = s.one_in <= 1 ? "all steps" : `one window of ${s.window} steps in ${s.one_in}`;
  if (s.over_budget) {
    return `${rate}, which takes ${s.cost_percent.toPrecision(2)}% of a core, more than the budget of ${s.budget_percent}%: some steps are looked at whatever that takes`;
  }
  return s.adaptive ? `${rate}, keys kept under ${s.budget_percent}% of a core` : rate;
}

function plannerText(p: NonNullable<Agent["planner"]>): string {
  return p.connected ? `${p.address}, connected` : `${p.address}, not connected: ${p.error ?? "unknown"}`;
}

/** Who does not go on as it should, and for whom it waits. */
export function drawStalls(host: HTMLElement, stalls: Stall[]): void {
  const since = (s: Stall): string => (s.kind === "late" || s.kind === "straggling" ? "lately" : duration(s.seconds));
  table(
    host,
    [
      { title: "who", text: (s) => s.who },
      { title: "what", text: (s) => stallText(s) },
      { title: "for", number: true, text: since },
      { title: "request", number: true, text: (s) => (s.bytes ? bytes(s.bytes) : "–") },
      { title: "keys", text: (s) => s.keys?.replace(/^keys (from )?/, "") ?? "" },
      { title: "why", text: (s) => s.why ?? "" },
    ],
    stalls,
    (s) => s.kind === "unanswered" || s.kind === "silent",
  );
}

function stallText(s: Stall): string {
  switch (s.kind) {
    case "unanswered":
      return `waits for ${s.on ?? "an answer"}`;
    case "silent":
      return "asks for nothing and waits for nobody";
    case "barrier":
      return "waits at a barrier for others";
    case "late":
      return "answers late";
    default:
      return "holds the others up";
  }
}

/** The job that is shown where none is chosen: one that runs, before one that is over. */
export function ofInterest(jobs: Job[]): Job | undefined {
  return jobs.find((j) => j.state !== "over") ?? jobs[0];
}

/** One line on a job's state, and whether something is wrong with it. */
export function jobStatus(job: Job, isFleet = false): { text: string; isBad: boolean } {
  const parts = [
    job.what || job.state,
    job.dialect && `PS-lite (${job.dialect})`,
    `${job.workers || "?"} workers, ${job.servers || "?"} servers`,
    `${job.steps_per_second.toPrecision(3)} steps/s`,
    `${bytes(job.bytes_per_second)}/s`,
    `${percent(job.bytes ? job.left_host_bytes / job.bytes : NaN)} of ${bytes(job.bytes)} left ${isFleet ? "their hosts" : "this host"}`,
    job.latency.count > 0 && `requests ${duration(job.latency.p50)} at the median, ${duration(job.latency.p99)} p99`,
    job.stragglers?.length && `behind: ${job.stragglers.join(", ")}`,
  ];
  const { unsynced, missed_bytes, unplaced } = job.connections;
  if (unsynced > 0) {
    parts.push(`${unsynced} connections not yet in step`);
  }
  if (unplaced > 0) {
    parts.push(`${unplaced} connections whose ends are not known yet`);
  }
  if (missed_bytes > 0) {
    parts.push(`${bytes(missed_bytes)} passed before they could be read`);
  }
  return { text: parts.filter(Boolean).join(" · "), isBad: unsynced > 0 || job.state === "stalled" || Boolean(job.cause) };
}
