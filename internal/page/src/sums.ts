// The forms in which ranges of a job's keys can be kept the same on all machines, what each
// moves, which is chosen, and the planner's rules on sums of hosts' pushes.

import type { Alpha, AlphaRange, Compared, SumRule, SumRules } from "./api";
import { followersText } from "./codecs";
import { command, quoted } from "./copy";
import { bytes, count, duration, shortKey } from "./format";
import { facts, figure, table, type Column } from "./table";

/** The forms as people call them, in the order in which they are shown. */
export const forms: Record<string, string> = { servers: "servers", host_sums: "host sums", all_reduce: "all-reduce", all_gather: "all-gather" };

/** Rules in words. */
export function rulesText(rules: SumRule[]): string {
  const words = (r: SumRule): string => (r.form === "host" ? "summed" : "one by one");
  const texts = rules.map((r) => (r.keys ? `keys ${r.keys} ${words(r)}` : `${rules.length > 1 ? "others" : "all"} ${words(r)}`));
  return texts.join(", ");
}

function isSame(a: SumRule[], b: SumRule[]): boolean {
  return a.length === b.length && a.every((r, i) => r.form === b[i]!.form && r.keys === b[i]!.keys);
}

/** The commands that set what is proposed, where that is not so already, and that drop the rules, where there are any. */
export function sumCommands(job: string, sums: SumRules): string[] {
  const change = (verb: string): string => `psidecar plan aggregate ${verb} --job ${quoted(job)} --act`;
  const isNew = sums.proposed.length > 0 && !isSame(sums.proposed, sums.rules);
  return [...(isNew ? [change("apply")] : []), ...(sums.rules.length > 0 ? [change("clear")] : [])];
}

/** The command that has one range be kept as is chosen for it; none where that is so, or where it is nothing but the default. */
export function rangeCommand(job: string, r: AlphaRange): string | undefined {
  const form = r.chosen === "host_sums" ? "host" : "none";
  if (r.now === form || (form === "none" && !r.now)) {
    return undefined;
  }
  return `psidecar plan aggregate apply --job ${quoted(job)} --keys ${r.first_text}-${r.last_text} --form ${form} --act`;
}

function moved(bytesMoved: number, seconds?: number): string {
  return bytes(bytesMoved) + (seconds ? `, ${duration(seconds)}` : "");
}

/** What the busiest machine moves in a form. */
export function costText(c: Compared, form: string): string {
  return moved(c.forms?.[form] ?? 0, c.seconds?.[form]);
}

/** What the busiest machine moves as it is, and would as is proposed. */
export function busiestText(a: Alpha): string {
  const host = a.busiest?.["servers"];
  const now = `${costText(a, "servers")} per step${host ? ` at ${host}` : ""} without summed pushes and shared pulls`;
  const then = a.chosen_bytes ?? 0;
  return then < (a.forms?.["servers"] ?? 0) ? `${now}; ${moved(then, a.chosen_seconds)} with the chosen forms` : now;
}

const states: Record<string, string> = { host: "summed", none: "one by one", part: "mixed" };

export const sumsLegend =
  "Bytes of values that the busiest machine sends and receives per step. The busiest machine is the one whose link takes the longest or, if no link speed is known, the one that transfers the most. Servers: each worker pulls and pushes the values that it uses. Host sums: each host pulls the values that its workers use once (--share-pulls) and pushes their sum (--aggregate). psidecar supports these two, and chooses host sums where they save at least a twentieth. All-reduce and all-gather would require a different job. The workers of a host are assumed to use values independently of each other.";

function rangesTable(into: HTMLElement, a: Alpha, job: string): void {
  const most = Math.max(...a.ranges.flatMap((r) => Object.values(r.seconds ?? r.forms ?? {})), Number.MIN_VALUE);
  const weight = (r: AlphaRange, form: string): number => (r.seconds ?? r.forms)?.[form] ?? 0;
  const costs = Object.entries(forms).map(([form, title]): Column<AlphaRange> => ({
    title,
    number: true,
    value: (r) => r.forms?.[form] ?? 0,
    text: (r) => costText(r, form),
    bar: (r) => weight(r, form) / most,
  }));
  const hosts: Column<AlphaRange>[] = a.busiest ? [{ title: "busiest host with servers", text: (r) => r.busiest?.["servers"] ?? "" }] : [];
  table(
    into,
    [
      { title: "keys", text: (r) => r.name ?? `${shortKey(BigInt(r.first_text))} to ${shortKey(BigInt(r.last_text))}`, whole: (r) => `${r.first_text}-${r.last_text}`, value: (r) => Number(r.first_text) },
      figure<AlphaRange>("number", (r) => r.keys, count),
      figure<AlphaRange>("values", (r) => r.bytes, bytes),
      figure<AlphaRange>("alpha", (r) => r.alpha, (n) => String(Number(n.toPrecision(3)))),
      ...costs,
      ...hosts,
      { title: "least", text: (r) => forms[r.least ?? ""] ?? "" },
      { title: "chosen", text: (r) => forms[r.chosen ?? ""] ?? "" },
      { title: "rule", text: (r) => states[r.now ?? ""] ?? "none" },
      {
        title: "to change the rule",
        text: (r) => rangeCommand(job, r) ?? "",
        element(r) {
          const text = rangeCommand(job, r);
          return text ? command(text) : document.createElement("span");
        },
      },
    ],
    a.ranges,
  );
}

export function drawSums(host: HTMLElement, a: Alpha, job: string): void {
  const sums = a.sums!;
  const pairs: [string, string][] = [
    ["busiest machine", busiestText(a)],
    ["proposed", sums.proposed.length > 0 ? rulesText(sums.proposed) : "no sums: they would save the busiest machine less than a twentieth of every range"],
    ["rules", sums.rules.length > 0 ? `${rulesText(sums.rules)}${sums.rules.every((r) => r.by === "planner") ? ", set by the planner" : ""}` : "none; the proxies' own flags apply"],
    ["set by", sums.acts ? "the planner, unless rules are set manually" : "manually; this planner only proposes (without --act)"],
    ["followers", followersText({ hosts: sums.hosts })],
  ];
  if (a.even) {
    pairs.push(["servers", "the hosts of some are unknown: assumed to be on all machines, with parameters spread evenly"]);
  }
  host.replaceChildren(facts(pairs));
  for (const text of sumCommands(job, sums)) {
    const line = document.createElement("p");
    line.append(text.includes(" apply ") ? "To apply the proposal: " : "To drop the rules: ", command(text));
    host.append(line);
  }
  const into = document.createElement("div");
  into.id = "sum-ranges";
  into.title = "forms by key range";
  rangesTable(into, a, job);
  const legend = document.createElement("p");
  legend.className = "hint";
  legend.textContent = sumsLegend;
  host.append(into, legend);
}
