// The agent's JSON interface, as page/api.go defines it, and how to ask.
// Only what the page shows is named here.

export interface Job {
  job: string; // host:port of its scheduler
  name?: string; // what its runs have in common, where somebody has named it
  remarks?: string[]; // what of its owner's wishes is not taken up, and why, and what is not seen of it
  first_seen?: string;
  last_seen?: string;
  dialect: string;
  servers: number;
  workers: number;
  nodes: JobNode[] | null;
  connections: { synced: number; unsynced: number; missed_bytes: number; unplaced: number };
  accesses: number;
  distinct_keys: number;
  keys_at_least?: boolean;
  exact: boolean;
  sampled_one_in: number;
  bytes: number;
  left_host_bytes: number;
  steps_per_second: number;
  bytes_per_second: number;
  latency: Latency;
  stragglers: string[] | null;
  state?: string; // starting, running, stalled or over
  cause?: string;
  what?: string;
  stalls?: Stall[] | null;
  measures?: MeasureLine[] | null;
}

/** Where a measure holds for the job: on so many of its connections, and why not on the others. */
export interface MeasureLine {
  measure: string;
  state: string; // on, part or off
  setting?: string;
  held_squares?: number;
  step_squares?: number;
  from?: string;
  on: number;
  connections: number;
  not: { reason: string; connections: number; why: string; do?: string }[] | null;
}

/** A stretch of the last hour. */
export interface HistoryPoint {
  from: string;
  to: string;
  steps_per_second: number;
  bytes_per_second: number;
  left_host_bytes_per_second?: number; // not of some nodes
  requests: number;
  p50: number;
  p99: number;
  skew: number;
  saved_bytes_per_second?: number;
  cpu_percent: number;
  kernel_percent: number;
}

export interface History { job: string; workers?: string[]; servers?: string[]; points: HistoryPoint[]; events?: { at: string; what: string }[] }

/** A node, or a pair of nodes, that does not go on as it should. */
export interface Stall {
  kind: string;
  who: string;
  on?: string;
  seconds: number;
  keys?: string;
  bytes?: number;
  why?: string;
}

/** A scheduler, server or worker; host is the planner's. */
export interface JobNode {
  name: string;
  local?: boolean; // of an agent: runs on its host
  host?: string;
  pod_name?: { namespace: string; name: string; node: string };
}

export interface Latency { count: number; mean: number; p50: number; p90: number; p99: number; p999: number; max: number }

/** What there was of jobs, by name, the newest run first. */
export interface Runs { jobs: { name: string; runs: Run[] }[] }

export interface Run {
  run?: string;
  job: string;
  began: string;
  last: string;
  running: boolean;
  servers: number;
  workers: number;
  steps: number;
  steps_per_second: number;
  bytes_per_step: number;
  bytes: number;
  left_host_bytes: number;
}

export interface Block { name?: string; first_text: string; last_text: string; keys: number; folded?: boolean }

export interface Heatmap {
  job: string;
  workers: string[];
  times?: { from: string; to: string }[]; // by time: a row each
  blocks: Block[];
  counts: number[][];
  measure: string;
  exact: boolean;
  sampled_one_in: number;
  finest: boolean;
}

export interface Traffic {
  workers: string[];
  servers: string[];
  to_servers: number[][];
  to_workers: number[][];
  requests: number[][];
  total_bytes: number;
  left_host_bytes: number;
  repeated_bytes: number;
}

export interface HotKey { name?: string; key_text: string; accesses: number; pulls: number; pushes: number; bytes: number; estimated?: number; error?: number; server?: string }

export interface Keys {
  hottest: HotKey[];
  skew: { keys: number; accesses: number }[];
  sketch: Sketch;
}

export interface Sketch { exact: boolean; distinct_keys: number; exact_keys: number; bound: number; percent: number; memory_bytes: number; at_least?: boolean }

/** What the busiest machine would move in a step in each form, of values: bytes, how long its link takes, and its host. */
export interface Compared {
  forms?: Record<string, number>;
  seconds?: Record<string, number>;
  busiest?: Record<string, string>;
  least?: string;
  chosen?: string;
  chosen_bytes?: number;
  chosen_seconds?: number;
}

/** Neighbouring keys of which workers use alike shares; now is what rules say of its pushes: host, none or part. */
export interface AlphaRange extends Compared { name?: string; first_text: string; last_text: string; keys: number; alpha: number; bytes: number; now?: string }

export interface Alpha extends Compared { alpha: number; bytes: number; workers: number; machines: number; even?: boolean; at_most?: boolean; ranges: AlphaRange[]; sums?: SumRules }

/** Whether pushes of a host's workers are summed, of some keys or all. */
export interface SumRule { keys?: string; form: string; by?: string }

/** A planner's rules on sums. */
export interface SumRules { rules: SumRule[]; proposed: SumRule[]; acts: boolean; hosts: Follower[] }

export interface Servers {
  servers: { name: string; requests: number; bytes_in: number; bytes_out: number; share: number; latency: Latency }[];
  workers: { name: string; requests: number; bytes_in: number; bytes_out: number; steps_per_second: number; straggler: boolean; latency: Latency }[];
}

export interface Counter { reason: string; class: string; help: string; events: number; bytes: number }

/** A host that reports to a planner. */
export interface Host {
  host: string;
  version: string;
  reported: string;
  cpu_percent: number;
  kernel_percent: number;
  memory_bytes: number;
  sampled_one_in: number;
  lost: Counter[];
  machine?: { link_mbit: number; link_source: string; cores: number };
}

export interface Agent {
  version: string;
  host: string;
  cpu_percent: number;
  memory_bytes: number;
  kernel_percent: number;
  programs: { name: string; runs: number; nanoseconds_per_run: number }[] | null;
  sampling: { one_in: number; window: number; adaptive: boolean; budget_percent: number; cost_percent: number; over_budget: boolean };
  counters: Counter[] | null;
  hosts?: Host[]; // those that report: this is a planner
  planner?: { address: string; connected: boolean; error?: string };
  recording_bytes?: number; // how long a recording may be that is opened here
}

/** What a host moves in a step, in bytes; actual is 0 until it is known. */
export interface PlanHost { host: string; before: number; predicted: number; actual: number; link_mbit?: number }

export interface PlanRefusal { reason: string; message: string; keys: number }

export interface PlanEpoch {
  epoch: number;
  state: string;
  made?: string;
  reason: string;
  keys: number;
  moved_keys: number;
  moved_bytes: number;
  pending_keys: number;
  hosts: PlanHost[];
  refused: PlanRefusal[];
  held_p50: number;
  held_p99: number;
}

/** Where a job's keys are, on a planner; the newest epoch comes first. */
export interface Plan {
  strategy: string;
  mode: "proposes" | "acts" | "held";
  trouble?: string;
  displaced_keys: number;
  epochs: PlanEpoch[];
  handlers: { server: number; kind: string; message: string }[];
  proxies: number;
}

export interface CodecRow { codec: string; push_bytes: number; pull_bytes: number; saved: number; waits: number }

/** What codecs would do, as tried for some seconds. */
export interface CodecAdvice {
  seconds: number;
  hosts: number;
  pushes: number;
  push_bytes: number;
  pull_bytes: number;
  missed: number;
  /** What values of type CHAR were taken for. */
  char_values?: string;
  untyped_bytes?: number;
  codecs: CodecRow[];
  suggested?: string;
}

/** A proxy that follows the planner. */
export interface Follower { host: string; current: boolean; refused?: string; reported: boolean; untried?: string }

/** Rules for the values of a job, on a planner, and what codecs would do. */
export interface Codecs {
  rules?: string;
  hosts: Follower[];
  tried: boolean;
  left_seconds: number;
  advice?: CodecAdvice;
}

/** The text of an answer that says what is wrong. */
async function problemOf(response: Response): Promise<Error> {
  const text = (await response.text()).trim();
  try {
    return new Error((JSON.parse(text) as { error: string }).error || text);
  } catch {
    return new Error(text || `${response.status} ${response.statusText}`);
  }
}

/** What was asked for did not come. */
export class Unanswered extends Error {}

/** Asks for /api/v1/NAME; an answer other than 200 is Unanswered with its text. */
export async function ask<T>(name: string, parameters: Record<string, string> = {}): Promise<T> {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== ""));
  const response = await fetch(`api/v1/${name}?${query}`).catch((problem: Error) => {
    throw new Unanswered(problem.message);
  });
  if (!response.ok) {
    throw new Unanswered((await problemOf(response)).message);
  }
  return (await response.json()) as T;
}

/** Has a recording opened; returns what its jobs are called. */
export async function open(name: string, file: Blob): Promise<{ jobs: string[] }> {
  const response = await fetch(`api/v1/recordings?${new URLSearchParams({ name })}`, { method: "POST", body: file });
  if (!response.ok) {
    throw await problemOf(response);
  }
  return (await response.json()) as { jobs: string[] };
}
