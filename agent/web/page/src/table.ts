// Plain tables, rebuilt at each refresh.

export interface Column<Row> {
  title: string;
  text(row: Row): string;
  number?: boolean;
  /** Share of the cell to fill as a bar, 0 to 1. */
  bar?(row: Row): number;
}

export function table<Row>(host: HTMLElement, columns: Column<Row>[], rows: Row[], isBad?: (row: Row) => boolean): void {
  const out = document.createElement("table");
  const head = out.createTHead().insertRow();
  for (const column of columns) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = column.title;
    cell.className = column.number ? "number" : "";
    head.append(cell);
  }
  const body = out.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    line.className = isBad?.(row) ? "bad" : "";
    for (const column of columns) {
      const cell = line.insertCell();
      cell.textContent = column.text(row);
      cell.className = column.number ? "number" : "";
      if (column.bar) {
        cell.classList.add("bar");
        cell.style.setProperty("--share", `${(100 * column.bar(row)).toFixed(1)}%`);
      }
    }
  }
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.append(out);
  host.replaceChildren(scroll);
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
