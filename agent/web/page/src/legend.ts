// The key to the heatmap's colours.

import type { Heatmap } from "./api";
import { extent, level, ramp, type Extent } from "./colours";
import { bytes, count } from "./format";

const steps = 4; // from the least count to the most

/** Counts to name in the legend: 0, then from the least to the most in equal ratios. */
export function legendCounts({ least, most }: Extent): number[] {
  const counts = [0];
  for (let i = 0; i <= steps && most > 0; i++) {
    const n = i === steps ? most : Math.round(least * (most / least) ** (i / steps));
    if (n > counts.at(-1)!) {
      counts.push(n);
    }
  }
  return counts;
}

export function drawLegend(host: HTMLElement, heatmap: Heatmap, isDark: boolean): void {
  const range = extent(heatmap.counts);
  const colours = ramp(isDark);
  const name = heatmap.measure.endsWith("bytes") ? bytes : count;
  host.replaceChildren(
    ...legendCounts(range).map((n) => {
      const item = document.createElement("span");
      const swatch = document.createElement("i");
      const pixel = colours[level(n, range)]!;
      swatch.style.background = `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
      item.append(swatch, name(n));
      return item;
    }),
  );
}
