// What to do for a job that runs, with the command: the next step that its measures, its plan
// and what was tried leave open. The page itself changes nothing.

import type { Alpha, Codecs, History, Job, Plan } from "./api";
import { applyCommand } from "./codecs";
import { command, quoted } from "./copy";
import { bytes, percent } from "./format";
import { applyPlan, busiest } from "./plan";
import { sumCommands } from "./sums";

export interface Advice { text: string; command?: string }

/** Share of a job's bytes below which there is nothing to gain on links. */
const little = 0.05;

/** Newest points of a history that say whether proxies send less now. */
const lately = 3;

/** What to do, most useful first; empty for a job that is over or stands still. */
export function advise(job: Job, plan?: Plan, codecs?: Codecs, alpha?: Alpha, history?: History): Advice[] {
  if (job.state === "over" || job.state === "stalled" || job.bytes === 0) {
    return [];
  }
  const left = job.left_host_bytes / job.bytes;
  if (left < little) {
    return [{ text: `${percent(left)} of the bytes leave their host: there is nothing to save on links.` }];
  }
  const out: Advice[] = [];
  const line = (name: string) => job.measures?.find((l) => l.measure === name);
  const moves = plan && plan.proxies > 0 ? applyPlan(job.job, plan) : undefined; // without proxies nothing carries it out
  const newest = plan?.epochs[0];
  if (moves && newest) {
    out.push({ text: `Moving ${newest.keys} keys takes the busiest host from ${bytes(busiest(newest.hosts, (h) => h.before))} to ${bytes(busiest(newest.hosts, (h) => h.predicted))} per step.`, command: moves });
  }
  const sums = alpha?.sums && alpha.sums.proposed.length > 0 ? sumCommands(job.job, alpha.sums).find((c) => c.includes(" apply ")) : undefined;
  if (sums) {
    out.push({ text: "Sums of each host's pushes would take bytes from the busiest host.", command: sums });
  }
  const carries = ["carry", "compact"].map(line).find((l) => l);
  if (!carries || carries.state === "off") {
    const saved = history?.points.slice(-lately).filter((p) => p.saved_bytes_per_second).at(-1)?.saved_bytes_per_second;
    if (!carries && saved) {
      out.push({ text: `Proxies send ${bytes(saved)}/s less than the job gives them. With --planner they also report here what holds on which connection, and can move keys.` });
      return out;
    }
    const rate = bytes(job.bytes_per_second * left);
    const why = carries?.not?.[0];
    if (why?.reason === "fast_link") {
      out.push({ text: `${rate}/s leave their hosts as they are: the link is fast. Connections are taken in when it is the bottleneck.` });
      return out;
    }
    out.push({
      text: `${rate}/s leave their hosts as they are${why ? ` (${why.why})` : ""}. A proxy on every host sends them in fewer bytes, without loss.`,
      command: "psidecar up --adopt --insecure",
    });
    return out;
  }
  if (carries.state === "part" && carries.not?.[0]?.do) {
    out.push({ text: `${carries.not[0].connections} of ${carries.connections} connections are not carried: ${carries.not[0].why}. ${capital(carries.not[0].do)}.` });
  }
  const tried = codecs?.advice;
  const best = tried?.codecs.find((c) => c.codec === tried.suggested && c.codec !== "compact");
  const isLossy = line("threshold")?.state !== "off" || line("slim")?.state === "on";
  if (best && !isLossy) {
    const price = best.waits > 0 ? `, and ${best.waits.toFixed(1)} steps' gradient waits meanwhile: try your model with it first` : " and loses nothing";
    out.push({ text: `Of the codecs tried, ${best.codec} saves ${percent(best.saved)} of the bytes${price}.`, command: applyCommand(job.job, best.codec, tried?.char_values)! });
  } else if (codecs && codecs.hosts.length > 0 && !codecs.tried && !isLossy) {
    out.push({ text: "What each codec would save can be tried on live traffic; it changes nothing.", command: `psidecar plan codecs try --job ${quoted(job.job)}` });
  }
  return out;
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function drawAdvice(host: HTMLElement, all: Advice[]): void {
  // Drawn anew only where it differs, so that a command can be selected meanwhile.
  const now = JSON.stringify(all);
  if (host.dataset["advice"] === now) {
    return;
  }
  host.dataset["advice"] = now;
  document.getElementById("advice-hint")!.hidden = !all.some((a) => a.command);
  host.replaceChildren(
    ...all.map((a) => {
      const line = document.createElement("p");
      line.append(`${a.text} `);
      if (a.command) {
        line.append(command(a.command));
      }
      return line;
    }),
  );
}
