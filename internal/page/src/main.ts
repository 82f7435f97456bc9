// The page: asks the agent for what the view needs, every two seconds while
// live, and draws it. Nothing is loaded from anywhere else.

import { advise, drawAdvice } from "./advice";
import { Unanswered, ask, type Alpha, type Agent, type Codecs, type Heatmap, type History, type Job, type Keys, type Plan, type Runs, type Servers, type Traffic } from "./api";
import { askSides, Comparison, reach, rowNames } from "./beside";
import { Choice } from "./choose";
import { drawCodecs } from "./codecs";
import { before } from "./compare";
import { bindControls, element, fill, jobLabel, showControls } from "./controls";
import { command, copies } from "./copy";
import { curveRows, Curves, type Mark } from "./curves";
import { drawEmpty } from "./empty";
import { drawEvents, moments, type Moment } from "./events";
import { saveCSV, savePNG } from "./export";
import { blockKey, bytes, count, shortKey } from "./format";
import { Grid } from "./grid";
import { drawLegend } from "./legend";
import { drawMeasures } from "./measures";
import { drawCost, drawKeys, drawServers, drawStalls, drawWorkers, jobStatus, ofInterest } from "./panels";
import { placed, placesOf, remoteWorkers, type Places } from "./places";
import { drawPlan } from "./plan";
import { drawRuns } from "./runs";
import { Recordings } from "./recordings";
import { columnsOf, pick, pickServers } from "./select";
import { drawSkew } from "./skew";
import { drawSums } from "./sums";
import { formatOrders, parseOrders, shown, sorting } from "./table";
import { anchored, chosen, format, list, parse, shows, span, type View } from "./view";

const refreshMilliseconds = 2000;

const jobSelect = element<HTMLSelectElement>("job");
const live = element<HTMLInputElement>("live");
const back = element<HTMLButtonElement>("back");
const status = element("status");

let view = parse(location.hash);
let heatmap: Heatmap | undefined;
let traffic: Traffic | undefined;
let keys: Keys | undefined;
let history: History | undefined;
let events: Moment[] = [];
let elsewhere = new Set<string>(); // workers that an agent does not see, on other hosts
let places: Places = new Map();

const heat = new Grid({
  host: element("heat"),
  height: 420,
  columnWidth: 120,
  describe(row, column, n) {
    const block = heatmap?.blocks[column];
    if (!heatmap || !block) {
      return "";
    }
    const amount = heatmap.measure.endsWith("bytes") ? bytes(n) : `${count(n)} ${heatmap.measure}`;
    const [first, last] = [block.first_text, block.last_text].map((text) => shortKey(BigInt(text)));
    const range = (block.name ? `${block.name}, ` : "") + (first === last ? `key ${first}` : `keys ${first} to ${last}`);
    if (!heatmap.times && elsewhere.has(heatmap.workers[row] ?? "") && n === 0) {
      return `${heatmap.workers[row]}: on another host, not seen here`;
    }
    const who = heatmap.times ? `from ${rowNames(heatmap)[row] ?? ""}` : placed(heatmap.workers[row] ?? "", places);
    return `${who}, ${range} (${count(block.keys)} seen): ${amount}`;
  },
  onZoom(from, to) {
    const first = heatmap?.blocks[from];
    const last = heatmap?.blocks[to];
    if (first && last && !(heatmap!.finest && from === 0 && to === heatmap!.blocks.length - 1)) {
      go({ first: first.first_text, last: last.last_text });
    }
  },
  onReset: () => go({ first: "", last: "" }),
});

const matrix = new Grid({
  host: element("traffic"),
  height: 260,
  columnWidth: 90,
  describe(row, column, n) {
    if (!traffic) {
      return "";
    }
    const [worker, server] = [traffic.workers[row], traffic.servers[column]].map((name) => placed(name ?? "", places));
    return (
      `${worker} and ${server}: ${bytes(n)} (${bytes(traffic.to_servers[row]?.[column] ?? 0)} to the server, ` +
      `${bytes(traffic.to_workers[row]?.[column] ?? 0)} back) in ${count(traffic.requests[row]?.[column] ?? 0)} requests`
    );
  },
});

const curves = new Curves({
  host: element("curves"),
  readout: element("curves-readout"),
  onBrush(from, to) {
    const isOther = element<HTMLSelectElement>("brush").value === "beside";
    go(isOther ? { besidefrom: String(from), besideto: String(to) } : { from: String(from), to: String(to) });
  },
  onReset: () => go({ range: "", from: "", to: "" }),
});

const comparison = new Comparison();
const recordings = new Recordings(element("open"), element("file"), element("opening"), (jobs) => {
  // Beside what is shown; where nothing is, the first beside the second.
  const [job, other] = jobSelect.value ? [view.job || jobSelect.value, jobs[0]!] : [jobs[0]!, jobs[1] ?? ""];
  go(other ? { job, beside: "job", besidejob: other } : { job });
});
const workersChoice = new Choice(element("workers-choice"), "Workers", (workers) => go({ workers }));
const serversChoice = new Choice(element("servers-choice"), "Servers", (servers) => go({ servers }));

function isDark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Changes the view and remembers it in the address. */
function go(change: Partial<View>): void {
  location.hash = format({ ...view, ...change });
}

function blockName(column: number): string {
  const block = heatmap?.blocks[column];
  return block ? (block.name ?? blockKey(heatmap!.blocks, column)) : "";
}

function drawHeatmap(): void {
  if (heatmap) {
    const rows = rowNames(heatmap);
    const greyed = heatmap.times ? new Set<number>() : new Set(rows.flatMap((name, i) => (elsewhere.has(name) ? [i] : [])));
    heat.show({ rows, columns: heatmap.blocks.length, columnName: blockName, counts: heatmap.counts, greyed }, isDark());
    element("elsewhere").hidden = greyed.size === 0;
    element("elsewhere").textContent = `${greyed.size === 1 ? "1 worker is" : `${greyed.size} workers are`} on other hosts, which this agent does not see. The planner's page has all of them: psidecar planner, and --planner of every agent.`;
    const sampled = heatmap.sampled_one_in > 1 ? `, scaled up from at least one request in ${heatmap.sampled_one_in}` : "";
    drawLegend(element("legend"), heatmap.counts, heatmap.measure.endsWith("bytes") ? bytes : count, isDark());
    element("heat-title").textContent = `Accesses: ${heatmap.times ? "time" : "workers"} × keys`;
    element("shown").textContent = `${rows.length} ${heatmap.times ? "time intervals" : "workers"} × ${heatmap.blocks.length} blocks${heatmap.exact ? ", exact" : sampled}`;
    shown.set("heat", () => columnsOf(rows, heatmap!.blocks.map((b) => (b.name ? `${b.name} ` : "") + `${b.first_text}-${b.last_text}`), heatmap!.counts));
  }
  back.disabled = view.first === "" && view.last === "";
}

function drawTraffic(): void {
  if (!traffic) {
    return;
  }
  const { workers, servers, to_servers, to_workers } = traffic;
  const both = to_servers.map((row, w) => row.map((n, s) => n + (to_workers[w]?.[s] ?? 0)));
  matrix.show({ rows: workers, columns: servers.length, columnName: (s) => servers[s] ?? "", counts: both }, isDark());
  drawLegend(element("traffic-legend"), both, bytes, isDark());
  shown.set("traffic", () => columnsOf(workers, servers, both));
}

/** The stretches of time to mark in the curves. */
function marks(): Mark[] {
  const now = history?.points.length ? Date.parse(history.points.at(-1)!.to) / 1000 : 0;
  const mark = (from: string, to: string): Mark => ({ from: from ? Number(from) : 0, to: to ? Number(to) : now });
  const none = { from: 0, to: 0 };
  const own = view.from || view.to ? mark(view.from, view.to) : view.range ? { from: now - Number(view.range), to: now } : none;
  return [own, view.beside === "time" && (view.besidefrom || view.besideto) ? mark(view.besidefrom, view.besideto) : none];
}

function drawAll(): void {
  drawHeatmap();
  drawTraffic();
  if (keys) {
    drawSkew(element("skew"), element("skew-readout"), keys);
    shown.set("skew", () => [["hottest keys", "accesses"], ...keys!.skew.map((p) => [String(p.keys), String(p.accesses)])]);
  }
  if (history) {
    curves.show(history, marks(), events, isDark(), comparison.curves);
    drawEvents(element("events"), events);
    const some = [list(view.workers), list(view.servers)].flat().join(", ");
    element("curves-title").textContent = some ? `The last hour of ${some}` : "The last hour";
    element("curves-note").hidden = view.workers === "" || view.servers === "";
    shown.set("curves", () => curveRows(history!));
  }
}

/** Keeps the list of jobs; returns the one that is shown. */
function chooseJob(jobs: Job[]): Job | undefined {
  const job = jobs.find((j) => j.job === view.job) ?? ofInterest(jobs);
  fill(jobSelect, jobs.map((j) => [j.job, jobLabel(j)]), job?.job ?? "");
  fill(element("besidejob"), [["", "choose"], ...jobs.filter((j) => j !== job).map((j): [string, string] => [j.job, jobLabel(j)])], view.besidejob);
  return job;
}

function chooseAmong(workers: string[], servers: string[]): void {
  workersChoice.show(workers, view.workers);
  serversChoice.show(servers, view.servers);
  const names = workers.map((name): [string, string] => [name, name]);
  fill(element("a"), [["", "choose"], ...names], view.a);
  fill(element("b"), [["", "choose"], ...names], view.b);
}

/** Without a job there is one card, which says what to do. */
function showEmpty(agent: Agent, fleet: boolean): void {
  const isEmpty = jobSelect.options.length === 0;
  document.body.classList.toggle("empty", isEmpty);
  element("empty").hidden = !isEmpty;
  if (isEmpty) {
    drawEmpty(element("empty-text"), agent, fleet);
  }
}

/** Asks for everything and draws it, unless it has been asked for anew meanwhile. */
async function refresh(isNewest: () => boolean): Promise<void> {
  const began = performance.now();
  const [{ jobs }, agent] = await Promise.all([ask<{ jobs: Job[] }>("jobs"), ask<Agent>("agent")]);
  if (!isNewest()) {
    return;
  }
  drawCost(element("cost"), agent);
  recordings.show(agent.recording_bytes ?? 0);
  const isFleet = agent.hosts !== undefined;
  element("cost-title").textContent = isFleet ? "Agents: overhead and losses" : "This agent: overhead and losses";
  element("range").title = isFleet ? "Accurate to about five seconds, because hosts report periodically." : "";
  const job = chooseJob(jobs);
  showEmpty(agent, isFleet);
  if (!job) {
    say("", false);
    performance.measure("drawn", { start: began });
    return;
  }
  const known = await ask<History>("history", { job: job.job, ...chosen(view) }).catch(() => undefined); // of one that keeps none
  const asked = anchored({ ...view, job: job.job }, reach(known)?.end, Date.now() / 1000);
  const about = span(asked);
  const rows: Record<string, string> = view.by === "time" ? { by: "time", workers: view.workers } : {};
  const [newHeatmap, newTraffic, newKeys, servers, alpha, plan, codecs, runs] = await Promise.all([
    ask<Heatmap>("heatmap", { ...about, measure: view.measure, blocks: view.blocks, first: view.first, last: view.last, ...rows }),
    ask<Traffic>("traffic", about),
    ask<Keys>("keys", { job: job.job }),
    ask<Servers>("servers", about),
    ask<Alpha>("alpha", { job: job.job }).catch(() => undefined), // of an older agent, shown beside recordings
    isFleet ? ask<Plan>("plan", { job: job.job }).catch(() => undefined) : undefined, // none yet
    isFleet ? ask<Codecs>("codecs", { job: job.job }).catch(() => undefined) : undefined, // of a planner that has no rules to give
    isFleet ? ask<Runs>("runs", { job: job.job }).catch(() => undefined) : undefined, // none was seen to begin yet
  ]);
  const sides = known && (await askSides(asked, servers, known).catch(() => undefined));
  if (!isNewest()) {
    return;
  }
  places = placesOf(job);
  elsewhere = isFleet ? new Set() : remoteWorkers(job);
  events = moments(known, plan);
  chooseAmong(servers.workers.map((w) => w.name), servers.servers.map((s) => s.name));
  heatmap = pick(newHeatmap, view);
  traffic = pickServers(newTraffic, view);
  [keys, history] = [newKeys, known];
  element("curves-section").hidden = !history;
  comparison.show(sides, isDark());
  element("compare-hint").textContent = comparison.hint(view, jobs, recordings.limit > 0);
  drawAll();
  drawTables(job, servers, alpha);
  drawPlanner(job, plan, codecs, alpha);
  element("runs-section").hidden = !runs?.jobs[0];
  drawRuns(element("runs"), runs?.jobs[0]?.runs ?? []);
  const advice = advise(job, plan, codecs, alpha, known);
  element("advice-section").hidden = advice.length === 0;
  drawAdvice(element("advice"), advice);
  const { text, isBad } = jobStatus(job, isFleet, known);
  say(text, isBad);
  performance.measure("drawn", { start: began });
}

function drawTables(job: Job, all: Servers, alpha?: Alpha): void {
  const stalls = job.stalls ?? [];
  element("stalls-section").hidden = stalls.length === 0;
  drawStalls(element("stalls"), stalls);
  const servers = { servers: all.servers.filter((s) => shows(view.servers, s.name)), workers: all.workers.filter((w) => shows(view.workers, w.name)) };
  drawKeys(element("keys"), keys!, view.servers, job.sampled_one_in > 1, alpha);
  drawServers(element("servers"), servers, places);
  drawWorkers(element("workers"), servers, places);
  element("measures-section").hidden = !job.measures?.length;
  drawMeasures(element("measures"), job.measures ?? []);
}

function drawPlanner(job: Job, plan: Plan | undefined, codecs: Codecs | undefined, alpha: Alpha | undefined): void {
  element("plan-section").hidden = plan === undefined;
  if (plan) {
    drawPlan(element("plan"), plan, job.job);
  }
  const compared = alpha?.sums && alpha.forms ? alpha : undefined; // of a planner, and of several machines
  element("sums-section").hidden = compared === undefined;
  if (compared) {
    drawSums(element("sums"), compared, job.job);
  }
  element("codecs-section").hidden = codecs === undefined;
  if (codecs) {
    drawCodecs(element("codecs"), codecs, job.job);
  }
}

function say(text: string, isBad: boolean): void {
  document.body.classList.remove("waiting"); // for the first answer
  status.textContent = text;
  status.classList.toggle("bad", isBad);
}

/** What kept the page from being drawn: an answer that did not come, or a fault of the page's own. */
function problemText(problem: unknown): string {
  if (problem instanceof Unanswered) {
    return `No response: ${problem.message}`;
  }
  console.error(problem);
  return `This page failed: ${problem instanceof Error ? problem.message : problem}`;
}

let timer: ReturnType<typeof setTimeout> | undefined;
let round = 0;

/** Refreshes now, and again later while live; a newer call replaces an older. */
async function update(): Promise<void> {
  const mine = ++round;
  const isNewest = () => mine === round;
  clearTimeout(timer);
  try {
    await refresh(isNewest);
  } catch (problem) {
    if (isNewest()) {
      say(problemText(problem), true);
    }
  }
  if (isNewest() && live.checked) {
    timer = setTimeout(() => void update(), refreshMilliseconds);
  }
}

/** Has all that shows the view show it as the address says. */
function read(): void {
  view = parse(location.hash);
  sorting.orders = parseOrders(view.sort);
  showControls(view);
}

addEventListener("hashchange", () => {
  read();
  void update();
});
sorting.changed = (orders) => go({ sort: formatOrders(orders) });
bindControls(go);
jobSelect.addEventListener("change", () => go({ job: jobSelect.value, first: "", last: "", workers: "", servers: "", from: "", to: "", a: "", b: "", besidejob: "" }));
live.addEventListener("change", () => void update());
back.addEventListener("click", () => go({ first: "", last: "" }));
element("before").addEventListener("click", () => history && go(before(history, view)));
element("theme").addEventListener("click", () => {
  document.documentElement.dataset["theme"] = isDark() ? "light" : "dark";
  void update();
});
copies(element("link"), () => location.href);
for (const button of document.querySelectorAll<HTMLButtonElement>(".exports button")) {
  const { csv, png } = button.dataset;
  button.setAttribute("aria-label", `${button.textContent} of ${button.closest("section")!.querySelector("h2")!.textContent}`);
  button.addEventListener("click", () => {
    if (csv) {
      saveCSV(`psidecar-${csv}.csv`, shown.get(csv)?.() ?? []);
    } else if (png) {
      savePNG(`psidecar-${png.replace("-section", "")}.png`, element(png), `${jobSelect.value}: ${element(png).querySelector("h2")!.textContent}`);
    }
  });
}
element("try").replaceChildren(command("psidecar plan codecs try"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => void update());
read();
void update();
