import { describe, expect, it } from "vitest";
import { ends, extent, level, marks, ramp } from "./colours";
import scale from "../draw/scale.json";
import { bytes, count, digits, duration, key, percent } from "./format";
import { middles, paint } from "./grid";
import { adviceText, followersText, places, steps } from "./codecs";
import type { Job, Latency } from "./api";
import { jobLabel } from "./controls";
import { jobStatus, ofInterest } from "./panels";
import { busiest, movesText } from "./plan";
import { placeColumns, placed, placesOf } from "./places";
import { took } from "./runs";
import { curve } from "./skew";
import { busiestText, rangeCommand, rulesText, sumCommands } from "./sums";
import { format, parse, span } from "./view";
import { yRange } from "./curves";

describe("the axis of curves", () => {
  it("shows what is below 0", () => {
    expect([[0, 0], [3, 10], [null, null], [-10, 100], [-10, -5]].map(([least, most]) => yRange(least!, most!)))
      .toEqual([[0, 1], [0, 10.8], [0, 1], [-10.8, 108], [-10.8, 0]]);
  });
});

describe("numbers", () => {
  it("are short but keep what matters", () => {
    expect([0, 7, 9999, 12345, 1.5e6, 999_999].map(count)).toEqual(["0", "7", "9999", "12.3 k", "1.50 M", "1.00 M"]);
    expect([0, 999, 1536, 2e9].map(bytes)).toEqual(["0 B", "999 B", "1.54 kB", "2.00 GB"]);
    expect([0, 2, 0.0123, 4.5e-6, 3e-9].map(duration)).toEqual(["0", "2.00 s", "12.3 ms", "4.50 µs", "3.00 ns"]);
    expect([119, 119.6, 125, 7199, 7200, 40_000, 200_000].map(duration)).toEqual(["119 s", "2 min", "2 min 5 s", "119 min 59 s", "2 h", "11 h 6 min", "2 d 7 h"]);
    expect([0, 0.5, 12.345, 999.6, 1234.5, 12345.6].map(digits)).toEqual(["0.00", "0.500", "12.3", "1000", "1235", "12.3 k"]);
    expect([0.5, NaN].map(percent)).toEqual(["50.0%", "–"]);
  });
  it("keep all digits of a 64 bit key", () => {
    expect(key(18446744073709551615n).replaceAll("\u202f", "")).toBe("18446744073709551615");
  });
});

describe("colours", () => {
  it("have the places that terminal and PNG give them", () => {
    for (const { least, most, low, marks: named, levels } of scale.cases) {
      expect(ends({ least, most }).low).toBe(low);
      expect(marks({ least, most })).toEqual(named);
      for (const [n, at] of levels) {
        expect(level(n!, { least, most })).toBe(at);
      }
    }
  });
  it("know the range of a grid", () => {
    expect(extent([[0, 7], [3, 0]])).toEqual({ least: 3, most: 7 });
    expect(extent([[0], []])).toEqual({ least: 0, most: 0 });
  });
  it("change lightness one way", () => {
    for (const isDark of [false, true]) {
      const lightness = [...ramp(isDark)].map((p) => 0.2126 * (p & 255) + 0.7152 * ((p >> 8) & 255) + 0.0722 * ((p >> 16) & 255));
      const sorted = [...lightness].sort((a, b) => (isDark ? a - b : b - a));
      expect(lightness).toEqual(sorted);
    }
  });
});

describe("the grid", () => {
  it("has a pixel a cell, row by row", () => {
    const colours = Uint32Array.from({ length: 256 }, (_, i) => i);
    expect([...paint([[0, 10], [10, 0]], 2, colours)]).toEqual([0, 255, 255, 0]); // the only count is the most
  });
  it("names the middles of evenly chosen cells", () => {
    expect(middles(3, 10)).toEqual([0.5, 1.5, 2.5]);
    expect(middles(1000, 4)).toEqual([0.5, 250.5, 500.5, 750.5]);
    expect(middles(0, 4)).toEqual([]);
    expect(middles(5, 0)).toEqual([0.5]);
  });
});

describe("the skew curve", () => {
  it("ends at all accesses", () => {
    expect(curve([{ keys: 1, accesses: 50 }, { keys: 10, accesses: 100 }])).toEqual([[1, 10], [0.5, 1]]);
    expect(curve([])).toEqual([[], []]);
  });
});

describe("the view", () => {
  it("survives the address line", () => {
    const view = {
      job: "10.0.0.1:9000", range: "60", from: "1700000000", to: "1700000060", measure: "bytes", blocks: "64", first: "0", last: "18446744073709551615",
      by: "time", workers: "worker0,worker3", servers: "server1", sort: "servers~p99~down;keys~key~up",
      beside: "time", besidejob: "10.0.0.2:9000", besidefrom: "1", besideto: "2", a: "worker0", b: "worker1",
    };
    expect(parse(format(view))).toEqual(view);
    expect(format(parse(""))).toBe("#");
    expect(parse("#nonsense=1&measure=pulls").measure).toBe("pulls");
  });
  it("asks for seconds back from now", () => {
    expect(span(parse("#job=j&range=60"))).toEqual({ job: "j", from: "-60" });
    expect(span(parse("#job=j"))).toEqual({ job: "j", from: "" });
    expect(span(parse("#job=j&range=60&from=5&to=9"))).toEqual({ job: "j", from: "5", to: "9" });
  });
});

describe("a plan", () => {
  const epoch = { epoch: 3, state: "moving", reason: "", keys: 2000, moved_keys: 1500, moved_bytes: 0, pending_keys: 480, hosts: [], refused: [], held_p50: 0, held_p99: 0 };
  it("says what moves", () => {
    expect(movesText(epoch, 4)).toBe("epoch 3: 1500 of 2000 keys moved, 480 to go");
    expect([movesText({ ...epoch, state: "done" }, 0), movesText(undefined, 0)]).toEqual(["none", "none"]);
  });
  it("says when nobody carries it out", () => {
    expect(movesText({ ...epoch, moved_keys: 0, pending_keys: 2000 }, 0)).toBe(
      "epoch 3: 0 of 2000 keys moved, 2000 to go; no proxy that can move keys is connected to the planner");
  });
  it("knows the busiest host", () => {
    const hosts = [{ host: "a", before: 5, predicted: 3, actual: 0 }, { host: "b", before: 9, predicted: 1, actual: 0 }];
    expect([busiest(hosts, (h) => h.before), busiest(hosts, (h) => h.predicted), busiest([], (h) => h.before)]).toEqual([9, 3, 0]);
    const links = hosts.map((h, i) => ({ ...h, link_mbit: [1000, 10000][i] }));
    expect([busiest(links, (h) => h.before), busiest(links, (h) => h.predicted)]).toEqual([5, 3]);
  });
});

describe("places", () => {
  const node = (name: string, host?: string, pod?: string) => ({ name, host, pod_name: pod === undefined ? undefined : { namespace: "train", name: pod, node: "node-7" } });
  const job = (...nodes: ReturnType<typeof node>[]) => ({ nodes }) as unknown as Parameters<typeof placesOf>[0];
  it("name pods and hosts where they are known", () => {
    const places = placesOf(job(node("worker0", "host-1", "w-0"), node("worker1", "host-2"), node("worker2")));
    expect(["worker0", "worker1", "worker2"].map((n) => placed(n, places))).toEqual(["worker0 (train/w-0 on node-7)", "worker1 (on host-2)", "worker2"]);
    expect(placeColumns(places).map((c) => [c.title, c.text({ name: "worker1" })])).toEqual([["pod", ""], ["on", "host-2"]]);
  });
  it("take no room where they are not", () => {
    expect(placeColumns(placesOf(job(node("worker0"))))).toEqual([]);
    expect(placeColumns(placesOf({ ...job(), nodes: null }))).toEqual([]);
  });
});

describe("names", () => {
  const job = (more: object) => ({ job: "10.0.0.1:9000", ...more }) as unknown as Parameters<typeof jobLabel>[0];
  it("stand before the scheduler's address, which tells jobs of one name apart", () => {
    expect([job({}), job({ name: "ads/ctr" }), job({ name: "ads/ctr", state: "over" })].map(jobLabel)).toEqual([
      "10.0.0.1:9000",
      "ads/ctr, 10.0.0.1:9000",
      "ads/ctr, 10.0.0.1:9000 (over)",
    ]);
  });
  it("have runs, which take as long as they spoke", () => {
    const run = { began: "2026-11-23T05:00:00.5Z", last: "2026-11-23T05:01:10Z" } as Parameters<typeof took>[0];
    expect(took(run)).toBe(69.5);
    expect(took({ ...run, last: "0001-01-01T00:00:00Z" })).toBe(0); // it has said nothing yet
  });
});

describe("the codecs", () => {
  const none = { hosts: [], tried: false, left_seconds: 0 };
  const host = { host: "host-0", current: true, reported: true };
  const advice = { seconds: 10, hosts: 1, pushes: 40, push_bytes: 4e6, pull_bytes: 2e6, missed: 0, codecs: [] };
  it("say what is missing, and what to turn on", () => {
    expect(adviceText(none)).toContain("Start psidecar up");
    expect(followersText(none)).toContain("no proxy follows");
    expect(adviceText({ ...none, hosts: [host] })).toContain("No results yet");
    expect(adviceText({ ...none, hosts: [host], tried: true, left_seconds: 3.2 })).toContain("4 s left");
    expect(adviceText({ ...none, hosts: [host], tried: true })).toContain("No traffic of this job passed");
    expect(adviceText({ hosts: [host, { ...host, host: "host-1", reported: false }], tried: true, left_seconds: 0, advice })).toBe(
      "Tried for 10 s on 1 host: 4.00 MB of pushes (40), 2.00 MB of pulls. host-1 has not reported.",
    );
    expect(adviceText({ hosts: [{ ...host, untried: "it has no codec for values" }], tried: true, left_seconds: 0 })).toContain("host-0 could not try: it has no codec for values.");
    expect(followersText({ ...none, hosts: [host, { ...host, host: "host-1", current: false, refused: "no" }] })).toBe("2 proxies follow; not up to date: host-1 (no)");
  });
  it("tell nothing from a little", () => {
    expect([0, 0.001, 0.5, 12.34].map(steps)).toEqual(["nothing", "< 0.01", "0.50", "12"]);
  });
  it("have names that do not lie over each other", () => {
    const rows = [0.9, 0.91, 0.9, 0.2].map((saved, i) => ({ codec: `c${i}`, push_bytes: 1, pull_bytes: 1, saved, waits: i % 2 }));
    const points = places(rows, 1);
    const labels = points.map((p) => p.label).sort((a, b) => a - b);
    labels.slice(1).forEach((label, i) => expect(label - labels[i]!).toBeGreaterThanOrEqual(12));
    expect(labels[0]).toBeGreaterThanOrEqual(0);
    expect(points[3]!.x).toBeLessThan(points[0]!.x);
    expect(points[1]!.y).toBeLessThan(points[0]!.y);
  });
});

describe("sums", () => {
  const host = { form: "host" };
  const some = [{ keys: "0-99", form: "host" }, { form: "none" }];
  const none = { rules: [], proposed: [], acts: false, hosts: [] };
  it("are rules in words", () => {
    expect([[host], some].map(rulesText)).toEqual(["all summed", "keys 0-99 summed, others one by one"]);
  });
  it("have the commands that change something", () => {
    const [apply, clear] = ["apply", "clear"].map((verb) => `psidecar plan aggregate ${verb} --job 10.0.0.1:9000 --act`);
    const of = (rules: typeof some, proposed: typeof some) => sumCommands("10.0.0.1:9000", { ...none, rules, proposed });
    expect(of([], [])).toEqual([]);
    expect(of([], some)).toEqual([apply]);
    expect(of(some.map((r) => ({ ...r, by: "planner" })), some)).toEqual([clear]);
    expect(of([{ ...some[0]!, keys: "0-9" }, some[1]!], some)).toEqual([apply, clear]);
  });
  it("have one for a range whose rule is not what is chosen", () => {
    const range = { first_text: "5", last_text: "18446744073709551615", keys: 3, alpha: 1, bytes: 12 };
    const of = (chosen: string, now?: string) => rangeCommand("ads/ctr", { ...range, chosen, now });
    expect(of("host_sums")).toBe("psidecar plan aggregate apply --job ads/ctr --keys 5-18446744073709551615 --form host --act");
    expect(of("servers", "host")).toContain("--form none");
    expect(of("host_sums", "part")).toContain("--form host");
    expect([of("host_sums", "host"), of("servers", "none"), of("servers")]).toEqual([undefined, undefined, undefined]);
  });
  it("say what they save at the busiest machine, and how long its link takes", () => {
    const alpha = { alpha: 1, bytes: 1, workers: 4, machines: 2, ranges: [], forms: { servers: 4000 }, chosen_bytes: 1000 };
    expect(busiestText(alpha)).toContain("4.00 kB per step without");
    expect(busiestText(alpha)).toContain("; 1.00 kB with the chosen forms");
    expect(busiestText({ ...alpha, busiest: { servers: "host-1" }, seconds: { servers: 0.002 }, chosen_seconds: 0.0005 })).toMatch(/^4.00 kB, 2.00 ms per step at host-1 .*; 1.00 kB, 500 µs with the chosen forms/);
    expect(busiestText({ ...alpha, chosen_bytes: 4000 })).not.toContain("chosen forms");
  });
});

it("shows a job that runs before one that is over, and says why one stalls", () => {
  const job = (name: string, state: string, more: Partial<Job> = {}): Job => ({
    job: name, state, dialect: "dmlc", servers: 2, workers: 2, nodes: [], accesses: 0, distinct_keys: 0, exact: true, sampled_one_in: 1,
    bytes: 0, left_host_bytes: 0, steps_per_second: 0, bytes_per_second: 0, stragglers: [],
    connections: { synced: 1, unsynced: 0, missed_bytes: 0, unplaced: 0 },
    latency: { count: 0, mean: 0, p50: 0, p90: 0, p99: 0, p999: 0, max: 0 } as Latency,
    ...more,
  });
  expect(ofInterest([job("a", "over"), job("b", "running")])?.job).toBe("b");
  expect(ofInterest([job("a", "over")])?.job).toBe("a");
  const what = "stalled for 12 s: worker3 waits for server1";
  const said = jobStatus(job("c", "stalled", { what, cause: "server1" }));
  expect(said.isBad && said.text.startsWith(what)).toBe(true);
  expect(jobStatus(job("d", "running")).isBad).toBe(false);
});
