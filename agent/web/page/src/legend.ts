// The key to the heatmap's colours.

import type { Heatmap } from "./api";
import { level, ramp } from "./colours";
import { bytes, count } from "./format";

/** Counts to name in the legend: 0, then powers of ten as far apart as fits, then the most. */
export function legendCounts(max: number): number[] {
  const counts = [0];
  const decades = Math.floor(Math.log10(Math.max(max, 1)));
  const step = Math.max(1, Math.ceil(decades / 4));
  for (let d = 0; d <= decades; d += step) {
    if (10 ** d < max / 2) {
      counts.push(10 ** d);
    }
  }
  return max > 0 ? [...counts, max] : counts;
}

export function drawLegend(host: HTMLElement, heatmap: Heatmap, isDark: boolean): void {
  let max = 0;
  for (const row of heatmap.counts) {
    for (const n of row) {
      max = n > max ? n : max;
    }
  }
  const colours = ramp(isDark);
  const name = heatmap.measure.endsWith("bytes") ? bytes : count;
  host.replaceChildren(
    ...legendCounts(max).map((n) => {
      const item = document.createElement("span");
      const swatch = document.createElement("i");
      const pixel = colours[level(n, max)]!;
      swatch.style.background = `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
      item.append(swatch, name(n));
      return item;
    }),
  );
}
