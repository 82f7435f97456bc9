// Which of psidecar's measures hold for the job, on how many of its connections, and
// what to do for the others.

import type { MeasureLine } from "./api";
import { table } from "./table";

/** "on", "on 3 of 4 connections" or "off". */
export function stateText(line: MeasureLine): string {
  return line.state === "part" ? `on ${line.on} of ${line.connections} connections` : line.state;
}

/** Why the measure does not hold, and what to do. */
export function whyText(line: MeasureLine): string {
  return (line.not ?? [])
    .map((g) => {
      const some = g.connections > 0 && g.connections < line.connections ? `${g.connections} connections: ` : "";
      return `${some}${g.why}${g.do ? ` → ${g.do}` : ""}`;
    })
    .join("; ");
}

/** What was asked for, by whom, and how much of a gradient is held back for it. */
export function settingText(line: MeasureLine): string {
  const steps = Math.sqrt((line.held_squares ?? 0) / (line.step_squares ?? 0));
  const held = Number.isFinite(steps) ? `; ${steps.toFixed(1)} steps' gradient is held back` : "";
  return [line.setting, line.from && `(${line.from})`].filter(Boolean).join(" ") + held;
}

export function drawMeasures(host: HTMLElement, lines: MeasureLine[]): void {
  table(
    host,
    [
      { title: "measure", text: (l) => l.measure },
      { title: "state", text: stateText, wraps: true },
      { title: "setting", text: settingText, wraps: true },
      { title: "why off, and what to do", text: whyText, wraps: true },
    ],
    lines,
    (l) => l.state === "part",
  );
}
