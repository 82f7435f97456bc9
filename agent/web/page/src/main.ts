// The page: asks the agent for what the view needs, every two seconds while
// live, and draws it. Nothing is loaded from anywhere else.

import { ask, type Agent, type Codecs, type Heatmap, type Job, type Keys, type Plan, type Servers, type Traffic } from "./api";
import { bytes, count, key } from "./format";
import { Grid, type Cells } from "./grid";
import { drawCost, drawKeys, drawServers, drawStalls, drawWorkers, jobStatus, ofInterest } from "./panels";
import { drawCodecs } from "./codecs";
import { drawLegend } from "./legend";
import { placed, placesOf, type Places } from "./places";
import { drawPlan } from "./plan";
import { drawSkew } from "./skew";
import { format, parse, span, type View } from "./view";

const refreshMilliseconds = 2000;

function element<E extends HTMLElement>(id: string): E {
  return document.getElementById(id) as E;
}

const jobSelect = element<HTMLSelectElement>("job");
const live = element<HTMLInputElement>("live");
const back = element<HTMLButtonElement>("back");
const status = element("status");

let view = parse(location.hash);
let heatmap: Heatmap | undefined;
let traffic: Traffic | undefined;
let keys: Keys | undefined;
let places: Places = new Map();

const heat = new Grid({
  host: element("heat"),
  height: 420,
  columnWidth: 190,
  describe(row, column, n) {
    const block = heatmap?.blocks[column];
    if (!heatmap || !block) {
      return "";
    }
    const amount = heatmap.measure.endsWith("bytes") ? bytes(n) : `${count(n)} ${heatmap.measure}`;
    const range = block.first_text === block.last_text ? `key ${blockName(column)}` : `keys ${blockName(column)} to ${key(BigInt(block.last_text))}`;
    return `${placed(heatmap.workers[row] ?? "", places)}, ${range} (${count(block.keys)} seen): ${amount}`;
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

function blockName(column: number): string {
  const block = heatmap?.blocks[column];
  return block ? key(BigInt(block.first_text)) : "";
}

function isDark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Changes the view and remembers it in the address. */
function go(change: Partial<View>): void {
  location.hash = format({ ...view, ...change });
}

function drawHeatmap(): void {
  if (heatmap) {
    const cells: Cells = { rows: heatmap.workers, columns: heatmap.blocks.length, columnName: blockName, counts: heatmap.counts };
    heat.show(cells, isDark());
    const sampled = heatmap.sampled_one_in > 1 ? `, scaled up from one request in ${heatmap.sampled_one_in}` : "";
    drawLegend(element("legend"), heatmap, isDark());
    element("shown").textContent = `${heatmap.workers.length} workers × ${heatmap.blocks.length} blocks${heatmap.exact ? ", exact" : sampled}`;
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
}

function drawAll(): void {
  drawHeatmap();
  drawTraffic();
  if (keys) {
    drawSkew(element("skew"), keys);
  }
}

/** Keeps the list of jobs; returns the one that is shown. */
function chooseJob(jobs: Job[]): Job | undefined {
  const labels = jobs.map((j) => (j.state === "over" ? `${j.job} (over)` : j.job));
  const listed = [...jobSelect.options].map((o) => o.text);
  if (labels.join("\n") !== listed.join("\n")) {
    jobSelect.replaceChildren(...jobs.map((j, i) => new Option(labels[i], j.job)));
  }
  const job = jobs.find((j) => j.job === view.job) ?? ofInterest(jobs);
  if (job) {
    jobSelect.value = job.job;
  }
  return job;
}

/** Asks for everything and draws it, unless it has been asked for anew meanwhile. */
async function refresh(isNewest: () => boolean): Promise<void> {
  const began = performance.now();
  const [{ jobs }, agent] = await Promise.all([ask<{ jobs: Job[] }>("jobs"), ask<Agent>("agent")]);
  if (!isNewest()) {
    return;
  }
  drawCost(element("cost"), agent);
  const isFleet = agent.hosts !== undefined;
  element("cost-title").textContent = isFleet ? "Agents: cost and losses" : "This agent: cost and losses";
  element("range").title = isFleet ? "To about five seconds: hosts report now and then." : "";
  const job = chooseJob(jobs);
  if (!job) {
    say(isFleet ? "No parameter-server job reported yet." : "No parameter-server job seen on this host yet.", false);
    return;
  }
  places = placesOf(job);
  const stalls = job.stalls ?? [];
  element("stalls-section").hidden = stalls.length === 0;
  drawStalls(element("stalls"), stalls);
  const about = span({ ...view, job: job.job });
  const [newHeatmap, newTraffic, newKeys, servers, plan, codecs] = await Promise.all([
    ask<Heatmap>("heatmap", { ...about, measure: view.measure, blocks: view.blocks, first: view.first, last: view.last }),
    ask<Traffic>("traffic", about),
    ask<Keys>("keys", { job: job.job }),
    ask<Servers>("servers", about),
    isFleet ? ask<Plan>("plan", { job: job.job }).catch(() => undefined) : undefined, // none yet
    isFleet ? ask<Codecs>("codecs", { job: job.job }).catch(() => undefined) : undefined, // of a planner that has no rules to give
  ]);
  if (!isNewest()) {
    return;
  }
  heatmap = newHeatmap;
  traffic = newTraffic;
  keys = newKeys;
  drawAll();
  drawKeys(element("keys"), newKeys);
  drawServers(element("servers"), servers, places);
  drawWorkers(element("workers"), servers, places);
  element("plan-section").hidden = plan === undefined;
  if (plan) {
    drawPlan(element("plan"), plan);
  }
  element("codecs-section").hidden = codecs === undefined;
  if (codecs) {
    drawCodecs(element("codecs"), codecs);
  }
  const { text, isBad } = jobStatus(job, isFleet);
  say(text, isBad);
  performance.measure("drawn", { start: began });
}

function say(text: string, isBad: boolean): void {
  status.textContent = text;
  status.classList.toggle("bad", isBad);
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
      say(`The agent does not answer: ${problem instanceof Error ? problem.message : problem}`, true);
    }
  }
  if (isNewest() && live.checked) {
    timer = setTimeout(() => void update(), refreshMilliseconds);
  }
}

function bind(id: "range" | "measure" | "blocks"): void {
  const select = element<HTMLSelectElement>(id);
  select.value = view[id];
  select.addEventListener("change", () => go({ [id]: select.value }));
  addEventListener("hashchange", () => (select.value = view[id]));
}

addEventListener("hashchange", () => {
  view = parse(location.hash);
  void update();
});
jobSelect.addEventListener("change", () => go({ job: jobSelect.value, first: "", last: "" }));
live.addEventListener("change", () => void update());
back.addEventListener("click", () => go({ first: "", last: "" }));
bind("range");
bind("measure");
bind("blocks");
element("theme").addEventListener("click", () => {
  document.documentElement.dataset["theme"] = isDark() ? "light" : "dark";
  drawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
void update();
