// Recordings that are opened in the page, where it is that of psidecar show, which
// reads them; any other page has the command that opens them beside its jobs.

import { open } from "./api";
import { command, quoted } from "./copy";
import { bytes } from "./format";

/** What to do with a file: why it cannot be opened here, or nothing where it can. */
export function refusal(name: string, size: number, limit: number): string {
  if (size === 0) {
    return `${name} is empty, or a directory.`;
  }
  return size > limit ? `${name} has ${bytes(size)}, which exceeds the limit of ${bytes(limit)}: pass it to psidecar show as an argument.` : "";
}

export class Recordings {
  /** How long a recording may be that is opened here; 0: none is. */
  limit = 0;

  /**
   * Opens what the button's dialog gives and what is dropped on the page. say tells
   * how it goes, and opened what came: the jobs of one file after the other.
   */
  constructor(
    private button: HTMLButtonElement,
    file: HTMLInputElement,
    private message: HTMLElement,
    private opened: (jobs: string[]) => void,
  ) {
    button.addEventListener("click", () => file.click());
    file.addEventListener("change", () => {
      void this.open([...(file.files ?? [])]).then(() => (file.value = ""));
    });
    const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
    const over = (isOver: boolean) => document.body.classList.toggle("dropping", isOver);
    addEventListener("dragover", (event) => {
      if (hasFiles(event)) {
        event.preventDefault(); // or the browser leaves the page for the file
        over(true);
      }
    });
    addEventListener("dragleave", (event) => event.relatedTarget === null && over(false));
    addEventListener("drop", (event) => {
      if (hasFiles(event)) {
        event.preventDefault();
        over(false);
        void this.open([...event.dataTransfer!.files]);
      }
    });
  }

  show(limit: number): void {
    this.limit = limit;
    this.button.hidden = limit === 0;
  }

  private say(isBad: boolean, ...parts: (string | HTMLElement)[]): void {
    this.message.replaceChildren(...parts);
    this.message.classList.toggle("bad", isBad);
    this.message.hidden = parts.length === 0;
  }

  private async open(files: File[]): Promise<void> {
    if (this.limit === 0 && files[0]) {
      this.say(true, "This page opens no files. To show a recording next to the jobs of this page: ", command(`psidecar show ${quoted(files[0].name)} --live ${location.host}`));
      return;
    }
    const jobs: string[] = [];
    for (const file of files) {
      const why = refusal(file.name, file.size, this.limit);
      if (why) {
        this.say(true, why);
        return;
      }
      this.say(false, `Reading ${file.name} (${bytes(file.size)}) …`);
      try {
        jobs.push(...(await open(file.name, file)).jobs);
      } catch (problem) {
        this.say(true, `Not opened: ${problem instanceof Error ? problem.message : problem}`);
        return;
      }
    }
    this.say(false);
    if (jobs.length > 0) {
      this.opened(jobs);
    }
  }
}
