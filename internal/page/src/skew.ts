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

/** How few keys have half of the accesses, in words; "" where there are none. */
export function halfText(skew: Keys["skew"]): string {
  const last = skew.at(-1);
  const half = skew.find((p) => p.accesses * 2 >= (last?.accesses ?? 0));
  return last && half && last.accesses > 0 ? `The ${count(half.keys)} hottest of ${count(last.keys)} keys have ${percent(half.accesses / last.accesses)} of the accesses.` : "";
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

export function drawSkew(host: HTMLElement, readout: HTMLElement, keys: Keys): void {
  const data = curve(keys.skew);
  plot?.destroy();
  plot = undefined;
  readout.textContent = halfText(keys.skew);
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
      legend: { show: false },
      cursor: { y: false },
      scales: { x: { time: false, distr: 3, log: 10 }, y: { range: [0, 1] } },
      axes: [
        { ...axis, label: "hottest keys", labelFont: axis.font, values: (_u, s) => s.map((v) => (v !== null && Number.isInteger(Math.log10(v)) ? count(v) : "")) },
        { ...axis, values: (_u, s) => s.map(percent), size: 60 },
      ],
      series: [{}, { stroke: "#d1783c", width: 2, points: { show: data[0].length < 40 } }],
      hooks: {
        setCursor: [
          (u) => {
            const [n, share] = [u.data[0][u.cursor.idx ?? -1], u.data[1]![u.cursor.idx ?? -1]];
            readout.textContent = typeof n === "number" && typeof share === "number" ? `The ${count(n)} hottest keys: ${percent(share)} of the accesses` : halfText(keys.skew);
          },
        ],
      },
    },
    data,
    host,
  );
}
