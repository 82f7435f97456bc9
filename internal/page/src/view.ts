// What the page shows at the moment. It lives in the address after '#', so
// that a view can be bookmarked, sent to a colleague and left by 'back'.

export interface View {
  job: string;
  range: string; // seconds back from now; "" is everything
  from: string; // seconds since 1970, in place of range; with to
  to: string;
  measure: string;
  blocks: string;
  first: string; // keys in decimal; "" is the whole key space
  last: string;
  by: string; // rows of the heatmap: worker or time
  workers: string; // those that are shown, separated by commas; "" is all
  servers: string;
  sort: string; // of tables: see table.ts
  beside: string; // what the view is compared with: "", time, job or worker
  besidejob: string;
  besidefrom: string;
  besideto: string;
  a: string; // the two workers that are compared
  b: string;
}

const initial: View = {
  job: "", range: "", from: "", to: "", measure: "accesses", blocks: "256", first: "", last: "", by: "worker", workers: "", servers: "",
  sort: "", beside: "", besidejob: "", besidefrom: "", besideto: "", a: "", b: "",
};

export function parse(hash: string): View {
  const view = { ...initial };
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  for (const name of Object.keys(initial) as (keyof View)[]) {
    const value = given.get(name);
    if (value !== null) {
      view[name] = value;
    }
  }
  return view;
}

export function format(view: View): string {
  const changed = (Object.keys(initial) as (keyof View)[]).filter((name) => view[name] !== initial[name]);
  return "#" + new URLSearchParams(changed.map((name) => [name, view[name]])).toString();
}

/** The parameters of a question about the view's job and time. */
export function span(view: View): Record<string, string> {
  if (view.from !== "" || view.to !== "") {
    return { job: view.job, from: view.from, to: view.to };
  }
  return { job: view.job, from: view.range === "" ? "" : `-${view.range}` };
}

/** The parameters of a question about some of the job's workers and servers. */
export function chosen(view: View): Record<string, string> {
  return { workers: view.workers, servers: view.servers };
}

/** The names of a list in the view; empty: all. */
export function list(text: string): string[] {
  return text === "" ? [] : text.split(",");
}

/** Whether a name is among those that are shown. */
export function shows(text: string, name: string): boolean {
  return text === "" || list(text).includes(name);
}

/** Until so many seconds ago a job's last point is of now. */
const lately = 60;

/**
 * The view with its time as moments, where what is known of the job ended long ago,
 * as in a recording: the last minute is the recording's then.
 */
export function anchored(view: View, end: number | undefined, now: number): View {
  if (view.range === "" || view.from !== "" || view.to !== "" || end === undefined || end > now - lately) {
    return view;
  }
  return { ...view, from: String(Math.floor(end - Number(view.range))), to: String(Math.ceil(end)) };
}
