// What becomes of the values of a job's pushes and pulls: the planner's rules,
// and what each codec would save and keep waiting, as tried on live traffic.

import type { CodecAdvice, CodecRow, Codecs } from "./api";
import { bytes, count, percent } from "./format";
import { command, quoted } from "./copy";
import { facts, figure, table } from "./table";

/** Norms of steps, in few digits. */
export function steps(n: number): string {
  return n === 0 ? "nothing" : n < 0.01 ? "< 0.01" : n.toPrecision(2);
}

/** One line on who follows the planner's rules. */
export function followersText({ hosts }: Pick<Codecs, "hosts">): string {
  if (hosts.length === 0) {
    return "no proxy follows this planner: start psidecar up or psidecar proxy --planner on the job's hosts";
  }
  const behind = hosts.filter((h) => !h.current);
  const names = behind.map((h) => `${h.host} (${h.refused ?? "not yet"})`);
  return `${hosts.length} proxies follow${names.length > 0 ? `; not up to date: ${names.join(", ")}` : ""}`;
}

/** Why there is nothing to show, or what is shown and how whole it is. */
export function adviceText(c: Codecs): string {
  const untried = c.hosts.filter((h) => h.untried);
  const why = untried.map((h) => ` ${h.host} could not try: ${h.untried}.`).join("");
  if (c.hosts.length === 0) {
    return "No results: proxies try codecs, and none follows this planner. Start psidecar up or psidecar proxy --planner on the job's hosts.";
  }
  if (!c.tried) {
    return "No results yet. A trial runs the job's traffic through each codec, in addition to the codecs in use. For some seconds it takes the proxies several times the CPU time of a codec, and it changes nothing.";
  }
  if (c.left_seconds > 0) {
    return `Trial in progress, ${Math.ceil(c.left_seconds)} s left.${why}`;
  }
  const missing = c.hosts.filter((h) => !h.reported);
  const late = missing.length > 0 ? ` ${missing.map((h) => h.host).join(", ")} has not reported.` : "";
  const a = c.advice;
  if (!a || a.push_bytes + a.pull_bytes === 0) {
    return `No traffic of this job passed the proxies during the trial: it was idle, has ended, or its connections do not use links between proxies.${why}${late}`;
  }
  const left = a.missed > 0 ? ` ${count(a.missed)} messages of connections beyond the limit were omitted.` : "";
  const untyped = a.untyped_bytes ? ` ${bytes(a.untyped_bytes)} of values are of an unknown type and were not tried; floats of type CHAR need --char-values.` : "";
  return `Tried for ${a.seconds} s on ${a.hosts} ${a.hosts === 1 ? "host" : "hosts"}: ${bytes(a.push_bytes)} of pushes (${count(a.pushes)}), ${bytes(a.pull_bytes)} of pulls.${left}${untyped}${why}${late}`;
}

function share(part: number, whole: number): number {
  return whole > 0 ? part / whole : NaN;
}

/** The command that turns a codec on which was tried; none for what is on anyway. */
export function applyCommand(job: string, codec: string, chars?: string): string | undefined {
  if (codec === "compact") {
    return undefined;
  }
  const flags = [...codec.split(", "), ...(chars ? [`char-values ${chars}`] : [])].map((part) => `--${part}`).join(" ");
  return `psidecar plan codecs set --job ${quoted(job)} ${flags} --act`;
}

function adviceTable(into: HTMLElement, a: CodecAdvice, job: string): void {
  const most = Math.max(...a.codecs.map((c) => c.waits), 1e-9);
  table(
    into,
    [
      { title: "codec", text: (c) => (c.codec === a.suggested ? `${c.codec} (suggested)` : c.codec) },
      figure<CodecRow>("pushes to", (c) => share(c.push_bytes, a.push_bytes), percent, (c) => Math.min(share(c.push_bytes, a.push_bytes) || 0, 1)),
      figure<CodecRow>("pulls to", (c) => share(c.pull_bytes, a.pull_bytes), percent, (c) => Math.min(share(c.pull_bytes, a.pull_bytes) || 0, 1)),
      figure<CodecRow>("saved", (c) => c.saved, percent, (c) => Math.max(c.saved, 0)),
      figure<CodecRow>("residual, in steps", (c) => c.waits, steps, (c) => c.waits / most),
      {
        title: "to enable it",
        text: (c) => applyCommand(job, c.codec, a.char_values) ?? "on by default",
        element(c) {
          const text = applyCommand(job, c.codec, a.char_values);
          const off = document.createElement("span");
          off.textContent = "on by default";
          return text ? command(text) : off;
        },
      },
    ],
    a.codecs,
  );
}

const svg = "http://www.w3.org/2000/svg";

function shape(name: string, attributes: Record<string, string | number>, text = ""): SVGElement {
  const out = document.createElementNS(svg, name);
  for (const [key, value] of Object.entries(attributes)) {
    out.setAttribute(key, String(value));
  }
  out.textContent = text;
  return out;
}

const width = 760;
const height = 280;
const area = { left: 52, right: 470, top: 12, bottom: 240 };
const names = { x: 500, apart: 15 };

export interface Point { row: CodecRow; x: number; y: number; label: number }

/**
 * Places of the codecs in the plot: saved to the right, waiting upwards. Names
 * stand beside it, one below the other in the order of their points; label is
 * where.
 */
export function places(rows: CodecRow[], most: number): Point[] {
  const points = rows.map((row) => ({
    row,
    x: area.left + Math.max(row.saved, 0) * (area.right - area.left),
    y: area.bottom - (most > 0 ? row.waits / most : 0) * (area.bottom - area.top),
    label: 0,
  }));
  let next = area.bottom;
  for (const p of [...points].sort((a, b) => b.y - a.y || b.x - a.x)) {
    p.label = Math.min(p.y, next);
    next = p.label - names.apart;
  }
  const above = Math.max(0, area.top - names.apart - next);
  return points.map((p) => ({ ...p, label: p.label + above }));
}

/** What each codec saves against what it keeps waiting. */
function plot(a: CodecAdvice): SVGElement {
  const most = Math.max(...a.codecs.map((c) => c.waits), 0);
  const points = places(a.codecs, most);
  const down = Math.max(height, ...points.map((p) => p.label + names.apart));
  const out = shape("svg", { viewBox: `0 0 ${width} ${down}`, role: "img", "aria-label": "bytes saved and residual, by codec", class: "codec-plot" });
  const write = (x: number, y: number, anchor: string, text: string) => out.append(shape("text", { x, y, "text-anchor": anchor }, text));
  for (let fifth = 0; fifth <= 5; fifth++) {
    const x = area.left + (fifth / 5) * (area.right - area.left);
    out.append(shape("line", { x1: x, x2: x, y1: area.top, y2: area.bottom, class: "rule" }));
    write(x, area.bottom + 17, "middle", `${20 * fifth}%`);
  }
  write(area.right, area.bottom + 34, "end", "bytes saved, of pushes and pulls");
  write(area.left - 8, area.bottom + 4, "end", "0");
  if (most > 0) {
    write(area.left - 8, area.top + 4, "end", steps(most));
  }
  const middle = (area.top + area.bottom) / 2;
  out.append(shape("text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" }, "residual, in steps"));
  for (const p of points) {
    out.append(shape("line", { x1: p.x, y1: p.y, x2: names.x - 4, y2: p.label, class: "leader" }), shape("circle", { cx: p.x, cy: p.y, r: 4 }));
    out.append(shape("text", { x: names.x, y: p.label + 4, class: "name" }, p.row.codec));
  }
  return out;
}

/** What the table's columns are, and what each codec does with what it leaves out. */
export const legendText =
  "Pushes to and pulls to: bytes that remain, relative to the messages as the job sends them. Residual: norm of the values not yet sent at the end of the trial, relative to the norm of all workers' pushes in a step; they are sent later. The codecs compact and unchanged are lossless, threshold adds the residual to later pushes, quantize rounds stochastically, pull-threshold and pull-quantize send with later pulls what they omit or round off, threshold-activations keeps only the largest values of each row, and what is pushed for them, wire rounds to 16 bits, and slim drops what it does not send.";

export function drawCodecs(host: HTMLElement, c: Codecs, job: string): void {
  const rules: [string, string][] = [
    ["rules", c.rules ?? "none from the planner (psidecar plan codecs set); the proxies' own flags apply"],
    ["followers", followersText(c)],
  ];
  const note = document.createElement("p");
  note.className = "hint";
  note.textContent = adviceText(c);
  host.replaceChildren(facts(rules), note);
  const a = c.advice;
  if (a && a.push_bytes + a.pull_bytes > 0) {
    const into = document.createElement("div");
    into.id = "codec-advice";
    adviceTable(into, a, job);
    into.title = "tried codecs";
    const legend = document.createElement("p");
    legend.className = "hint";
    legend.textContent = legendText;
    host.append(into, plot(a), legend);
  }
}
