// The skew curve: which share of the accesses falls to the hottest keys.

import uPlot from "uplot";
import { count, percent } from "./format";
import type { Keys } from "./api";

/** Points of the curve: number of hottest keys (at least 1), share of accesses. */
export function curve(skew: Keys["skew"]): [number[], number[]] {
  const all = skew.at(-1)?.accesses ?? 0;
  const points = skew.filter((p) => p.keys > 0 && all > 0);
  return [points.map((p) => p.keys), points.map((p) => p.accesses / all)];
}

let plot: uPlot | undefined;
let watched: HTMLElement | undefined;

/** Keeps the plot as wide as its place. */
function follow(host: HTMLElement): void {
  if (watched !== host) {
    watched = host;
    new ResizeObserver(() => {
      if (plot && host.clientWidth > 0 && Math.abs(host.clientWidth - plot.width) > 1) {
        plot.setSize({ width: host.clientWidth, height: plotHeight });
      }
    }).observe(host);
  }
}

const plotHeight = 260;

export function drawSkew(host: HTMLElement, keys: Keys): void {
  const data = curve(keys.skew);
  plot?.destroy();
  plot = undefined;
  if (data[0].length === 0) {
    host.textContent = "No accesses yet.";
    return;
  }
  host.replaceChildren();
  follow(host);
  const ink = getComputedStyle(host).color;
  const axis = { stroke: ink, grid: { stroke: "#8883", width: 1 }, ticks: { stroke: "#8883" }, font: "12px system-ui, sans-serif" };
  plot = new uPlot(
    {
      width: host.clientWidth || 480,
      height: plotHeight,
      scales: { x: { time: false, distr: 3, log: 10 }, y: { range: [0, 1] } },
      axes: [
        { ...axis, label: "hottest keys", labelFont: axis.font, values: (_u, s) => s.map((v) => (v !== null && Number.isInteger(Math.log10(v)) ? count(v) : "")) },
        { ...axis, values: (_u, s) => s.map(percent), size: 60 },
      ],
      series: [
        { label: "hottest keys", value: (_u, v) => (v === null ? "–" : count(v)) },
        { label: "share of accesses", stroke: "#d1783c", width: 2, value: (_u, v) => (v === null ? "–" : percent(v)), points: { show: data[0].length < 40 } },
      ],
    },
    data,
    host,
  );
}
