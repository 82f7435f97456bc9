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

/**
 * The ramp index of a count on a logarithmic scale: 0 for nothing, 1 at least
 * for anything else, 255 for `max`.
 */
export function level(count: number, max: number): number {
  if (count <= 0 || max <= 0) {
    return 0;
  }
  if (count >= max) {
    return 255;
  }
  return 1 + Math.floor((254 * Math.log1p(count)) / Math.log1p(max));
}
