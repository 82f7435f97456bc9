// Where a job's nodes run: the pod where an API server has named it, and the
// node or host.

import type { Job } from "./api";
import type { Column } from "./table";

export interface Place { pod: string; where: string }

/** The places that are known, by the nodes' names. */
export type Places = Map<string, Place>;

export function placesOf(job: Job): Places {
  const places: Places = new Map();
  for (const { name, host, pod_name } of job.nodes ?? []) {
    const place = { pod: pod_name ? `${pod_name.namespace}/${pod_name.name}` : "", where: pod_name?.node || host || "" };
    if (place.pod || place.where) {
      places.set(name, place);
    }
  }
  return places;
}

/** The workers of a job that an agent knows to be on other hosts; of a recording none. */
export function remoteWorkers(job: Job): Set<string> {
  const workers = (job.nodes ?? []).filter((n) => n.name.startsWith("worker"));
  return workers.some((n) => n.local) ? new Set(workers.filter((n) => !n.local).map((n) => n.name)) : new Set();
}

/** "worker3", with what is known of where it runs. */
export function placed(name: string, places: Places): string {
  const { pod, where } = places.get(name) ?? { pod: "", where: "" };
  const text = [pod, where && `on ${where}`].filter(Boolean).join(" ");
  return text ? `${name} (${text})` : name;
}

/** The columns for places, where some are known. */
export function placeColumns<Row extends { name: string }>(places: Places): Column<Row>[] {
  const columns: [string, keyof Place][] = [["pod", "pod"], ["on", "where"]];
  return columns
    .filter(([, part]) => [...places.values()].some((p) => p[part] !== ""))
    .map(([title, part]) => ({ title, text: (row) => places.get(row.name)?.[part] ?? "" }));
}
