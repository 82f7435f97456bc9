// The panels below the heatmap, each a function from an answer to elements.

import type { Alpha, Agent, Counter, History, HistoryPoint, Host, HotKey, Job, Keys, Latency, Servers, Sketch, Stall } from "./api";
import { bytes, count, digits, duration, megabits, percent, shortKey } from "./format";
import { shows } from "./view";
import { placeColumns, type Places } from "./places";
import { forms } from "./sums";
import { facts, figure, table, type Column } from "./table";

type ServerRow = Servers["servers"][number];
type WorkerRow = Servers["workers"][number];
type Program = NonNullable<Agent["programs"]>[number];

/** How many of the hottest keys are listed. */
const listed = 25;

/** Of a job of which not all requests are looked at, counts are right to what stands beside them. */
export function drawKeys(host: HTMLElement, keys: Keys, servers: string, isSampled: boolean, alpha?: Alpha): void {
  const most = keys.hottest[0]?.accesses ?? 1;
  const hottest = keys.hottest.filter((k) => !k.server || shows(servers, k.server));
  table(
    host,
    [
      ...(hottest.some((k) => k.name) ? [{ title: "name", text: (k: HotKey) => k.name ?? "" }] : []),
      { title: "key", text: (k) => shortKey(BigInt(k.key_text)), whole: (k) => k.key_text, value: (k) => Number(k.key_text) },
      { ...figure<HotKey>("accesses", (k) => k.accesses, count, (k) => k.accesses / most), text: (k) => (k.estimated ? "≤ " : "") + count(k.accesses) },
      ...(hottest.some((k) => k.error) ? [figure<HotKey>("±", (k) => k.error ?? 0, count)] : []),
      figure<HotKey>("pulls", (k) => k.pulls, count),
      figure<HotKey>("pushes", (k) => k.pushes, count),
      figure<HotKey>("bytes", (k) => k.bytes, bytes),
      { title: "home", text: (k) => k.server ?? "" },
    ],
    hottest.slice(0, listed),
  );
  const note = document.createElement("p");
  note.className = "hint";
  if (keys.sketch.distinct_keys > 0) {
    note.textContent = sketchText(keys.sketch, isSampled);
    host.append(note);
  }
  if (alpha && alpha.workers > 0 && alpha.alpha > 0) {
    const share = document.createElement("p");
    share.className = "hint";
    share.textContent = alphaText(alpha);
    host.append(share);
  }
}

/** How sparsely a job uses its parameters, and what each form of keeping them would move. */
export function alphaText(alpha: Omit<Alpha, "ranges">): string {
  const share = `Alpha ${Number(alpha.alpha.toPrecision(3))}${alpha.at_most ? " or less" : ""}: share of ${bytes(alpha.bytes)} of values that a worker uses per step.`;
  if (!alpha.forms || !alpha.least) {
    return share;
  }
  const all = Object.entries(alpha.forms).map(([form, moved]) => `${forms[form] ?? form} ${bytes(moved)}`);
  return `${share} The busiest of ${alpha.machines} machines would transfer, in bytes of values per step: ${all.join(", ")} (psidecar plan aggregate show).`;
}

/** What is known of how right the counts of keys are. */
export function sketchText(sketch: Sketch, isSampled: boolean): string {
  const keys = `${count(sketch.distinct_keys)} ${sketch.at_least ? "or more " : ""}distinct keys in ${bytes(sketch.memory_bytes)}`;
  const note = sketch.at_least ? " Several hosts use some of these keys: counts of keys that are hot on only one host may be too low, and the skew is at least this high." : "";
  if (sketch.exact) {
    return `${keys}, each counted ${isSampled ? "individually in the inspected requests, and scaled up" : "exactly"}.${note}`;
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

const times: ["p50", "p99"] = ["p50", "p99"];

/** Columns for the times of requests. */
function timeColumns<Row extends { latency: Latency }>(): Column<Row>[] {
  return times.map((q) => ({ title: q, number: true, value: (row) => row.latency[q], text: (row) => took(row.latency, q) }));
}

export function drawServers(host: HTMLElement, { servers }: Servers, places: Places): void {
  const busiestFirst = [...servers].sort((a, b) => b.share - a.share);
  table(
    host,
    [
      { title: "server", text: (s) => s.name },
      ...placeColumns<ServerRow>(places),
      figure<ServerRow>("share of bytes", (s) => s.share, percent, (s) => s.share),
      figure<ServerRow>("in", (s) => s.bytes_in, bytes),
      figure<ServerRow>("out", (s) => s.bytes_out, bytes),
      figure<ServerRow>("requests", (s) => s.requests, count),
      ...timeColumns<ServerRow>(),
    ],
    busiestFirst,
  );
}

export function drawWorkers(host: HTMLElement, { workers }: Servers, places: Places): void {
  table(
    host,
    [
      { title: "worker", text: (w) => w.name + (w.straggler ? " (straggler)" : "") },
      ...placeColumns<WorkerRow>(places),
      figure<WorkerRow>("steps/s", (w) => w.steps_per_second, digits),
      figure<WorkerRow>("requests", (w) => w.requests, count),
      figure<WorkerRow>("out", (w) => w.bytes_out, bytes),
      figure<WorkerRow>("in", (w) => w.bytes_in, bytes),
      ...timeColumns<WorkerRow>(),
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
    { title: "cores", number: true, value: (h) => h.machine?.cores ?? 0, text: (h) => (h.machine ? count(h.machine.cores) : "–") },
    { title: "link", text: ({ machine }) => (machine ? (machine.link_mbit > 0 ? `${megabits(machine.link_mbit)}, ` : "") + machine.link_source : "–") },
  ];
}

/** What the agents that report to a planner cost and miss. */
function drawHosts(host: HTMLElement, agent: Agent, hosts: Host[]): void {
  host.replaceChildren(
    facts([
      ["planner", `${agent.host}, psidecar ${agent.version}`],
      ["hosts", `${hosts.length} report`],
      ["CPU", `${agent.cpu_percent.toPrecision(2)}% of a core in all agents, ${agent.kernel_percent.toPrecision(2)}% in the kernels`],
      ["memory", `${bytes(agent.memory_bytes)} in all agents`],
    ]),
  );
  const list = document.createElement("div");
  list.id = "hosts";
  table(
    list,
    [
      { title: "host", text: (h) => h.host },
      { title: "reported", number: true, value: (h) => Date.parse(h.reported), text: (h) => `${duration(Math.max(0, (Date.now() - Date.parse(h.reported)) / 1000))} ago` },
      figure<Host>("CPU", (h) => h.cpu_percent, (n) => `${n.toPrecision(2)}%`),
      figure<Host>("in the kernel", (h) => h.kernel_percent, (n) => `${n.toPrecision(2)}%`),
      figure<Host>("memory", (h) => h.memory_bytes, bytes),
      ...machineColumns(hosts),
      { title: "keys inspected", text: (h) => (h.sampled_one_in <= 1 ? "all requests" : `one in ${h.sampled_one_in} requests`) },
      { title: "lost", text: (h) => h.lost.map((c) => `${c.reason} ${count(c.events)}×`).join(", ") || "none" },
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
      ["CPU", `${agent.cpu_percent.toPrecision(2)}% of a core in the process, ${agent.kernel_percent.toPrecision(2)}% in the kernel`],
      ["memory", bytes(agent.memory_bytes)],
      ["sampling", samplingText(sampling)],
      ["planner", agent.planner ? plannerText(agent.planner) : "none"],
    ]),
  );
  const programs = document.createElement("div");
  programs.id = "programs";
  table(
    programs,
    [
      { title: "program", text: (p) => p.name },
      figure<Program>("runs", (p) => p.runs, count),
      figure<Program>("per run", (p) => p.nanoseconds_per_run / 1e9, duration),
    ],
    agent.programs ?? [],
  );
  host.append(programs, counterTable(agent));
}

/** What was counted, as far as there was any of it. */
function counterTable(agent: Agent): HTMLElement {
  const counters = document.createElement("div");
  counters.id = "counters";
  const seen = (agent.counters ?? []).filter((c) => c.events + c.bytes > 0);
  if (!seen.some((c) => c.class === "lost")) {
    const none = document.createElement("p");
    none.className = "hint";
    none.textContent = "Nothing was lost.";
    counters.append(none);
  }
  if (seen.length === 0) {
    return counters;
  }
  const rows = document.createElement("div");
  rows.id = "counter-rows";
  counters.append(rows);
  table(
    rows,
    [
      { title: "counter", text: (c) => c.reason },
      { title: "class", text: (c) => c.class },
      figure<Counter>("events", (c) => c.events, count),
      figure<Counter>("bytes", (c) => c.bytes, bytes),
      { title: "", text: (c) => c.help, wraps: true },
    ],
    seen,
    (c) => c.class === "lost",
  );
  return counters;
}

function samplingText(s: Agent["sampling"]): string {
  const rate = s.one_in <= 1 ? "all steps" : `one in ${s.one_in} windows of ${s.window} steps`;
  if (s.over_budget) {
    return `${rate}, which takes ${s.cost_percent.toPrecision(2)}% of a core, above the budget of ${s.budget_percent}%, although as little is inspected as can be`;
  }
  return s.adaptive ? `${rate}, within a budget of ${s.budget_percent}% of a core averaged over a minute` : rate;
}

function plannerText(p: NonNullable<Agent["planner"]>): string {
  return p.connected ? `${p.address}, connected` : `${p.address}, not connected: ${p.error ?? "unknown"}`;
}

/** Who does not go on as it should, and for whom it waits. */
export function drawStalls(host: HTMLElement, stalls: Stall[]): void {
  const since = (s: Stall): string => (s.kind === "late" || s.kind === "straggling" ? "recently" : duration(s.seconds));
  table(
    host,
    [
      { title: "node", text: (s) => s.who },
      { title: "state", text: (s) => stallText(s), wraps: true },
      { title: "for", number: true, value: (s) => s.seconds, text: since },
      { title: "request", number: true, value: (s) => s.bytes ?? 0, text: (s) => (s.bytes ? bytes(s.bytes) : "–") },
      { title: "keys", text: (s) => keysOf(s).replace(/\d{9,}/g, (n) => shortKey(BigInt(n))), whole: keysOf, wraps: true },
      { title: "why", text: (s) => s.why ?? "", wraps: true },
    ],
    stalls,
    (s) => s.kind === "unanswered" || s.kind === "silent",
  );
}

function keysOf(s: Stall): string {
  return s.keys?.replace(/^keys (from )?/, "") ?? "";
}

function stallText(s: Stall): string {
  switch (s.kind) {
    case "unanswered":
      return `waits for ${s.on ?? "an answer"}`;
    case "silent":
      return "sends no requests and waits for no answer";
    case "barrier":
      return "waits at a barrier that others have not reached";
    case "late":
      return "answers late";
    default:
      return "delays the others";
  }
}

/** The job that is shown where none is chosen: one that runs, before one that is over. */
export function ofInterest(jobs: Job[]): Job | undefined {
  return jobs.find((j) => j.state !== "over") ?? jobs[0];
}

/** Steps and bytes per second of a job that is over, over all the time of which something is known. */
export function means(job: Job, history?: History): [steps: number, bytes: number] {
  const busy = (history?.points ?? []).filter((p) => p.bytes_per_second > 0);
  const seconds = (p: HistoryPoint): number => (Date.parse(p.to) - Date.parse(p.from)) / 1000;
  const whole = busy.reduce((sum, p) => sum + seconds(p), 0);
  if (whole > 0) {
    const mean = (of: (p: HistoryPoint) => number): number => busy.reduce((sum, p) => sum + of(p) * seconds(p), 0) / whole;
    return [mean((p) => p.steps_per_second), mean((p) => p.bytes_per_second)];
  }
  const lived = (Date.parse(job.last_seen ?? "") - Date.parse(job.first_seen ?? "")) / 1000;
  return [job.steps_per_second > 0 ? job.steps_per_second : NaN, job.bytes_per_second > 0 ? job.bytes_per_second : lived > 0 ? job.bytes / lived : NaN];
}

/** One line on a job's state, and whether something is wrong with it. */
export function jobStatus(job: Job, isFleet = false, history?: History): { text: string; isBad: boolean } {
  const [steps, rate] = job.state === "over" ? means(job, history) : [job.steps_per_second, job.bytes_per_second];
  const mean = job.state === "over" ? "on average " : "";
  const parts = [
    (job.what || job.state)?.replace(/\d{13,}/g, (n) => shortKey(BigInt(n))),
    job.dialect && `PS-lite (${job.dialect})`,
    `${job.workers || "?"} workers, ${job.servers || "?"} servers`,
    Number.isFinite(steps) && `${mean}${digits(steps)} steps/s`,
    Number.isFinite(rate) && `${mean}${bytes(rate)}/s`,
    `${percent(job.bytes ? job.left_host_bytes / job.bytes : NaN)} of ${bytes(job.bytes)} left ${isFleet ? "their hosts" : "this host"}`,
    job.latency.count > 0 && `requests ${duration(job.latency.p50)} at the median, ${duration(job.latency.p99)} p99`,
    job.stragglers?.length && `stragglers: ${job.stragglers.join(", ")}`,
  ];
  const { unsynced, missed_bytes, unplaced } = job.connections;
  if (unsynced > 0) {
    parts.push(`${unsynced === 1 ? "1 connection" : `${unsynced} connections`} not yet synchronized`);
  }
  if (unplaced > 0) {
    parts.push(`${unplaced === 1 ? "1 connection" : `${unplaced} connections`} with unknown ends`);
  }
  if (missed_bytes > 0) {
    parts.push(`${bytes(missed_bytes)} passed before messages were recognized`);
  }
  parts.push(...(job.remarks ?? []));
  return { text: parts.filter(Boolean).join(" · "), isBad: unsynced > 0 || job.state === "stalled" || Boolean(job.cause) };
}
