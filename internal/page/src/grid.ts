// A heatmap of counts: rows down, columns across, drawn as one image of a
// pixel a cell inside a uPlot frame, which brings axes, cursor and zoom.

import uPlot from "uplot";
import { extent, level, ramp } from "./colours";

export interface Cells {
  rows: string[]; // names, top to bottom
  columns: number; // how many
  columnName(index: number): string;
  counts: number[][]; // counts[row][column]
  greyed?: Set<number>; // rows of which nothing is known
  scale?: number[][]; // what the colours go by, where that is more than counts
}

export interface GridOptions {
  host: HTMLElement;
  height: number;
  columnWidth: number; // pixels that a column's name needs
  /** Says what a cell holds, for the read-out below the grid. */
  describe(row: number, column: number, count: number): string;
  /** Called when columns from..to (inclusive) were selected. */
  onZoom?(from: number, to: number): void;
  /** Called to leave a zoom. */
  onReset?(): void;
}

/** Paints counts into pixels, one a cell; the first row comes first. */
export function paint(counts: number[][], columns: number, colours: Uint32Array, scale = counts): Uint32Array {
  const range = extent(scale);
  const pixels = new Uint32Array(columns * counts.length);
  let at = 0;
  for (const row of counts) {
    for (let c = 0; c < columns; c++) {
      pixels[at++] = colours[level(row[c] ?? 0, range)]!;
    }
  }
  return pixels;
}

/** Middles of some of n cells, evenly chosen, at most `most` (and one at least). */
export function middles(n: number, most: number): number[] {
  const step = Math.max(1, Math.ceil(n / Math.max(1, Math.floor(most))));
  return Array.from({ length: Math.ceil(n / step) }, (_, i) => i * step + 0.5);
}

/** Pixels that the longest name takes, within reason. */
function nameWidth(names: string[]): number {
  const longest = names.reduce((most, name) => Math.max(most, name.length), 0);
  return Math.min(220, 24 + 7 * longest);
}

export class Grid {
  private plot: uPlot | undefined;
  private image: HTMLCanvasElement | undefined;
  private cells: Cells = { rows: [], columns: 0, columnName: String, counts: [] };
  private readout: HTMLElement;
  private isDark = false;
  private cell: { row: number; column: number } | undefined;
  private marked: number | undefined; // first column of a keyboard selection

  constructor(private options: GridOptions) {
    const { host } = options;
    host.tabIndex = 0;
    host.setAttribute("role", "application");
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    this.readout.setAttribute("aria-live", "polite");
    host.after(this.readout);
    host.addEventListener("keydown", (event) => this.onKey(event));
    host.addEventListener("blur", () => this.leave());
    new ResizeObserver(() => this.resize()).observe(host);
  }

  show(cells: Cells, isDark: boolean): void {
    const sameFrame =
      isDark === this.isDark && cells.columns === this.cells.columns && cells.rows.join() === this.cells.rows.join();
    this.cells = cells;
    this.isDark = isDark;
    this.image = this.makeImage(ramp(isDark));
    if (this.plot && sameFrame) {
      this.plot.redraw(false, true);
    } else {
      this.build();
    }
    this.say();
  }

  private makeImage(colours: Uint32Array): HTMLCanvasElement | undefined {
    const { rows, columns, counts } = this.cells;
    if (rows.length === 0 || columns === 0) {
      return undefined;
    }
    const canvas = document.createElement("canvas");
    canvas.width = columns;
    canvas.height = rows.length;
    const pixels = paint(counts, columns, colours, this.cells.scale);
    const data = new ImageData(new Uint8ClampedArray(pixels.buffer as ArrayBuffer), columns, rows.length);
    canvas.getContext("2d")!.putImageData(data, 0, 0);
    return canvas;
  }

  private build(): void {
    this.plot?.destroy();
    this.options.host.replaceChildren();
    const { rows, columns, columnName } = this.cells;
    const style = getComputedStyle(this.options.host);
    const ink = style.color;
    const axis = { stroke: ink, grid: { show: false }, ticks: { stroke: ink, width: 1, size: 4 }, font: "12px system-ui, sans-serif" };
    const named = (name: (index: number) => string) => (_u: uPlot, at: number[]) => at.map((v) => name(Math.floor(v)));
    this.plot = new uPlot(
      {
        width: this.options.host.clientWidth || 800,
        height: this.options.height,
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
        scales: {
          x: { time: false, range: () => [0, columns] },
          y: { range: () => [0, rows.length], dir: -1 },
        },
        axes: [
          { ...axis, size: 30, splits: (u) => middles(columns, (u.width - nameWidth(rows)) / this.options.columnWidth), values: named(columnName) },
          { ...axis, splits: (u) => middles(rows.length, u.height / 26), values: named((r) => rows[r] ?? ""), size: nameWidth(rows) },
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: {
          draw: [(u) => this.draw(u)],
          setCursor: [(u) => this.onCursor(u)],
          setSelect: [(u) => this.onSelect(u)],
        },
      },
      [[0, columns], [0, rows.length]],
      this.options.host,
    );
    this.plot.over.addEventListener("dblclick", () => this.options.onReset?.());
    this.plot.over.addEventListener("mouseleave", () => this.leave());
  }

  private draw(u: uPlot): void {
    const { left, top, width, height } = u.bbox;
    u.ctx.save();
    if (this.image) {
      u.ctx.imageSmoothingEnabled = false;
      u.ctx.drawImage(this.image, left, top, width, height);
      u.ctx.fillStyle = this.isDark ? "#2a2f3a" : "#dde1e7";
      for (const row of this.cells.greyed ?? []) {
        const h = height / this.cells.rows.length;
        u.ctx.fillRect(left, top + row * h, width, h);
      }
    }
    if (this.cell) {
      const w = width / this.cells.columns;
      const h = height / this.cells.rows.length;
      u.ctx.strokeStyle = "#e4572e";
      u.ctx.lineWidth = 2;
      const from = this.marked === undefined ? this.cell.column : Math.min(this.marked, this.cell.column);
      const to = this.marked === undefined ? this.cell.column : Math.max(this.marked, this.cell.column);
      u.ctx.strokeRect(left + from * w, top + this.cell.row * h, Math.max((to - from + 1) * w, 2), Math.max(h, 2));
    }
    u.ctx.restore();
  }

  private onCursor(u: uPlot): void {
    const { left, top } = u.cursor;
    if (left === undefined || top === undefined || left < 0 || top < 0) {
      return;
    }
    const column = Math.floor((left / u.over.clientWidth) * this.cells.columns);
    const row = Math.floor((top / u.over.clientHeight) * this.cells.rows.length);
    this.moveTo(row, column);
  }

  private onSelect(u: uPlot): void {
    const { left, width } = u.select;
    if (width <= 4) {
      return;
    }
    const perColumn = u.over.clientWidth / this.cells.columns;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const last = this.cells.columns - 1;
    this.zoom(Math.min(Math.floor(left / perColumn), last), Math.min(Math.floor((left + width) / perColumn), last));
  }

  private onKey(event: KeyboardEvent): void {
    const at = this.cell ?? { row: 0, column: -1 };
    const far = event.ctrlKey ? 10 : 1;
    const step: Record<string, [number, number]> = {
      ArrowRight: [0, far], ArrowLeft: [0, -far], ArrowDown: [far, 0], ArrowUp: [-far, 0],
      Home: [0, -this.cells.columns], End: [0, this.cells.columns],
    };
    const move = step[event.key];
    if (move) {
      this.marked = event.shiftKey ? (this.marked ?? at.column) : undefined;
      this.moveTo(at.row + move[0], at.column + move[1]);
    } else if (event.key === "Enter" && this.cell) {
      this.zoom(Math.min(this.marked ?? this.cell.column, this.cell.column), Math.max(this.marked ?? this.cell.column, this.cell.column));
    } else if (event.key === "Escape") {
      this.options.onReset?.();
    } else {
      return;
    }
    event.preventDefault();
  }

  private zoom(from: number, to: number): void {
    this.marked = undefined;
    this.cell = undefined;
    this.options.onZoom?.(from, to);
  }

  private moveTo(row: number, column: number): void {
    const { rows, columns } = this.cells;
    if (rows.length === 0 || columns === 0) {
      return;
    }
    this.cell = {
      row: Math.max(0, Math.min(row, rows.length - 1)),
      column: Math.max(0, Math.min(column, columns - 1)),
    };
    this.say();
    this.plot?.redraw(false, false);
  }

  private leave(): void {
    this.cell = undefined;
    this.marked = undefined;
    this.say();
    this.plot?.redraw(false, false);
  }

  private say(): void {
    if (!this.cell) {
      this.readout.textContent = "";
      return;
    }
    const { row, column } = this.cell;
    this.readout.textContent = this.options.describe(row, column, this.cells.counts[row]?.[column] ?? 0);
  }

  private resize(): void {
    const width = this.options.host.clientWidth;
    if (this.plot && width > 0 && Math.abs(width - this.plot.width) > 1) {
      this.plot.setSize({ width, height: this.options.height });
    }
  }
}
