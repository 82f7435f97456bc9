// What can be copied: keys that are too long to show, and commands that do what
// the page does not, since it changes nothing.

/** Puts text into the clipboard, also where the page has no secure origin. */
async function copy(text: string): Promise<void> {
  if (navigator.clipboard && isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Has a click on the button copy a text, and say that it did. */
export function copies(button: HTMLButtonElement, text: () => string): void {
  button.addEventListener("click", () => {
    const label = button.textContent;
    void copy(text()).then(
      () => (button.textContent = "copied"),
      () => (button.textContent = "not copied"),
    );
    setTimeout(() => (button.textContent = label), 1200);
  });
}

/** A key in short; over it stands the whole, which a click copies. */
export function keyElement(short: string, whole: string): HTMLElement {
  if (short.replaceAll("\u202f", "") === whole) {
    const out = document.createElement("span");
    out.textContent = short;
    return out;
  }
  const button = document.createElement("button");
  button.type = "button";
  button.className = "key";
  button.textContent = short;
  button.title = `${whole} (click to copy)`;
  button.setAttribute("aria-label", `${short}: copy ${whole}`);
  copies(button, () => whole);
  return button;
}

/** A command line and a button that copies it. */
export function command(text: string): HTMLElement {
  const out = document.createElement("span");
  out.className = "command";
  const code = document.createElement("code");
  code.textContent = text;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy";
  button.setAttribute("aria-label", `copy the command ${text}`);
  copies(button, () => text);
  out.append(code, button);
  return out;
}

/** A word as a shell takes it. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
