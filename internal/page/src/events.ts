// Moments at which something about a job changed, as marks on its curves and in words.

import type { History, Plan } from "./api";
import { clock, count } from "./format";

export interface Moment { at: number; what: string } // seconds since 1970

/** What an agent or a planner noted, and keys that plans moved, in order of time. */
export function moments(history: History | undefined, plan?: Plan): Moment[] {
  const noted = (history?.events ?? []).map((e) => ({ at: Date.parse(e.at) / 1000, what: e.what }));
  const moved = (plan?.epochs ?? []).filter((e) => e.moved_keys > 0 && e.made).map((e) => ({ at: Date.parse(e.made!) / 1000, what: `${count(e.moved_keys)} keys moved` }));
  const begin = history?.points[0] ? Date.parse(history.points[0].from) / 1000 : Infinity;
  return [...noted, ...moved].filter((m) => m.at >= begin).sort((a, b) => a.at - b.at);
}

/** How many of the last events are listed. */
const listed = 8;

export function drawEvents(host: HTMLElement, all: Moment[]): void {
  host.hidden = all.length === 0;
  host.replaceChildren(
    ...all.slice(-listed).reverse().map((m) => {
      const item = document.createElement("li");
      item.textContent = `${clock(m.at)} ${m.what}`;
      return item;
    }),
  );
}
