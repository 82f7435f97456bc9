// The key to the heatmap's colours.

import { extent, level, marks, ramp } from "./colours";

export function drawLegend(host: HTMLElement, counts: number[][], name: (n: number) => string, isDark: boolean): void {
  const range = extent(counts);
  const colours = ramp(isDark);
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
