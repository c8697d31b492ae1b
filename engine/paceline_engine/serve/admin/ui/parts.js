// What pages are put together from: figures at the top, items of a story, buttons of the header.

import { element } from "./chart.js";
import { ms } from "./figures.js";

/** A row of figures, each with a heading and a line below. */
export class Tiles {
  /**
   * @param {HTMLElement} host
   * @param {string[]} names in the order in which they stand
   */
  constructor(host, names) {
    this.tiles = new Map();
    for (const name of names) {
      const tile = element("div", "tile");
      tile.dataset.name = name;
      const title = element("span");
      const figure = element("b");
      const under = element("span");
      tile.append(title, figure, under);
      host.append(tile);
      this.tiles.set(name, { tile, title, figure, under });
    }
  }

  set(name, title, figure, unit, under, tone = "") {
    const at = this.tiles.get(name);
    at.tile.className = `tile ${tone}`;
    at.title.textContent = title;
    const small = element("small");
    small.textContent = unit ? ` ${unit}` : "";
    at.figure.replaceChildren(figure, small);
    at.under.textContent = under;
    at.under.title = under;
  }

  /** A latency in milliseconds, amber where its p99 misses the target. */
  setLatency(name, title, p50, p99, target) {
    const isOver = Boolean(target) && p99 !== null && p99 > target;
    const under = `p99 ${ms(p99)}${target ? `, ≤ ${ms(target)}` : ""}`;
    this.set(name, `${title}, p50`, ms(p50), "", under, isOver ? "warn" : "");
  }
}

/** An item of a story: a name and lines of text, empty ones left out. */
export function item(tone, title, lines) {
  const made = element("li", tone);
  const name = element("b");
  name.textContent = title;
  made.append(name);
  for (const line of lines.filter(Boolean)) {
    const text = element("p");
    text.textContent = line;
    made.append(text);
  }
  return made;
}

/** An element, with a sentence or hidden. */
export function tell(where, sentence) {
  where.textContent = sentence;
  where.hidden = !sentence;
}

/** Make a button hold the page; answers whether it does. */
export function holdBy(button) {
  let isHeld = false;
  button.addEventListener("click", () => {
    isHeld = !isHeld;
    button.textContent = isHeld ? "Go on" : "Pause";
    button.setAttribute("aria-pressed", String(isHeld));
  });
  return () => isHeld;
}

/** Make a button switch between light and dark. */
export function switchThemeBy(button) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const name = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  dark.addEventListener("change", name);
  name();
}
