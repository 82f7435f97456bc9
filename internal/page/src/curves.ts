// How the job went over the last hour, a chart for each figure. Dragging over any
// of them sets the time of all panels.

import uPlot from "uplot";
import type { History, HistoryPoint } from "./api";
import type { Moment } from "./events";
import { bytes, clock, digits, duration } from "./format";

export interface Line { name: string; of(p: HistoryPoint): number | null; text(n: number): string; colour: number }

export interface Chart { id: string; title: string; lines: Line[] }

const perSecond = (n: number): string => `${n < 0 ? "-" : ""}${bytes(Math.abs(n))}/s`;
const percentOfCore = (n: number): string => `${n.toPrecision(2)}%`;
const answered = (p: HistoryPoint, seconds: number): number | null => (p.requests > 0 ? seconds : null);

/** The charts, in the order in which they are shown. */
export const charts: Chart[] = [
  { id: "steps", title: "Steps/s of the median worker", lines: [{ name: "steps/s", of: (p) => p.steps_per_second, text: count2, colour: 0 }] },
  {
    id: "bytes", title: "Bytes/s", lines: [
      { name: "all", of: (p) => p.bytes_per_second, text: perSecond, colour: 0 },
      { name: "left hosts", of: (p) => p.left_host_bytes_per_second ?? null, text: perSecond, colour: 1 },
    ],
  },
  {
    id: "times", title: "Request latency", lines: [
      { name: "p50", of: (p) => answered(p, p.p50), text: duration, colour: 0 },
      { name: "p99", of: (p) => answered(p, p.p99), text: duration, colour: 1 },
    ],
  },
  { id: "skew", title: "Skew: busiest server ÷ mean server", lines: [{ name: "skew", of: (p) => (p.skew > 0 ? p.skew : null), text: count2, colour: 0 }] },
  { id: "saved", title: "Bytes/s saved by codecs", lines: [{ name: "saved", of: (p) => p.saved_bytes_per_second ?? null, text: perSecond, colour: 0 }] },
  {
    id: "cost", title: "Overhead, % of a core", lines: [
      { name: "process", of: (p) => p.cpu_percent, text: percentOfCore, colour: 0 },
      { name: "in the kernel", of: (p) => p.kernel_percent, text: percentOfCore, colour: 1 },
    ],
  },
];

function count2(n: number): string {
  return n === 0 ? "0" : digits(n);
}

/** Whether all curves are 0 throughout: then the axis has no scale but its 0. */
function flat([, ...curves]: uPlot.AlignedData): boolean {
  return curves.every((ys) => Array.from(ys).every((y) => !y));
}

/** What an axis spans: 0 and all of the curves, which are below it where a codec costs bytes. */
export function yRange(least: number | null, most: number | null): [number, number] {
  const low = Math.min(least ?? 0, 0) * 1.08;
  return [low, most !== null && most > 0 ? most * 1.08 : low < 0 ? 0 : 1];
}

/** A moment at an axis whose ticks are so many seconds apart. */
export function tick(seconds: number, apart: number): string {
  return apart < 60 ? clock(seconds) : clock(seconds).slice(0, 5);
}

const height = 120;

/** A colour of the style sheet as a canvas takes it: for light or dark, whichever holds. */
function colour(host: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  host.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

/** x and y of steps: each stretch of time from its beginning, and the end of the last one. */
export function steps(points: HistoryPoint[], lines: Line[], shift = 0): (number | null)[][] {
  const xs: number[] = [];
  const ys: (number | null)[][] = lines.map(() => []);
  points.forEach((p, i) => {
    const [from, to] = [Date.parse(p.from) / 1000 + shift, Date.parse(p.to) / 1000 + shift];
    xs.push(from);
    lines.forEach((line, l) => ys[l]!.push(line.of(p)));
    const next = points[i + 1];
    if (!next || Date.parse(next.from) / 1000 + shift > to + 1) { // nothing is known of what follows
      xs.push(to);
      lines.forEach((line, l) => ys[l]!.push(next ? null : line.of(p)));
    }
  });
  return [xs, ...ys];
}

/** Curves beside others: what is shown, and by how many seconds it is moved to lie over it. */
export interface Beside { history: History; shift: number; name: string }

export interface CurvesOptions {
  host: HTMLElement;
  readout: HTMLElement;
  /** Called when a stretch of time was selected, in seconds since 1970. */
  onBrush(from: number, to: number): void;
  onReset(): void;
}

/** A stretch of time that is marked in the charts. */
export interface Mark { from: number; to: number }

export class Curves {
  private plots: { chart: Chart; plot: uPlot; title: HTMLElement }[] = [];
  private frame = "";
  private marks: Mark[] = [];
  private moments: Moment[] = [];

  constructor(private options: CurvesOptions) {
    new ResizeObserver(() => this.resize()).observe(options.host);
  }

  show(history: History, marks: Mark[], moments: Moment[], isDark: boolean, beside?: Beside): void {
    this.marks = marks;
    this.moments = moments;
    const points = history.points;
    const present = charts
      .map((c) => ({ ...c, lines: c.lines.filter((l) => points.some((p) => l.of(p) !== null)) }))
      .filter((c) => c.lines.length > 0);
    const frame = `${present.map((c) => `${c.id}:${c.lines.map((l) => l.name)}`)} ${isDark} ${beside?.name ?? ""}`;
    if (points.length === 0) {
      this.clear("No data yet: the first point appears after five seconds.");
      return;
    }
    if (frame !== this.frame) {
      this.clear("");
      this.frame = frame;
      this.plots = present.map((chart) => this.build(chart, beside?.name));
      this.resize(); // the first ones were built when they had the place of all
    }
    for (const { chart, plot } of this.plots) {
      const own = steps(points, chart.lines);
      const data = beside ? uPlot.join([own as uPlot.AlignedData, steps(beside.history.points, chart.lines, beside.shift) as uPlot.AlignedData], undefined) : own;
      plot.setData(data as uPlot.AlignedData);
    }
  }

  private clear(text: string): void {
    this.plots.forEach(({ plot }) => plot.destroy());
    this.plots = [];
    this.frame = "";
    this.options.host.textContent = text;
  }

  private build(chart: Chart, beside: string | undefined): { chart: Chart; plot: uPlot; title: HTMLElement } {
    const box = document.createElement("figure");
    box.className = "chart";
    box.id = `chart-${chart.id}`;
    const title = document.createElement("figcaption");
    title.append(chart.title);
    if (charts.find((c) => c.id === chart.id)!.lines.length > 1) {
      chart.lines.forEach((line) => {
        const name = document.createElement("span");
        name.className = `line${line.colour}`;
        name.textContent = line.name;
        title.append(" ", name);
      });
    }
    box.append(title);
    this.options.host.append(box);
    const style = getComputedStyle(this.options.host);
    const colours = [colour(this.options.host, "--line0"), colour(this.options.host, "--line1")];
    const text = chart.lines[0]!.text;
    const axis = { stroke: style.color, grid: { stroke: "#8883", width: 1 }, ticks: { stroke: "#8883", size: 4 }, font: "11px system-ui, sans-serif" };
    const stepped = uPlot.paths.stepped!({ align: 1 });
    const line = (l: Line, dash?: number[]): uPlot.Series => ({ label: l.name, stroke: colours[l.colour], width: dash ? 1.5 : 2, dash, paths: stepped, points: { show: false }, spanGaps: false });
    const plot: uPlot = new uPlot(
      {
        width: box.clientWidth || 320,
        height,
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
        scales: {
          x: { time: true },
          y: { range: (_u, least, most) => yRange(least, most) },
        },
        axes: [
          { ...axis, size: 28, space: 64, values: (_u, at, _axis, _space, apart) => at.map((s) => tick(s, apart)) },
          { ...axis, size: 74, space: 18, values: (u, at) => at.map((n) => (n === 0 ? "0" : flat(u.data) ? "" : text(n))) },
        ],
        series: [{}, ...chart.lines.map((l) => line(l)), ...(beside ? chart.lines.map((l) => line(l, [4, 4])) : [])],
        hooks: {
          drawClear: [(u) => this.drawMarks(u)],
          draw: [(u) => this.drawMoments(u)],
          setSelect: [(u) => this.onSelect(u)],
          setCursor: [(u) => this.onCursor(u)],
        },
      },
      [[], ...chart.lines.map(() => []), ...(beside ? chart.lines.map(() => []) : [])] as uPlot.AlignedData,
      box,
    );
    plot.over.addEventListener("dblclick", () => this.options.onReset());
    plot.over.addEventListener("mouseleave", () => this.point(undefined));
    return { chart, plot, title };
  }

  private drawMarks(u: uPlot): void {
    const { left, top, width, height } = u.bbox;
    this.marks.forEach(({ from, to }, i) => {
      const start = Math.max(u.valToPos(from, "x", true), left);
      const end = Math.min(u.valToPos(to, "x", true), left + width);
      if (end > start) {
        u.ctx.save();
        u.ctx.fillStyle = colour(this.options.host, i === 0 ? "--mark" : "--mark-beside");
        u.ctx.fillRect(start, top, end - start, height);
        u.ctx.restore();
      }
    });
  }

  /** A dashed line for each moment. */
  private drawMoments(u: uPlot): void {
    const { left, top, width, height } = u.bbox;
    u.ctx.save();
    u.ctx.strokeStyle = colour(this.options.host, "--event");
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const { at } of this.moments) {
      const x = u.valToPos(at, "x", true);
      if (x >= left && x <= left + width) {
        u.ctx.beginPath();
        u.ctx.moveTo(x, top);
        u.ctx.lineTo(x, top + height);
        u.ctx.stroke();
      }
    }
    u.ctx.restore();
  }

  private onSelect(u: uPlot): void {
    const { left, width } = u.select;
    if (width <= 4) {
      return;
    }
    const [from, to] = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.options.onBrush(Math.floor(from), Math.ceil(to));
  }

  private onCursor(u: uPlot): void {
    const { left, idx } = u.cursor;
    if (left === undefined || left < 0 || idx === null || idx === undefined) {
      return;
    }
    for (const other of this.plots) {
      if (other.plot !== u) {
        other.plot.setCursor({ left: other.plot.valToPos(u.posToVal(left, "x"), "x"), top: 0 }, false);
      }
    }
    this.point(u.posToVal(left, "x"));
  }

  /** Says what all charts have at a moment. */
  private point(at: number | undefined): void {
    if (at === undefined) {
      this.options.readout.textContent = "";
      this.plots.forEach(({ plot }) => plot.setCursor({ left: -10, top: -10 }, false));
      return;
    }
    const parts = this.plots.flatMap(({ chart, plot }) => {
      const i = stepAt(plot.data[0] as number[], at);
      return chart.lines.map((line, l) => {
        const n = plot.data[l + 1]?.[i];
        return `${line.name} ${typeof n === "number" ? line.text(n) : "–"}`;
      });
    });
    const span = this.plots[0]?.plot.scales["x"];
    const near = ((span?.max ?? 0) - (span?.min ?? 0)) / 60;
    const events = this.moments.filter((m) => Math.abs(m.at - at) < near).map((m) => m.what);
    this.options.readout.textContent = `${clock(at)}: ${[...events, ...parts].join(" · ")}`;
  }

  private resize(): void {
    for (const { plot } of this.plots) {
      const width = plot.root.parentElement?.clientWidth ?? 0;
      if (width > 0 && Math.abs(width - plot.width) > 1) {
        plot.setSize({ width, height });
      }
    }
  }
}

/** The number of the step that holds at x. */
export function stepAt(xs: number[], x: number): number {
  let at = 0;
  while (at + 1 < xs.length && xs[at + 1]! <= x) {
    at++;
  }
  return at;
}

/** The points as rows of a CSV file. */
export function curveRows(history: History): string[][] {
  const titles = ["from", "to", ...charts.flatMap((c) => c.lines.map((l) => `${c.id} ${l.name}`)), "requests"];
  return [titles, ...history.points.map((p) => [p.from, p.to, ...charts.flatMap((c) => c.lines.map((l) => String(l.of(p) ?? ""))), String(p.requests)])];
}
