// Tables, rebuilt at each refresh. A click on a column's title sorts by it; the
// order is part of the view.

import { keyElement } from "./copy";

export interface Column<Row> {
  title: string;
  text(row: Row): string;
  /** What rows are sorted by, and what stands in a CSV file; the text where there is none. */
  value?(row: Row): number | string;
  number?: boolean;
  /** Share of the cell to fill as a bar, 0 to 1. */
  bar?(row: Row): number;
  /** The whole of what the text shortens: shown over it, and copied by a click. */
  whole?(row: Row): string;
  /** Takes the cell's place where it is more than text. */
  element?(row: Row): HTMLElement;
  /** May be broken into lines. */
  wraps?: boolean;
}

/** A column of numbers. */
export function figure<Row>(title: string, value: (row: Row) => number, text: (n: number) => string, bar?: (row: Row) => number): Column<Row> {
  return { title, number: true, value, text: (row) => text(value(row)), bar };
}

/** How tables are sorted: by table, the title of a column and whether the highest comes first. */
export type Orders = Map<string, { title: string; down: boolean }>;

export function parseOrders(text: string): Orders {
  const orders: Orders = new Map();
  for (const part of text.split(";").filter(Boolean)) {
    const [table, title, direction] = part.split("~");
    if (table && title) {
      orders.set(table, { title, down: direction === "down" });
    }
  }
  return orders;
}

export function formatOrders(orders: Orders): string {
  return [...orders].map(([table, { title, down }]) => `${table}~${title}~${down ? "down" : "up"}`).join(";");
}

/** What the page gives tables: how they are sorted, and whom to tell of a change. */
export const sorting: { orders: Orders; changed(orders: Orders): void } = { orders: new Map(), changed: () => {} };

/** What tables show, for CSV files, by the element that they are in. */
export const shown = new Map<string, () => string[][]>();

function valueOf<Row>(column: Column<Row>, row: Row): number | string {
  return column.value ? column.value(row) : column.text(row);
}

/** The rows in the order of a column. */
export function sorted<Row>(rows: Row[], column: Column<Row>, down: boolean): Row[] {
  const by = (a: Row, b: Row): number => {
    const [x, y] = [valueOf(column, a), valueOf(column, b)];
    if (typeof x === "number" && typeof y === "number") {
      return x - y;
    }
    return String(x).localeCompare(String(y), undefined, { numeric: true });
  };
  return [...rows].sort((a, b) => (down ? by(b, a) : by(a, b)));
}

function headCell<Row>(id: string, column: Column<Row>): HTMLElement {
  const cell = document.createElement("th");
  cell.scope = "col";
  cell.className = column.number ? "number" : "";
  if (column.title === "") {
    cell.textContent = "note";
    return cell;
  }
  const order = sorting.orders.get(id);
  const mine = order?.title === column.title ? order : undefined;
  cell.setAttribute("aria-sort", mine ? (mine.down ? "descending" : "ascending") : "none");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "sort";
  button.textContent = column.title + (mine ? (mine.down ? " ▾" : " ▴") : "");
  button.addEventListener("click", () => {
    const next = new Map(sorting.orders);
    const first = column.number === true; // the highest number first, the first name first
    if (!mine) {
      next.set(id, { title: column.title, down: first });
    } else if (mine.down === first) {
      next.set(id, { title: column.title, down: !first });
    } else {
      next.delete(id);
    }
    sorting.changed(next);
  });
  cell.append(button);
  return cell;
}

function bodyCell<Row>(cell: HTMLTableCellElement, column: Column<Row>, row: Row): void {
  if (column.element) {
    cell.append(column.element(row));
  } else if (column.whole) {
    cell.append(keyElement(column.text(row), column.whole(row)));
  } else {
    cell.textContent = column.text(row);
  }
  cell.className = [column.number && "number", column.wraps && "wraps"].filter(Boolean).join(" ");
  if (column.bar) {
    cell.classList.add("bar");
    cell.style.setProperty("--share", `${(100 * column.bar(row)).toFixed(1)}%`);
  }
}

export function table<Row>(host: HTMLElement, columns: Column<NoInfer<Row>>[], rows: Row[], isBad?: (row: Row) => boolean): void {
  const out = document.createElement("table");
  const head = out.createTHead().insertRow();
  head.append(...columns.map((column) => headCell(host.id, column)));
  const order = sorting.orders.get(host.id);
  const by = columns.find((column) => column.title === order?.title);
  const inOrder = order && by ? sorted(rows, by, order.down) : rows;
  const body = out.createTBody();
  for (const row of inOrder) {
    const line = body.insertRow();
    line.className = isBad?.(row) ? "bad" : "";
    for (const column of columns) {
      bodyCell(line.insertCell(), column, row);
    }
  }
  shown.set(host.id, () => [
    columns.map((c) => c.title || "note"),
    ...inOrder.map((row) => columns.map((c) => (c.whole ? c.whole(row) : String(valueOf(c, row))))),
  ]);
  put(host, out);
}

/** Puts a table into its place, scrolled as it was, with the focus where it was. */
function put(host: HTMLElement, out: HTMLTableElement): void {
  const old = host.querySelector<HTMLElement>(":scope > .scroll");
  const focusAt = old ? [...old.querySelectorAll("button")].findIndex((b) => b === document.activeElement) : -1;
  const scroll = old ?? document.createElement("div");
  if (!old) {
    scroll.className = "scroll";
    scroll.tabIndex = 0; // so that the keyboard reaches what is cut off
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `table: ${host.closest("section")?.querySelector("h2")?.textContent ?? ""} ${host.title || host.id}`.trim());
    host.replaceChildren(scroll);
    scroll.addEventListener("scroll", () => cue(scroll), { passive: true });
    new ResizeObserver(() => cue(scroll)).observe(scroll);
  } else {
    host.replaceChildren(old);
  }
  scroll.replaceChildren(out);
  if (focusAt >= 0) {
    scroll.querySelectorAll("button")[focusAt]?.focus();
  }
  cue(scroll);
}

/** Marks the sides at which there is more than can be seen. */
function cue(scroll: HTMLElement): void {
  const { scrollLeft, scrollWidth, clientWidth, scrollTop, scrollHeight, clientHeight } = scroll;
  scroll.classList.toggle("more-left", scrollLeft > 1);
  scroll.classList.toggle("more-right", scrollLeft + clientWidth < scrollWidth - 1);
  scroll.classList.toggle("more-below", scrollTop + clientHeight < scrollHeight - 1);
}

/** A list of facts, name and value. */
export function facts(pairs: [string, string][]): HTMLElement {
  const out = document.createElement("dl");
  for (const [name, value] of pairs) {
    const term = document.createElement("dt");
    term.textContent = name;
    const detail = document.createElement("dd");
    detail.textContent = value;
    out.append(term, detail);
  }
  return out;
}
