import { describe, expect, it } from "vitest";
import { advise } from "./advice";
import type { Codecs, History, Job, MeasureLine, Plan } from "./api";
import { moments } from "./events";
import { means } from "./panels";
import { remoteWorkers } from "./places";

const latency = { count: 0, mean: 0, p50: 0, p90: 0, p99: 0, p999: 0, max: 0 };
const job = (more: Partial<Job>): Job => ({
  job: "10.0.0.1:9000", dialect: "dmlc", servers: 2, workers: 2, nodes: [], connections: { synced: 4, unsynced: 0, missed_bytes: 0, unplaced: 0 }, accesses: 1, distinct_keys: 1,
  exact: true, sampled_one_in: 1, bytes: 1000, left_host_bytes: 500, steps_per_second: 10, bytes_per_second: 2e6, latency, stragglers: [], state: "running", ...more,
});
const line = (measure: string, state: string, more: Partial<MeasureLine> = {}): MeasureLine => ({ measure, state, on: state === "off" ? 0 : 4, connections: 4, not: [], ...more });
const codecs = (more: Partial<Codecs>): Codecs => ({ hosts: [{ host: "a", current: true, reported: true }], tried: false, left_seconds: 0, ...more });
const carried = job({ measures: [line("carry", "on"), line("compact", "on"), line("threshold", "off")] });

describe("advice", () => {
  it("is none for a job that is over or stands still", () => {
    expect(advise(job({ state: "over" }))).toEqual([]);
    expect(advise(job({ state: "stalled" }))).toEqual([]);
  });
  it("is none where nothing leaves the hosts", () => {
    expect(advise(job({ left_host_bytes: 10 }))[0]).toMatchObject({ text: expect.stringContaining("nothing to save") });
    expect(advise(job({ left_host_bytes: 10 }))[0]!.command).toBeUndefined();
  });
  it("is a proxy where nothing is carried", () => {
    expect(advise(job({}))).toEqual([{ text: expect.stringMatching(/^1.00 MB\/s leave/), command: "psidecar up --adopt --insecure" }]);
  });
  it("is a planner for proxies that follow none", () => {
    const history: History = { job: "j", points: [{ ...point(100, 110, 10, 1000), saved_bytes_per_second: 4e5 }, point(110, 120, 10, 1000)] };
    expect(advise(job({}), undefined, undefined, undefined, history)).toEqual([{ text: expect.stringMatching(/^Proxies send 400 kB\/s less .* With --planner/) }]);
    const long = { ...history, points: [...history.points, point(120, 130, 10, 1000), point(130, 140, 10, 1000)] };
    expect(advise(job({}), undefined, undefined, undefined, long)[0]!.command).toBe("psidecar up --adopt --insecure"); // no more
  });
  it("is a trial, then the codec that it suggests, and nothing once one is on", () => {
    expect(advise(carried, undefined, codecs({}))[0]!.command).toBe("psidecar plan codecs try --job 10.0.0.1:9000");
    const advice = { suggested: "threshold 0.9", seconds: 5, hosts: 1, pushes: 1, push_bytes: 100, pull_bytes: 100, missed: 0, codecs: [
      { codec: "compact", push_bytes: 1, pull_bytes: 1, saved: 0.99, waits: 0 }, { codec: "threshold 0.9", push_bytes: 10, pull_bytes: 100, saved: 0.45, waits: 1 }, { codec: "threshold 0.99", push_bytes: 1, pull_bytes: 100, saved: 0.5, waits: 9 }] };
    expect(advise(carried, undefined, codecs({ tried: true, advice }))[0]).toEqual({ text: "Of the codecs tried, threshold 0.9 saves 45.0% of the bytes, and 1.0 steps' gradient waits meanwhile: try your model with it first.", command: "psidecar plan codecs set --job 10.0.0.1:9000 --threshold 0.9 --act" });
    expect(advise(carried, undefined, codecs({ tried: true, advice: { ...advice, suggested: "compact" } }))).toEqual([]);
    expect(advise({ ...carried, measures: [line("carry", "on"), line("threshold", "on")] }, undefined, codecs({ tried: true, advice }))).toEqual([]);
  });
  it("is the plan that is proposed", () => {
    const plan = { strategy: "locality", mode: "proposes", displaced_keys: 0, handlers: [], proxies: 2, epochs: [{ epoch: 3, state: "proposed", reason: "", keys: 7, moved_keys: 0, moved_bytes: 0, pending_keys: 0, refused: [], held_p50: 0, held_p99: 0,
      hosts: [{ host: "a", before: 1000, predicted: 100, actual: 0 }] }] } as Plan;
    expect(advise(carried, { ...plan, proxies: 0 }).some((a) => a.command?.includes(" apply "))).toBe(false);
    expect(advise(carried, plan)[0]).toEqual({ text: "Moving 7 keys takes the busiest host from 1.00 kB to 100 B per step.", command: "psidecar plan apply --job 10.0.0.1:9000 --epoch 3" });
  });
  it("has nothing to do where links are fast", () => {
    const off = line("carry", "off", { not: [{ reason: "fast_link", connections: 0, why: "direct: the link is fast" }] });
    const [advice, ...more] = advise(job({ measures: [off] }));
    expect(advice!.text).toContain("taken in when it is the bottleneck");
    expect(advice!.command ?? more[0]).toBeUndefined();
  });

  it("says why some connections are not carried", () => {
    const part = line("carry", "part", { not: [{ reason: "late", connections: 1, why: "older than the proxy", do: "set --adopt" }] });
    expect(advise(job({ measures: [part] }))[0]!.text).toBe("1 of 4 connections are not carried: older than the proxy. Set --adopt.");
  });
});

const point = (from: number, to: number, steps: number, rate: number): History["points"][number] => ({
  from: new Date(from * 1000).toISOString(), to: new Date(to * 1000).toISOString(), steps_per_second: steps, bytes_per_second: rate, requests: 1, p50: 0, p99: 0, skew: 1, cpu_percent: 0, kernel_percent: 0,
});

describe("a job that is over", () => {
  const history: History = { job: "j", points: [point(100, 110, 10, 1000), point(110, 140, 20, 2000), point(140, 200, 0, 0)] };
  it("has means of the time in which it trained", () => expect(means(job({}), history)).toEqual([17.5, 1750]));
  it("has what is known without curves", () => {
    const over = job({ steps_per_second: 0, bytes_per_second: 0, first_seen: "2026-01-01T00:00:00Z", last_seen: "2026-01-01T00:00:10Z" });
    expect(means(over)).toEqual([NaN, 100]);
  });
});

describe("events", () => {
  it("are what was noted and keys that moved, in order", () => {
    const at = (s: number): string => new Date(s * 1000).toISOString();
    const history: History = { job: "j", points: [point(100, 200, 1, 1)], events: [{ at: at(150), what: "threshold 0.99 on" }, { at: at(50), what: "stalled" }] };
    const plan = { epochs: [{ epoch: 1, made: at(120), moved_keys: 5 }, { epoch: 2, made: at(130), moved_keys: 0 }] } as unknown as Plan;
    expect(moments(history, plan)).toEqual([{ at: 120, what: "5 keys moved" }, { at: 150, what: "threshold 0.99 on" }]);
  });
});

describe("workers elsewhere", () => {
  const nodes = (local: boolean[]) => local.map((l, i) => ({ name: `worker${i}`, local: l }));
  it("are those that do not run here", () => expect(remoteWorkers(job({ nodes: [...nodes([true, false]), { name: "server0", local: false }] }))).toEqual(new Set(["worker1"])));
  it("are none of a recording, which says nothing of hosts", () => expect(remoteWorkers(job({ nodes: nodes([false, false]) }))).toEqual(new Set()));
});
