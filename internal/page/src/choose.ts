// Which workers and servers are shown: a list of boxes to tick.

import { list } from "./view";

/** The view's text for some of all names: empty for all. */
export function chosenText(all: string[], chosen: string[]): string {
  return chosen.length === 0 || chosen.length === all.length ? "" : all.filter((name) => chosen.includes(name)).join(",");
}

export class Choice {
  private all: string[] | undefined; // of the boxes; none was built yet
  private box = document.createElement("div");
  private summary = document.createElement("summary");

  constructor(private host: HTMLDetailsElement, private what: string, private choose: (text: string) => void) {
    this.box.className = "choice";
    host.replaceChildren(this.summary, this.box);
    addEventListener("click", (event) => {
      if (host.open && !host.contains(event.target as Node)) {
        host.open = false;
      }
    });
    host.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        host.open = false;
        this.summary.focus();
      }
    });
  }

  show(all: string[], text: string): void {
    const chosen = list(text).filter((name) => all.includes(name));
    const some = chosen.length > 0;
    this.summary.textContent = some ? `${this.what}: ${chosen.length} of ${all.length}` : `${this.what}: all`;
    this.host.hidden = all.length === 0;
    if (all.join("\n") !== this.all?.join("\n")) {
      this.all = all;
      this.build(all);
    }
    for (const input of this.box.querySelectorAll<HTMLInputElement>("input[name]")) {
      input.checked = some && chosen.includes(input.name);
    }
    this.box.querySelector<HTMLInputElement>("input[value=all]")!.checked = !some;
  }

  private build(all: string[]): void {
    const everything = document.createElement("input");
    everything.type = "checkbox";
    everything.value = "all";
    everything.addEventListener("change", () => this.choose(""));
    this.box.replaceChildren(labelled(everything, "all"));
    for (const name of all) {
      const input = document.createElement("input");
      input.type = "checkbox";
      input.name = name;
      input.addEventListener("change", () => {
        const ticked = [...this.box.querySelectorAll<HTMLInputElement>("input[name]:checked")].map((i) => i.name);
        this.choose(chosenText(all, ticked));
      });
      this.box.append(labelled(input, name));
    }
  }
}

function labelled(input: HTMLInputElement, text: string): HTMLElement {
  const label = document.createElement("label");
  label.append(input, " ", text);
  return label;
}
