// The key to the heatmap's colours.

import type { Heatmap } from "./api";
import { extent, level, marks, ramp } from "./colours";
import { bytes, count } from "./format";

export function drawLegend(host: HTMLElement, heatmap: Heatmap, isDark: boolean): void {
  const range = extent(heatmap.counts);
  const colours = ramp(isDark);
  const name = heatmap.measure.endsWith("bytes") ? bytes : count;
  host.replaceChildren(
    ...marks(range).map((n) => {
      const item = document.createElement("span");
      const swatch = document.createElement("i");
      const pixel = colours[level(n, range)]!;
      swatch.style.background = `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
      item.append(swatch, name(n));
      return item;
    }),
  );
}
