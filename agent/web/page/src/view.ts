// What the page shows at the moment. It lives in the address after '#', so
// that a view can be bookmarked, sent to a colleague and left by 'back'.

export interface View {
  job: string;
  range: string; // seconds back from now; "" is everything
  measure: string;
  blocks: string;
  first: string; // keys in decimal; "" is the whole key space
  last: string;
}

const initial: View = { job: "", range: "", measure: "accesses", blocks: "256", first: "", last: "" };

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
  return { job: view.job, from: view.range === "" ? "" : `-${view.range}` };
}
