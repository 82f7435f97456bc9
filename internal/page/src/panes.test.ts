import { describe, expect, it } from "vitest";
import { elsewhen, otherSide, shiftOf } from "./beside";
import { chosenText } from "./choose";
import { applyCommand, legendText } from "./codecs";
import { before, difference, jobFigures, summary } from "./compare";
import { localTime, secondsOf } from "./controls";
import { quoted } from "./copy";
import { curveRows, stepAt, steps, tick } from "./curves";
import { csv } from "./export";
import { blockKey, shortKey } from "./format";
import { settingText, stateText, whyText } from "./measures";
import { alphaText, sketchText } from "./panels";
import { applyPlan } from "./plan";
import { refusal } from "./recordings";
import { columnsOf, pick, pickServers } from "./select";
import { formatOrders, parseOrders, sorted } from "./table";
import { anchored, parse, shows } from "./view";
import type { Heatmap, History, HistoryPoint, Plan, Traffic } from "./api";

const point = (from: number, to: number, more: Partial<HistoryPoint> = {}): HistoryPoint => ({
  from: new Date(from * 1000).toISOString(), to: new Date(to * 1000).toISOString(), steps_per_second: 10, bytes_per_second: 1000, left_host_bytes_per_second: 250,
  requests: 100, p50: 0.001, p99: 0.01, skew: 1.5, cpu_percent: 2, kernel_percent: 1, ...more,
});
const history = (...points: HistoryPoint[]): History => ({ job: "j", points });

describe("curves", () => {
  const line = { name: "steps", of: (p: HistoryPoint) => p.steps_per_second, text: String, colour: 0 };
  it("are steps that end, and break where nothing is known", () => {
    const points = [point(0, 5), point(5, 10, { steps_per_second: 20 }), point(60, 65)];
    expect(steps(points, [line])).toEqual([[0, 5, 10, 60, 65], [10, 20, null, 10, 10]]);
    expect(steps([point(0, 5)], [line], 100)[0]).toEqual([100, 105]);
    expect([stepAt([0, 5, 10], 4.9), stepAt([0, 5, 10], 5), stepAt([0, 5, 10], 99), stepAt([], 1)]).toEqual([0, 1, 2, 0]);
  });
  it("have ticks that differ, however short they are", () => {
    expect(tick(3725, 15)).toMatch(/^\d\d:02:05$/);
    expect(tick(3725, 60)).toMatch(/^\d\d:02$/);
  });
  it("are whole in a file", () => {
    const rows = curveRows(history(point(0, 5, { requests: 0 })));
    expect(rows[0]!.length).toBe(rows[1]!.length);
    expect(rows[1]!.slice(0, 3)).toEqual(["1970-01-01T00:00:00.000Z", "1970-01-01T00:00:05.000Z", "10"]);
    expect(rows[1]!.at(rows[0]!.indexOf("times p50"))).toBe(""); // nothing was asked
  });
});

describe("a comparison", () => {
  it("weighs stretches by how long they are", () => {
    const s = summary(history(point(0, 30), point(30, 40, { steps_per_second: 50, p99: 0.5, requests: 0 })));
    expect([s.steps, s.left, s.p50, s.p99, s.requests]).toEqual([20, 0.25, 0.001, 0.5, 2.5]);
    expect(Number.isNaN(summary(history()).steps)).toBe(true);
  });
  it("says by how much", () => {
    expect([difference(10, 12.5), difference(10, 5), difference(1, 100), difference(0, 5), difference(NaN, 1)]).toEqual(["+25.0%", "-50.0%", "×100", "–", "–"]);
    expect(jobFigures(history(point(0, 5)), history(point(5, 10)))[2]).toMatchObject({ name: "bytes per step", shown: 100, beside: 100 });
  });
  it("asks for the other side once it is chosen", () => {
    expect(otherSide(parse("#beside=time"))).toBeUndefined();
    expect(otherSide(parse("#beside=time&besidefrom=3&besideto=4&from=1&to=2"))).toMatchObject({ from: "3", to: "4" });
    expect(otherSide(parse("#beside=job&besidejob=k"))).toMatchObject({ job: "k" });
    expect(otherSide(parse("#beside=worker&a=worker0"))).toBeUndefined();
    expect(shiftOf(parse("#beside=time"), history(point(100, 105)), history(point(40, 45)))).toBe(60);
  });
  it("takes a recording's time for its own", () => {
    expect(anchored(parse("#range=60"), 1000, 5000)).toMatchObject({ from: "940", to: "1000" });
    expect(anchored(parse("#range=60"), 4990, 5000)).toMatchObject({ from: "", range: "60" });
    expect(anchored(parse("#range=60&from=1&to=2"), 1000, 5000)).toMatchObject({ from: "1", to: "2" });
    const [own, its] = [history(point(1000, 1100)), history(point(9000, 9100))];
    expect(elsewhen(parse("#from=1010&to=1020"), own, its, 1e5)).toMatchObject({ from: "9010", to: "9020" });
    expect(elsewhen(parse("#from=9010&to=9020"), own, its, 1e5)).toMatchObject({ from: "9010", to: "9020" });
    expect(elsewhen(parse("#range=60"), own, its, 1e5)).toMatchObject({ from: "9040", to: "9100" });
  });
  it("finds the time just before", () => {
    expect(before(history(), parse("#from=100&to=160"))).toEqual({ besidefrom: "40", besideto: "100" });
    expect(before(history(point(0, 1000)), parse("#range=60"))).toEqual({ besidefrom: "880", besideto: "940" });
  });
});

describe("tables", () => {
  const rows = [{ n: 9, name: "worker10" }, { n: 10, name: "worker2" }];
  it("sort numbers as numbers, and names by theirs", () => {
    expect(sorted(rows, { title: "n", text: (r) => `${r.n} kB`, value: (r) => r.n }, true).map((r) => r.n)).toEqual([10, 9]);
    expect(sorted(rows, { title: "name", text: (r) => r.name }, false).map((r) => r.name)).toEqual(["worker2", "worker10"]);
  });
  it("keep their order in the view", () => {
    const text = "servers~p99~down;keys~key~up";
    expect(formatOrders(parseOrders(text))).toBe(text);
    expect(parseOrders("nonsense").size).toBe(0);
  });
});

describe("a selection", () => {
  it("is empty for all", () => {
    expect([chosenText(["a", "b"], []), chosenText(["a", "b"], ["b", "a"]), chosenText(["a", "b", "c"], ["c", "a"])]).toEqual(["", "", "a,c"]);
    expect([shows("", "a"), shows("a,c", "b"), shows("a,c", "c")]).toEqual([true, false, true]);
  });
  it("leaves out what is not of it", () => {
    const view = parse("#workers=w1&servers=s0");
    const h = { workers: ["w0", "w1"], counts: [[1], [2]] } as unknown as Heatmap;
    expect(pick(h, view)).toMatchObject({ workers: ["w1"], counts: [[2]] });
    const t = { workers: ["w0", "w1"], servers: ["s0", "s1"], to_servers: [[1, 2], [3, 4]], to_workers: [[5, 6], [7, 8]], requests: [[1, 1], [2, 2]] } as unknown as Traffic;
    expect(pickServers(t, view)).toMatchObject({ workers: ["w1"], servers: ["s0"], to_servers: [[3]], to_workers: [[7]], requests: [[2]] });
  });
});

describe("files", () => {
  it("are CSV that a spreadsheet takes for text", () => {
    expect(csv([["a,b", 'say "no"', "-3.5"], ["=cmd()", "-x", "1\n2"]])).toBe('"a,b","say ""no""",-3.5\r\n\'=cmd(),\'-x,"1\n2"\r\n');
    expect(columnsOf(["w0"], ["0-9"], [[7]])).toEqual([["", "0-9"], ["w0", "7"]]);
  });
});

describe("words", () => {
  it("spell keys in one way", () => {
    expect([7n, 123456789012n, 18446744073709551615n].map((k) => shortKey(k).replaceAll("\u202f", ""))).toEqual(["7", "123456789012", "18446…1615"]);
    const blocks = [{ first_text: "0" }, { first_text: "11339000000000004352" }];
    expect([blockKey(blocks, 0), blockKey(blocks, 1)]).toEqual(["0", "11339…4352"]);
  });
  it("give the commands for what was tried", () => {
    expect(applyCommand("10.0.0.1:9000", "threshold 0.99, quantize 8")).toBe("psidecar plan codecs set --job 10.0.0.1:9000 --threshold 0.99 --quantize 8 --act");
    expect(applyCommand("j", "unchanged")).toBe("psidecar plan codecs set --job j --unchanged --act");
    expect(applyCommand("j", "compact")).toBeUndefined();
    expect(applyCommand("j", "wire bf16", "float32")).toBe("psidecar plan codecs set --job j --wire bf16 --char-values float32 --act");
    expect(quoted("a b'c")).toBe(`'a b'\\''c'`);
    const plan = { epochs: [{ epoch: 4, state: "proposed" }] } as unknown as Plan;
    expect(applyPlan("j", plan)).toBe("psidecar plan apply --job j --epoch 4");
    expect(applyPlan("j", { epochs: [] } as unknown as Plan)).toBeUndefined();
  });
  it("say of each codec that is tried what it does with the rest", () => {
    for (const codec of ["compact", "unchanged", "threshold", "quantize", "pull-threshold", "pull-quantize", "threshold-activations", "wire", "slim"]) {
      expect(legendText).toMatch(new RegExp(`[ ,.]${codec}[ ,]`));
    }
  });
  it("say where measures hold", () => {
    const line = { measure: "carry", state: "part", on: 3, connections: 4, not: [{ reason: "loopback", connections: 1, why: "they stay on this host", do: "nothing" }] };
    expect([stateText(line), whyText(line)]).toEqual(["on 3 of 4 connections", "1 connections: they stay on this host → nothing"]);
  });
  it("say what a threshold holds back", () => {
    const line = { measure: "threshold", state: "on", setting: "--threshold 0.99", from: "flags", on: 1, connections: 1, not: null };
    expect(settingText(line)).toBe("--threshold 0.99 (flags)");
    expect(settingText({ ...line, held_squares: 9, step_squares: 4 })).toBe("--threshold 0.99 (flags); 1.5 steps' gradient is held back");
  });
  it("keep moments to the second", () => {
    expect(secondsOf(localTime("1700000061"))).toBe("1700000061");
    expect([localTime(""), secondsOf("")]).toEqual(["", ""]);
  });
});

describe("counts of keys", () => {
  const sketch = { exact: true, distinct_keys: 5000, exact_keys: 5000, bound: 0, percent: 0, memory_bytes: 1e6 };
  it("are said to be exact where all requests were inspected, and only there", () => {
    expect(sketchText(sketch, false)).toMatch(/each counted exactly\.$/);
    expect(sketchText(sketch, true)).toMatch(/inspected requests, and scaled up\.$/);
    expect(sketchText(sketch, true)).not.toMatch(/exact/);
  });
});

describe("alpha", () => {
  const alpha = { alpha: 0.020073, bytes: 20000, workers: 4, machines: 0 };
  it("is a share of all values", () => {
    expect(alphaText(alpha)).toBe("Alpha 0.0201: share of 20.0 kB of values that a worker uses per step.");
    expect(alphaText({ ...alpha, at_most: true })).toMatch(/^Alpha 0.0201 or less: /);
  });
  it("comes with what each form moves, where the machines are known", () => {
    expect(alphaText({ ...alpha, machines: 4, forms: { servers: 4800, host_sums: 4700 }, least: "host_sums" })).toMatch(/4 machines .*: servers 4.80 kB, host sums 4.70 kB \(/);
  });
});

describe("a recording", () => {
  it("is refused with the reason", () => {
    expect(refusal("a.psr", 10, 10)).toBe("");
    expect(refusal("a.psr", 2 ** 30 + 1, 2 ** 20)).toMatch(/^a.psr has .*exceeds the limit of .*: .*psidecar show/);
    expect(refusal("folder", 0, 10)).toMatch(/^folder is empty/);
  });
});
