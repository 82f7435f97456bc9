// The page's controls: what they show of the view, and what they change in it.

import type { Job } from "./api";
import type { View } from "./view";

export function element<E extends HTMLElement>(id: string): E {
  return document.getElementById(id) as E;
}

/** Seconds since 1970 as a datetime-local input has them. */
export function localTime(seconds: string): string {
  if (seconds === "") {
    return "";
  }
  const t = new Date(Number(seconds) * 1000);
  const two = (n: number): string => String(n).padStart(2, "0");
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}T${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

/** What such an input says, in seconds since 1970. */
export function secondsOf(text: string): string {
  const at = Date.parse(text);
  return Number.isFinite(at) ? String(Math.floor(at / 1000)) : "";
}

type Selected = "measure" | "blocks" | "by" | "beside" | "besidejob" | "a" | "b";
const selects: Selected[] = ["measure", "blocks", "by", "beside", "besidejob", "a", "b"];
const moments = ["from", "to", "besidefrom", "besideto"] as const;

/** Connects the controls to the view. */
export function bindControls(go: (change: Partial<View>) => void): void {
  for (const id of selects) {
    element(id).addEventListener("change", (event) => go({ [id]: (event.target as HTMLSelectElement).value }));
  }
  for (const id of moments) {
    element(id).addEventListener("change", (event) => go({ [id]: secondsOf((event.target as HTMLInputElement).value) }));
  }
  element("range").addEventListener("change", (event) => go({ range: (event.target as HTMLSelectElement).value, from: "", to: "" }));
  element("untimed").addEventListener("click", () => go({ range: "", from: "", to: "" }));
}

/** Has the controls show the view. */
export function showControls(view: View): void {
  const isChosen = view.from !== "" || view.to !== "";
  const range = element<HTMLSelectElement>("range");
  range.querySelector<HTMLOptionElement>("option[value=chosen]")!.hidden = !isChosen;
  range.value = isChosen ? "chosen" : view.range;
  for (const id of ["measure", "blocks", "by", "beside"] as const) {
    element<HTMLSelectElement>(id).value = view[id];
  }
  for (const id of moments) {
    const input = element<HTMLInputElement>(id);
    if (input !== document.activeElement) {
      input.value = localTime(view[id]);
    }
  }
  for (const kind of ["time", "job", "worker"]) {
    element(`beside-${kind}`).hidden = view.beside !== kind;
  }
  element<HTMLDetailsElement>("compare").open ||= view.beside !== "";
  element<HTMLDetailsElement>("moments").open ||= isChosen;
  const brush = element<HTMLSelectElement>("brush");
  brush.closest("label")!.hidden = view.beside !== "time";
  if (view.beside !== "time") {
    brush.value = "shown";
  }
  element<HTMLButtonElement>("untimed").disabled = view.range === "" && !isChosen;
}

/** Fills a list to choose from, unless it has these entries already. */
export function fill(select: HTMLSelectElement, entries: [value: string, label: string][], chosen: string): void {
  const listed = [...select.options].map((o) => `${o.value}\t${o.text}`);
  if (entries.map(([v, l]) => `${v}\t${l}`).join("\n") !== listed.join("\n")) {
    select.replaceChildren(...entries.map(([value, label]) => new Option(label, value)));
  }
  select.value = chosen;
}

/** A job's name, where it has one, with its scheduler's address: of one name there may be several. */
export function jobLabel(job: Job): string {
  const name = job.name ? `${job.name}, ${job.job}` : job.job;
  return job.state === "over" ? `${name} (over)` : name;
}

