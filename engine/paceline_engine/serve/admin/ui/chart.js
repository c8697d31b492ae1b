// A chart of what steps did over time: stacked areas, limits as dashed lines, events as ticks.

import { age, axis, number, quantile } from "./figures.js";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 44;
const RIGHT = 8;
const TOP = 12;
const BOTTOM = 18;

/**
 * One chart in a card.
 *
 * `draw` takes blocks of time: {from, to, values: {key: number}, most?: number, events?: number}.
 * Values are stacked in the order of the series; a limit's value is drawn across.
 */
export class Chart {
  /**
   * @param {HTMLElement} card that has a heading
   * @param {{key: string, label: string, tone: string}[]} series from the bottom up
   * @param {object} how
   * @param {{key: string, label: string, tone: string}[]} how.limits
   * @param {(value: number) => string} how.text a value in words
   * @param {string} how.most what the thin line above the areas is
   * @param {string} how.events what a tick at the bottom is
   */
  constructor(card, series, { limits = [], text = (v) => number(v), most = "", events = "" } = {}) {
    Object.assign(this, { series, limits, text, most, events });
    this.legend = element("div", "legend");
    this.host = element("div", "chart");
    this.tip = element("div", "tip");
    this.tip.hidden = true;
    this.svg = document.createElementNS(SVG, "svg");
    this.host.append(this.svg, this.tip);
    card.append(this.legend, this.host);
    this.figures = new Map();
    for (const one of [...series].reverse()) this.addKey(one, "");
    for (const one of limits) this.addKey(one, "line");
    if (most) this.legend.append(keyOf("cap", "line", most));
    if (events) this.legend.append(keyOf("bad", "", events));
    this.host.addEventListener("pointermove", (event) => this.point(event));
    this.host.addEventListener("pointerleave", () => this.point(null));
  }

  addKey({ key, label, tone }, kind) {
    const item = keyOf(tone, kind, `${label} `);
    const figure = element("b");
    this.figures.set(key, figure);
    item.append(figure);
    this.legend.append(item);
  }

  /**
   * @param {object[]} blocks oldest first
   * @param {number} from start of the time shown, s
   * @param {number} to its end
   * @param {Object<string, number|null>} limits value of each limit, null for none
   * @param {{at: number, name: string}[]} turns moments to mark
   */
  draw(blocks, from, to, limits = {}, turns = []) {
    const { width, height } = this.host.getBoundingClientRect();
    if (!width) return;
    // One slow step in a hundred must not flatten the others: its line is then at the upper edge.
    const usual = quantile(blocks.map((block) => block.most ?? 0), 0.97) ?? 0;
    const highest = Math.max(usual, ...blocks.map((block) => this.sum(block)));
    // A limit far above everything would flatten what is there: then it is only in the legend.
    const shown = Object.values(limits).filter((v) => v !== null && (!highest || v <= 4 * highest));
    const { step, top } = axis(Math.max(highest, ...shown, 1e-6) * 1.02);
    this.frame = { blocks, from, to, width, height };
    this.x = (s) => LEFT + ((s - from) / (to - from)) * (width - LEFT - RIGHT);
    this.y = (value) => height - BOTTOM - (Math.min(value, top) / top) * (height - TOP - BOTTOM);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const parts = [...this.grid(step, top), ...this.areas(blocks)];
    for (const { key, tone } of this.limits) {
      const value = limits[key] ?? null;
      this.figures.get(key).textContent = value === null ? "none" : this.text(value);
      if (value !== null && value <= top) {
        parts.push(path(`limit ${tone}`, `M${LEFT} ${this.y(value)}H${width - RIGHT}`));
      }
    }
    for (const { at, name } of turns) parts.push(...this.turn(at, name));
    this.cursor = path("cursor", "");
    this.svg.replaceChildren(...parts, this.cursor);
    const last = blocks.at(-1);
    for (const { key } of this.series) {
      this.figures.get(key).textContent = last ? this.text(last.values[key]) : "";
    }
    this.point(this.pointer ?? null);
  }

  sum(block) {
    return this.series.reduce((sum, { key }) => sum + block.values[key], 0);
  }

  grid(step, top) {
    const { width, height, from, to } = this.frame;
    const parts = [];
    for (let value = 0; value <= top + step / 2; value += step) {
      const y = this.y(value);
      parts.push(path(value ? "grid" : "axis", `M${LEFT} ${y}H${width - RIGHT}`));
      parts.push(label(value ? this.text(value) : "0", LEFT - 6, y + 4, "end"));
    }
    const gap = [10, 15, 30, 60, 120, 300].find((s) => (to - from) / s <= 6) ?? 600;
    for (let back = 0; back <= to - from; back += gap) {
      const anchor = back ? "middle" : "end";
      const minutes = `${Math.floor(back / 60)}:${String(back % 60).padStart(2, "0")}`;
      const name = back ? `−${back < 60 ? `${back} s` : minutes}` : "now";
      parts.push(label(name, this.x(to - back), height - 4, anchor));
    }
    return parts;
  }

  areas(blocks) {
    const base = blocks.map(() => 0);
    const parts = [];
    for (const { key, tone } of this.series) {
      let line = "";
      blocks.forEach((block, index) => {
        const low = base[index];
        base[index] += block.values[key];
        if (base[index] === low) return;
        const x = Math.round(this.x(block.from)); // whole pixels: no seams between neighbours
        const wide = Math.max(1, Math.round(this.x(block.to)) - x);
        const y = this.y(base[index]);
        line += `M${fixed(x)} ${fixed(y)}h${fixed(wide)}V${fixed(this.y(low))}h${fixed(-wide)}Z`;
      });
      parts.push(path(`area ${tone}`, line));
    }
    const most = blocks.filter((block) => block.most > this.sum(block) * 1.02);
    const lines = most.map((b) => `M${fixed(this.x(b.from))} ${fixed(this.y(b.most))}H${fixed(Math.max(this.x(b.to), this.x(b.from) + 1.5))}`);
    parts.push(path("most", lines.join("")));
    const events = blocks.filter((block) => block.events);
    const bottom = this.frame.height - BOTTOM;
    const ticks = events.map((b) => `M${fixed(this.x(b.from))} ${bottom}l4 -8l4 8Z`);
    parts.push(path("event", ticks.join("")));
    return parts;
  }

  turn(at, name) {
    const x = this.x(at);
    const isLate = x > this.frame.width - 80;
    const text = label(name, x + (isLate ? -4 : 4), TOP - 2, isLate ? "end" : "start");
    text.setAttribute("class", "turn-name");
    return [path("turn", `M${x} ${TOP - 8}V${this.frame.height - BOTTOM}`), text];
  }

  /** Show what was at the pointer. */
  point(event) {
    this.pointer = event;
    const at = event && this.frame ? this.under(event) : null;
    this.tip.hidden = !at;
    this.cursor?.setAttribute("d", "");
    if (!at) return;
    const { block, x } = at;
    this.cursor.setAttribute("d", `M${x} ${TOP}V${this.frame.height - BOTTOM}`);
    const ago = element("div");
    ago.textContent = `${age(Math.max(0, this.frame.to - block.to))} ago`;
    const rows = [...this.series].reverse().map(({ key, label: name, tone }) => {
      const row = keyOf(tone, "", `${name} `);
      const figure = element("b");
      figure.textContent = this.text(block.values[key]);
      row.append(figure);
      return row;
    });
    if (block.most) rows.push(keyOf("cap", "line", `${this.most} ${this.text(block.most)}`));
    this.tip.replaceChildren(ago, ...rows.map(asRow));
    const left = x > this.frame.width / 2 ? x - this.tip.offsetWidth - 12 : x + 12;
    this.tip.style.left = `${left}px`;
  }

  under(event) {
    const x = event.clientX - this.host.getBoundingClientRect().left;
    const { blocks } = this.frame;
    const block = blocks.find((one) => this.x(one.from) <= x && x <= this.x(one.to) + 1);
    return block ? { block, x } : null;
  }
}

/** An element with a class. */
export function element(name, className = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  return made;
}

function keyOf(tone, kind, text) {
  const item = element("span", tone);
  const mark = element("i", kind);
  item.append(mark, text);
  return item;
}

function asRow(item) {
  const row = element("div", "legend");
  row.append(item);
  return row;
}

function path(className, d) {
  const made = document.createElementNS(SVG, "path");
  made.setAttribute("class", className);
  made.setAttribute("d", d);
  return made;
}

function label(text, x, y, anchor) {
  const made = document.createElementNS(SVG, "text");
  made.setAttribute("x", x);
  made.setAttribute("y", y);
  made.setAttribute("text-anchor", anchor);
  made.textContent = text;
  return made;
}

function fixed(value) {
  return value.toFixed(1);
}
