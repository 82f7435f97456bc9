// One view beside another: the same job at another time, another job or run, or two
// workers of one.

import type { Heatmap, History, Servers } from "./api";
import { bytes, clock, count, digits, duration, percent } from "./format";
import { figure, table } from "./table";
import type { View } from "./view";

/** What is compared in one row. */
export interface Figure { name: string; shown: number; beside: number; text(n: number): string }

/** The job's figures over a stretch of time, from its points. */
export function summary(history: History): Record<"steps" | "bytes" | "left" | "requests" | "p50" | "p99" | "skew" | "cost", number> {
  let seconds = 0;
  const sum = { steps: 0, bytes: 0, left: 0, requests: 0, p50: 0, p99: 0, skew: 0, cost: 0 };
  let answered = 0;
  let moved = 0;
  let isLeftKnown = true;
  for (const p of history.points) {
    const long = (Date.parse(p.to) - Date.parse(p.from)) / 1000;
    seconds += long;
    sum.steps += p.steps_per_second * long;
    sum.bytes += p.bytes_per_second * long;
    sum.left += (p.left_host_bytes_per_second ?? 0) * long;
    isLeftKnown &&= p.left_host_bytes_per_second !== undefined;
    sum.requests += p.requests;
    sum.p50 += p.p50 * p.requests;
    sum.p99 = Math.max(sum.p99, p.p99);
    sum.skew += p.skew * p.bytes_per_second * long;
    sum.cost += (p.cpu_percent + p.kernel_percent) * long;
    answered += p.requests;
    moved += p.skew > 0 ? p.bytes_per_second * long : 0;
  }
  const mean = (n: number): number => (seconds > 0 ? n / seconds : NaN);
  return {
    steps: mean(sum.steps), bytes: mean(sum.bytes), left: sum.bytes > 0 && isLeftKnown ? sum.left / sum.bytes : NaN, requests: mean(sum.requests),
    p50: answered > 0 ? sum.p50 / answered : NaN, p99: answered > 0 ? sum.p99 : NaN, skew: moved > 0 ? sum.skew / moved : NaN, cost: mean(sum.cost),
  };
}

const known = (text: (n: number) => string) => (n: number) => (Number.isFinite(n) ? text(n) : "–");

export function jobFigures(shown: History, beside: History): Figure[] {
  const [a, b] = [summary(shown), summary(beside)];
  return [
    { name: "steps/s", shown: a.steps, beside: b.steps, text: digits },
    { name: "bytes/s", shown: a.bytes, beside: b.bytes, text: (n) => `${bytes(n)}/s` },
    { name: "bytes per step", shown: a.bytes / a.steps, beside: b.bytes / b.steps, text: bytes },
    { name: "share that left the hosts", shown: a.left, beside: b.left, text: percent },
    { name: "requests/s", shown: a.requests, beside: b.requests, text: digits },
    { name: "latency, p50", shown: a.p50, beside: b.p50, text: duration },
    { name: "p99 of the worst interval", shown: a.p99, beside: b.p99, text: duration },
    { name: "skew: busiest server ÷ mean", shown: a.skew, beside: b.skew, text: digits },
    { name: "overhead of psidecar, % of a core", shown: a.cost, beside: b.cost, text: digits },
  ];
}

export function workerFigures({ workers }: Servers, a: string, b: string): Figure[] {
  const [one, other] = [a, b].map((name) => workers.find((w) => w.name === name));
  if (!one || !other) {
    return [];
  }
  return [
    { name: "steps/s", shown: one.steps_per_second, beside: other.steps_per_second, text: digits },
    { name: "requests", shown: one.requests, beside: other.requests, text: count },
    { name: "bytes out", shown: one.bytes_out, beside: other.bytes_out, text: bytes },
    { name: "bytes in", shown: one.bytes_in, beside: other.bytes_in, text: bytes },
    { name: "latency, p50", shown: one.latency.p50, beside: other.latency.p50, text: duration },
    { name: "p99", shown: one.latency.p99, beside: other.latency.p99, text: duration },
  ];
}

/** By how much the second differs from the first: "+25.0%". */
export function difference(shown: number, beside: number): string {
  if (!Number.isFinite(shown) || !Number.isFinite(beside) || shown === 0) {
    return "–";
  }
  const share = beside / shown - 1;
  return share > 9 ? `×${(beside / shown).toPrecision(3)}` : `${share > 0 ? "+" : ""}${(share * 100).toPrecision(3)}%`;
}

export function drawFigures(host: HTMLElement, names: [string, string], figures: Figure[]): void {
  table(
    host,
    [
      { title: "figure", text: (f) => f.name },
      { title: names[0], number: true, value: (f) => f.shown, text: (f) => known(f.text)(f.shown) },
      { title: names[1], number: true, value: (f) => f.beside, text: (f) => known(f.text)(f.beside) },
      { ...figure<Figure>("difference", (f) => f.beside / f.shown - 1, () => ""), text: (f) => difference(f.shown, f.beside) },
    ],
    figures,
  );
}

/** A stretch of time in words. */
export function timeText(from: string, to: string, range: string): string {
  if (from === "" && to === "") {
    return range === "" ? "all time" : range === "60" ? "the last minute" : `the last ${Number(range) / 60} minutes`;
  }
  return `${from ? clock(Number(from)) : "the beginning"} to ${to ? clock(Number(to)) : "now"}`;
}

/** What stands over the two sides. */
export function sideNames(view: View, job: string): [string, string] {
  const time = timeText(view.from, view.to, view.range);
  switch (view.beside) {
    case "worker":
      return [view.a, view.b];
    case "job":
      return [job, view.besidejob];
    default:
      return [time, timeText(view.besidefrom, view.besideto, "")];
  }
}

/** The stretch of time just before the one that is shown, as long as that. */
export function before(history: History, view: View): { besidefrom: string; besideto: string } {
  const now = history.points.length > 0 ? Date.parse(history.points.at(-1)!.to) / 1000 : Date.now() / 1000;
  const to = view.to ? Number(view.to) : now;
  const from = view.from ? Number(view.from) : view.range ? to - Number(view.range) : to - 60;
  return { besidefrom: String(Math.floor(2 * from - to)), besideto: String(Math.floor(from)) };
}

/** The least and the most of two heatmaps, so that one scale holds for both. */
export function bothCounts(a: Heatmap, b: Heatmap): number[][] {
  return [...a.counts, ...b.counts];
}
