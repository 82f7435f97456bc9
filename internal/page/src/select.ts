// What is left of an answer when some workers and servers are chosen.

import type { Heatmap, Traffic } from "./api";
import { shows, type View } from "./view";

/** The heatmap of the workers that are shown; rows of times are made of them by who answers. */
export function pick(h: Heatmap, view: View): Heatmap {
  if (view.workers === "" || h.times) {
    return h;
  }
  const rows = h.workers.map((name) => shows(view.workers, name));
  return { ...h, workers: h.workers.filter((_, i) => rows[i]), counts: h.counts.filter((_, i) => rows[i]) };
}

/** The traffic between workers and servers that are shown. */
export function pickServers(t: Traffic, view: View): Traffic {
  const rows = t.workers.map((name) => shows(view.workers, name));
  const columns = t.servers.map((name) => shows(view.servers, name));
  const of = (counts: number[][]): number[][] => counts.filter((_, w) => rows[w]).map((row) => row.filter((_, s) => columns[s]));
  return {
    ...t, workers: t.workers.filter((_, i) => rows[i]), servers: t.servers.filter((_, i) => columns[i]),
    to_servers: of(t.to_servers), to_workers: of(t.to_workers), requests: of(t.requests),
  };
}

/** Counts as rows of a CSV file. */
export function columnsOf(rows: string[], columns: string[], counts: number[][]): string[][] {
  return [["", ...columns], ...rows.map((name, i) => [name, ...(counts[i] ?? []).map(String)])];
}
