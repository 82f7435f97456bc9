// The runs of a job's name, to compare one with another.

import type { Run } from "./api";
import { bytes, count, digits, duration, percent } from "./format";
import { figure, table } from "./table";

/** How long a run has taken, in seconds, to its last message. */
export function took(run: Run): number {
  return Math.max(0, (Date.parse(run.last) - Date.parse(run.began)) / 1000);
}

export function drawRuns(host: HTMLElement, runs: Run[]): void {
  const fastest = Math.max(...runs.map((r) => r.steps_per_second));
  table(
    host,
    [
      { title: "started", text: (r) => new Date(r.began).toLocaleString(), value: (r) => Date.parse(r.began) },
      { title: "duration", text: (r) => (r.running ? "running" : duration(took(r))), value: took, number: true },
      { title: "run", text: (r) => r.run?.slice(0, 12) ?? "", whole: (r) => r.run ?? "" },
      figure<Run>("workers", (r) => r.workers, count),
      figure<Run>("servers", (r) => r.servers, count),
      figure<Run>("steps", (r) => r.steps, (n) => count(Math.round(n))),
      figure<Run>("steps/s", (r) => r.steps_per_second, digits, (r) => (fastest > 0 ? r.steps_per_second / fastest : 0)),
      figure<Run>("bytes per step", (r) => r.bytes_per_step, bytes),
      figure<Run>("left their hosts", (r) => (r.bytes ? r.left_host_bytes / r.bytes : NaN), percent),
      { title: "scheduler", text: (r) => r.job },
    ],
    runs,
  );
}
