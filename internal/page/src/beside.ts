// The panel that compares: asks for the other side and draws both.

import { ask, type Heatmap, type History, type Job, type Servers } from "./api";
import { bothCounts, drawFigures, jobFigures, sideNames, workerFigures } from "./compare";
import type { Beside } from "./curves";
import { blockKey, bytes, clock, count, shortKey } from "./format";
import { Grid } from "./grid";
import { drawLegend } from "./legend";
import { anchored, chosen, span, type View } from "./view";

function element<E extends HTMLElement>(id: string): E {
  return document.getElementById(id) as E;
}

/** What both sides of a comparison show. */
export interface Sides { a: Heatmap; b: Heatmap; historyA: History; historyB: History; servers: Servers; view: View }

/** What to ask for the other side, in the words of a view; undefined while it is not chosen. */
export function otherSide(view: View): View | undefined {
  switch (view.beside) {
    case "time":
      return view.besidefrom !== "" || view.besideto !== "" ? { ...view, from: view.besidefrom, to: view.besideto } : undefined;
    case "job":
      return view.besidejob !== "" ? { ...view, job: view.besidejob } : undefined;
    case "worker":
      return view.a !== "" && view.b !== "" ? { ...view } : undefined;
    default:
      return undefined;
  }
}

/** By how much later the other side's beginning is than the first one's, in seconds. */
export function shiftOf(view: View, a: History, b: History): number {
  const begin = (h: History): number => (h.points[0] ? Date.parse(h.points[0].from) / 1000 : 0);
  return view.beside === "worker" ? 0 : begin(a) - begin(b);
}

/** When a history begins and ends, in seconds since 1970. */
export function reach(h: History | undefined): { begin: number; end: number } | undefined {
  const [first, last] = [h?.points[0], h?.points.at(-1)];
  return first && last ? { begin: Date.parse(first.from) / 1000, end: Date.parse(last.to) / 1000 } : undefined;
}

/**
 * The view of another job, which may have run at another time: a stretch of time in
 * which nothing of it is known is that as long after its beginning.
 */
export function elsewhen(other: View, own: History, its: History, now: number): View {
  const [a, b] = [reach(own), reach(its)];
  const view = anchored(other, b?.end, now);
  if (!a || !b || other.from === "" || (Number(other.from) < b.end && (other.to === "" || Number(other.to) > b.begin))) {
    return view;
  }
  const later = (text: string): string => (text === "" ? "" : String(Math.floor(Number(text) + b.begin - a.begin)));
  return { ...other, from: later(other.from), to: later(other.to) };
}

/** Asks for both sides; undefined where there is nothing to compare. */
export async function askSides(view: View, servers: Servers, own: History): Promise<Sides | undefined> {
  let other = otherSide(view);
  if (!other) {
    return undefined;
  }
  if (view.beside === "job") {
    other = elsewhen(other, own, await ask<History>("history", { job: other.job }), Date.now() / 1000);
  }
  const isWorkers = view.beside === "worker";
  const heat = (v: View, workers: string) =>
    ask<Heatmap>("heatmap", {
      ...span(v), measure: v.measure, blocks: "128", first: v.first, last: v.last,
      ...(isWorkers ? { by: "time", workers } : v.by === "time" ? { by: "time", workers: v.workers } : {}),
    });
  const [a, b, historyA, historyB] = await Promise.all([
    heat(view, isWorkers ? view.a : view.workers),
    heat(other, isWorkers ? view.b : view.workers),
    ask<History>("history", { ...span(view), ...chosen(view) }),
    ask<History>("history", { ...span(other), ...chosen(other) }),
  ]);
  return { a, b, historyA, historyB, servers, view };
}

/** The names of a heatmap's rows. */
export function rowNames(h: Heatmap): string[] {
  return h.times ? h.times.map((t) => clock(Date.parse(t.from) / 1000)) : h.workers;
}

export class Comparison {
  private sides: Sides | undefined;
  private grids: [Grid, Grid];

  constructor() {
    const grid = (id: "side-a" | "side-b", of: (s: Sides) => Heatmap): Grid =>
      new Grid({
        host: element(id),
        height: 300,
        columnWidth: 120,
        describe: (row, column, n) => {
          const h = this.sides && of(this.sides);
          const block = h?.blocks[column];
          if (!h || !block) {
            return "";
          }
          return `${rowNames(h)[row] ?? ""}, ${block.name ? `${block.name}, ` : ""}keys ${shortKey(BigInt(block.first_text))} to ${shortKey(BigInt(block.last_text))}: ${h.measure.endsWith("bytes") ? bytes(n) : `${count(n)} ${h.measure}`}`;
        },
      });
    this.grids = [grid("side-a", (s) => s.a), grid("side-b", (s) => s.b)];
  }

  /** The other side's curves, to lie over those of the view. */
  get curves(): Beside | undefined {
    const s = this.sides;
    return s && s.view.beside !== "worker" ? { history: s.historyB, shift: shiftOf(s.view, s.historyA, s.historyB), name: s.view.beside } : undefined;
  }

  /** What to do; opens: recordings are opened in this page. */
  hint(view: View, jobs: Job[], opens: boolean): string {
    const recordings = opens
      ? "A recording that you open above or drop on this page is shown next to the current view."
      : "Recordings: psidecar show FILE... opens them on such a page; with --live HOST:PORT, next to the jobs of this one.";
    switch (view.beside) {
      case "":
        return `Shows the same job at another time, another job or run, or two workers side by side on one scale. ${recordings}`;
      case "time":
        return otherSide(view) ? "Dashed curves show the time range to compare with, shifted to the same start." : "Choose the time range to compare with: set what dragging selects and drag over a curve, or enter it.";
      case "job":
        return jobs.length < 2 ? `There is only one job. Ended runs stay in this list. ${recordings}` : "Dashed curves show the other job, shifted to the same start.";
      default:
        return "Rows are time intervals, oldest at the top.";
    }
  }

  show(sides: Sides | undefined, isDark: boolean): void {
    this.sides = sides;
    element("sides").hidden = !sides;
    element("compare-exports").hidden = !sides;
    element("figures").hidden = !sides;
    element("compare-legend").hidden = !sides;
    if (!sides) {
      return;
    }
    const { view, a, b } = sides;
    const names = sideNames(view, view.job);
    element("side-a-title").textContent = names[0];
    element("side-b-title").textContent = names[1];
    drawFigures(element("figures"), names, view.beside === "worker" ? workerFigures(sides.servers, view.a, view.b) : jobFigures(sides.historyA, sides.historyB));
    const scale = bothCounts(a, b);
    drawLegend(element("compare-legend"), scale, a.measure.endsWith("bytes") ? bytes : count, isDark);
    [a, b].forEach((h, i) => {
      const name = (at: number): string => (h.blocks[at] ? (h.blocks[at]!.name ?? blockKey(h.blocks, at)) : "");
      this.grids[i]!.show({ rows: rowNames(h), columns: h.blocks.length, columnName: name, counts: h.counts, scale }, isDark);
    });
  }
}
