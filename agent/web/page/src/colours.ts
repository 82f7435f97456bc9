// The colour ramp of the heatmaps: one hue-shifting ramp whose lightness
// changes evenly, so that it reads in grey and by colour-blind eyes too. On a
// light page nothing is white and much is dark; on a dark page the reverse.

type RGB = readonly [number, number, number];

const light: readonly RGB[] = [
  [247, 248, 250], [208, 225, 235], [145, 196, 202], [80, 158, 171],
  [45, 115, 142], [42, 72, 112], [33, 33, 72],
];
const dark: readonly RGB[] = [
  [22, 25, 32], [34, 52, 82], [36, 87, 117], [42, 125, 136],
  [85, 166, 140], [164, 204, 131], [246, 236, 150],
];

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

// The least count takes this place of the ramp, so that it is told from nothing.
const first = 24;

/**
 * The ramp index of a count, on a logarithmic scale from the least to the most:
 * 0 for nothing, 255 for the most.
 */
export function level(count: number, { least, most }: Extent): number {
  if (count <= 0) {
    return 0;
  }
  if (count >= most) {
    return 255;
  }
  const share = Math.log(Math.max(count, least) / least) / Math.log(most / least);
  return first + Math.floor((254 - first) * share);
}
