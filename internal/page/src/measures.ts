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

export function drawMeasures(host: HTMLElement, lines: MeasureLine[]): void {
  table(
    host,
    [
      { title: "measure", text: (l) => l.measure },
      { title: "state", text: stateText, wraps: true },
      { title: "setting", text: (l) => [l.setting, l.from && `(${l.from})`].filter(Boolean).join(" "), wraps: true },
      { title: "why off, and what to do", text: whyText, wraps: true },
    ],
    lines,
    (l) => l.state === "part",
  );
}
