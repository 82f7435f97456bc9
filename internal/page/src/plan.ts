// The plan of a job: what would move or is moving, what that is to save at each
// host, what came of it, and what was refused.

import type { Plan, PlanEpoch, PlanHost } from "./api";
import { bytes, count, duration, megabits } from "./format";
import { command, quoted } from "./copy";
import { facts, table, type Column } from "./table";

const modes = {
  proposes: "plans are only proposed; psidecar plan apply carries one out",
  acts: "plans are carried out",
  held: "on hold until a plan is applied, because one was rolled back or keys were restored home",
};

/** How long a host's link takes for so many bytes, in units that all hosts share. */
function takes(host: PlanHost, bytes: number): number {
  return bytes / (host.link_mbit || 1);
}

/** What the host moves in a step whose link that takes the longest. */
export function busiest(hosts: PlanHost[], of: (h: PlanHost) => number): number {
  const most = hosts.reduce<PlanHost | undefined>((most, h) => (most && takes(most, of(most)) >= takes(h, of(h)) ? most : h), undefined);
  return most ? of(most) : 0;
}

/** One line on the moves under way. */
export function movesText(epoch: PlanEpoch | undefined, proxies: number): string {
  if (epoch?.state !== "moving") {
    return "none";
  }
  const text = `epoch ${epoch.epoch}: ${count(epoch.moved_keys)} of ${count(epoch.keys)} keys moved, ${count(epoch.pending_keys)} to go`;
  return proxies > 0 ? text : `${text}; no proxy that can move keys is connected to the planner`;
}

function amount(n: number): string {
  return n > 0 ? bytes(n) : "–";
}

/** The command that carries out what is proposed; none where there is nothing to carry out. */
export function applyPlan(job: string, plan: Plan): string | undefined {
  const newest = plan.epochs[0];
  return newest?.state === "proposed" ? `psidecar plan apply --job ${quoted(job)} --epoch ${newest.epoch}` : undefined;
}

export function drawPlan(host: HTMLElement, plan: Plan, job: string): void {
  const newest = plan.epochs[0];
  const pairs: [string, string][] = [
    ["strategy", `${plan.strategy}; ${modes[plan.mode]}`],
    ["displaced", `${count(plan.displaced_keys)} keys are not at home`],
    ["moving", movesText(newest, plan.proxies)],
  ];
  if (plan.trouble) {
    pairs.push(["no new plan", plan.trouble]);
  }
  const unsure = plan.handlers.filter((h) => h.kind === "opaque" || h.kind === "unknown");
  if (unsure.length > 0) {
    pairs.push(["servers", unsure.map((h) => `server ${h.server}: ${h.kind}, ${h.message}`).join("; ")]);
  }
  host.replaceChildren(facts(pairs));
  const apply = applyPlan(job, plan);
  if (apply) {
    const line = document.createElement("p");
    line.append("This page is read-only. To carry out the plan, on the planner's host, or elsewhere with --planner and an operator's certificate: ", command(apply));
    host.append(line);
  }
  if (newest && newest.hosts.length > 0) {
    host.append(hostsTable(newest));
  }
  if (plan.epochs.length > 0) {
    host.append(epochsTable(plan.epochs));
  }
  const refused = plan.epochs.flatMap((e) => e.refused.map((r) => ({ epoch: e.epoch, ...r })));
  if (refused.length > 0) {
    host.append(refusalsTable(refused));
  }
}

function hostsTable(epoch: PlanEpoch): HTMLElement {
  const longest = Math.max(...epoch.hosts.map((h) => takes(h, h.before)), Number.MIN_VALUE);
  const share = (h: PlanHost, bytes: number) => takes(h, bytes) / longest;
  const links: Column<PlanHost>[] = epoch.hosts.some((h) => h.link_mbit)
    ? [{ title: "link", number: true, text: (h) => megabits(h.link_mbit ?? 0) }]
    : [];
  return titled(`Bytes per step at each host, epoch ${epoch.epoch}`, "plan-hosts", (into) =>
    table(
      into,
      [
        { title: "host", text: (h) => h.host },
        ...links,
        { title: "before", number: true, value: (h) => h.before, text: (h) => bytes(h.before), bar: (h) => share(h, h.before) },
        { title: "predicted", number: true, value: (h) => h.predicted, text: (h) => bytes(h.predicted), bar: (h) => share(h, h.predicted) },
        { title: "actual", number: true, value: (h) => h.actual, text: (h) => amount(h.actual), bar: (h) => share(h, h.actual) },
      ],
      [...epoch.hosts].sort((a, b) => takes(b, b.before) - takes(a, a.before)),
    ),
  );
}

function epochsTable(epochs: PlanEpoch[]): HTMLElement {
  return titled("Plans, newest first; bytes per step at the busiest host", "plan-epochs", (into) =>
    table(
      into,
      [
        { title: "epoch", number: true, value: (e) => e.epoch, text: (e) => String(e.epoch) },
        { title: "state", text: (e) => e.state },
        { title: "keys", number: true, value: (e) => e.keys, text: (e) => count(e.keys) },
        { title: "moved", number: true, value: (e) => e.moved_keys, text: (e) => count(e.moved_keys) },
        { title: "to go", number: true, text: (e) => (e.state === "moving" ? count(e.pending_keys) : "–") },
        { title: "before", number: true, text: (e) => amount(busiest(e.hosts, (h) => h.before)) },
        { title: "predicted", number: true, text: (e) => amount(busiest(e.hosts, (h) => h.predicted)) },
        { title: "actual", number: true, text: (e) => amount(busiest(e.hosts, (h) => h.actual)) },
        { title: "held p50", number: true, text: (e) => (e.held_p50 > 0 ? duration(e.held_p50) : "–") },
        { title: "reason", text: (e) => e.reason, wraps: true },
      ],
      epochs,
      (e) => e.refused.length > 0,
    ),
  );
}

function refusalsTable(refused: { epoch: number; reason: string; message: string; keys: number }[]): HTMLElement {
  return titled("Refused", "plan-refused", (into) =>
    table(
      into,
      [
        { title: "epoch", number: true, text: (r) => String(r.epoch) },
        { title: "keys", number: true, text: (r) => count(r.keys) },
        { title: "reason", text: (r) => r.reason },
        { title: "", text: (r) => r.message, wraps: true },
      ],
      refused,
      () => true,
    ),
  );
}

/** A table under a heading. */
function titled(title: string, id: string, draw: (into: HTMLElement) => void): HTMLElement {
  const box = document.createElement("div");
  const head = document.createElement("p");
  head.className = "hint";
  head.textContent = title;
  const into = document.createElement("div");
  into.id = id;
  draw(into);
  box.append(head, into);
  return box;
}
