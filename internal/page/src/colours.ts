// The colour scale of the heatmaps, as package page/draw defines it for page,
// terminal and PNG: one hue-shifting ramp whose lightness changes evenly, so that
// it reads in grey and by colour-blind eyes too. On a light page nothing is white
// and much is dark; on a dark page the reverse.

import scale from "../draw/scale.json";

type RGB = readonly [number, number, number];

const light = scale.light as unknown as readonly RGB[];
const dark = scale.dark as unknown as readonly RGB[];

/** 256 packed RGBA pixels (little endian), from nothing to the most. */
export function ramp(isDark: boolean): Uint32Array {
  const stops = isDark ? dark : light;
  const out = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const from = stops[low]!;
    const to = stops[low + 1]!;
    const mix = (c: 0 | 1 | 2) => Math.round(from[c] + (to[c] - from[c]) * (at - low));
    out[i] = (0xff << 24) | (mix(2) << 16) | (mix(1) << 8) | mix(0);
  }
  return out;
}

/** The least count above 0 and the most of a grid; both 0 where all are 0. */
export interface Extent { least: number; most: number }

export function extent(counts: number[][]): Extent {
  let least = Infinity;
  let most = 0;
  for (const row of counts) {
    for (const n of row) {
      if (n > most) {
        most = n;
      }
      if (n > 0 && n < least) {
        least = n;
      }
    }
  }
  return most > 0 ? { least, most } : { least: 0, most: 0 };
}

/** The ends of the scale: the most, and the least count or, where that is near, half of the most. */
export function ends({ least, most }: Extent): { low: number; most: number } {
  return { low: most > 0 ? Math.min(least, most / scale.ratio) : 0, most };
}

/**
 * The ramp index of a count, on a logarithmic scale from the low end to the most:
 * 0 for nothing, 255 for the most.
 */
export function level(count: number, range: Extent): number {
  const { low, most } = ends(range);
  if (count <= 0) {
    return 0;
  }
  if (count >= most) {
    return 255;
  }
  const share = Math.log(Math.max(count, low) / low) / Math.log(most / low);
  return scale.first + Math.floor((254 - scale.first) * share);
}

/** Counts to name beside the colours: 0, then from the low end to the most in equal ratios. */
export function marks(range: Extent): number[] {
  const { low, most } = ends(range);
  const steps = 4;
  const counts = [0];
  for (let i = 0; i <= steps && most > 0; i++) {
    const n = i === steps ? most : Math.round(low * (most / low) ** (i / steps));
    if (n > counts.at(-1)!) {
      counts.push(n);
    }
  }
  return counts;
}
