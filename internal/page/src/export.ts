// Panels as files: figures as CSV, pictures as PNG.

/** Rows as CSV (RFC 4180). A text that a spreadsheet would take for a formula gets a quote before it. */
export function csv(rows: string[][]): string {
  const cell = (text: string): string => {
    const safe = /^[=@+]|^-(?![\d.])/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

/** Gives the browser a file to keep. */
export function save(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function saveCSV(name: string, rows: string[][]): void {
  save(name, new Blob([csv(rows)], { type: "text/csv" }));
}

const margin = 16;

/** All canvases of a panel in one picture, where they are on the page, under its title. */
export function picture(section: HTMLElement, title: string): HTMLCanvasElement {
  const sources = [...section.querySelectorAll("canvas")].filter((c) => c.clientWidth > 0);
  const scale = devicePixelRatio;
  const box = section.getBoundingClientRect();
  const captions = [...section.querySelectorAll<HTMLElement>("figcaption, .legend span, .side h3")];
  const tops = [...sources, ...captions].map((e) => e.getBoundingClientRect().top - box.top);
  const first = Math.min(...tops, 0 + box.height);
  const out = document.createElement("canvas");
  out.width = box.width * scale;
  const last = Math.max(...sources.map((c) => c.getBoundingClientRect().bottom - box.top), first);
  out.height = (last - first + 3 * margin + 20) * scale;
  const context = out.getContext("2d")!;
  const style = getComputedStyle(section);
  context.scale(scale, scale);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, out.width, out.height);
  context.fillStyle = style.color;
  context.font = "600 14px system-ui, sans-serif";
  context.fillText(title, margin, margin + 8);
  const down = 2 * margin + 14 - first;
  for (const source of sources) {
    const at = source.getBoundingClientRect();
    context.drawImage(source, at.left - box.left, at.top - box.top + down, at.width, at.height);
  }
  for (const caption of captions) {
    const at = caption.getBoundingClientRect();
    const swatch = caption.querySelector("i");
    let x = at.left - box.left;
    if (swatch) {
      context.fillStyle = swatch.style.background;
      context.fillRect(x, at.top - box.top + down + 2, 14, 12);
      x += 20;
    }
    context.fillStyle = style.color;
    context.font = "12px system-ui, sans-serif";
    context.fillText(caption.textContent ?? "", x, at.top - box.top + down + 13);
  }
  return out;
}

export function savePNG(name: string, section: HTMLElement, title: string): void {
  picture(section, title).toBlob((blob) => blob && save(name, blob), "image/png");
}
