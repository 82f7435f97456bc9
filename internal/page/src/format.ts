// Numbers as people read them.

const siPrefixes = ["", "k", "M", "G", "T", "P", "E"];

/** 1234567 -> "1.23 M"; whole numbers under 10,000 stay as they are. */
export function count(value: number): string {
  if (Math.abs(value) < 10_000) {
    return Number.isInteger(value) ? String(value) : digits(value);
  }
  return scaled(value, "");
}

/** A rate, in three digits or whole: 12.345 -> "12.3", 1234.5 -> "1235". */
export function digits(value: number): string {
  return Math.abs(value) < 999.5 ? value.toPrecision(3) : count(Math.round(value));
}

/** 1536000 -> "1.54 MB". */
export function bytes(value: number): string {
  return value < 1000 ? `${Math.round(value)} B` : scaled(value, "B");
}

/** A link's speed: 25000 -> "25 Gbit/s". */
export function megabits(value: number): string {
  return value < 1000 ? `${Math.round(value)} Mbit/s` : `${value / 1000} Gbit/s`;
}

function scaled(value: number, unit: string): string {
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < siPrefixes.length - 1) {
    value /= 1000;
    step++;
  }
  return `${value.toPrecision(3)} ${siPrefixes[step]}${unit}`.trim();
}

/** 0.0123 -> "1.23%". */
export function percent(share: number): string {
  if (!Number.isFinite(share)) {
    return "–";
  }
  return `${(share * 100).toPrecision(3)}%`;
}

/** Seconds -> "12.3 ms", "2 min 5 s", "3 h 10 min", "4 d 1 h". */
export function duration(seconds: number): string {
  if (seconds === 0) {
    return "0";
  }
  if (seconds >= 119.5) {
    return long(Math.round(seconds));
  }
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]] as const) {
    if (seconds >= size) {
      return `${(seconds / size).toPrecision(3)} ${unit}`;
    }
  }
  return `${(seconds * 1e9).toPrecision(3)} ns`;
}

function long(seconds: number): string {
  const [minutes, hours, days] = [seconds / 60, seconds / 3600, seconds / 86400].map(Math.floor) as [number, number, number];
  const two = (n: number, unit: string, less: number, lesser: string): string => `${n} ${unit}${less > 0 ? ` ${less} ${lesser}` : ""}`;
  if (minutes < 120) {
    return two(minutes, "min", seconds % 60, "s");
  }
  return hours < 48 ? two(hours, "h", minutes % 60, "min") : two(days, "d", hours % 24, "h");
}

/** A key of up to 64 bits, in groups of three digits. */
export function key(value: bigint): string {
  return value.toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** A long key in few characters: its first and last digits, which differ most between neighbours. */
export function shortKey(value: bigint): string {
  const text = value.toString();
  return text.length <= 12 ? key(value) : `${text.slice(0, 5)}…${text.slice(-4)}`;
}

/** The first key of a heatmap's block, for its axis. */
export function blockKey(blocks: { first_text: string }[], at: number): string {
  return shortKey(BigInt(blocks[at]!.first_text));
}

/** A moment as the wall clock of whoever looks says it. */
export function clock(seconds: number): string {
  const t = new Date(seconds * 1000);
  return [t.getHours(), t.getMinutes(), t.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
}
