// The settings: what is in force, and a way to change what may change while the engine serves.

import { element } from "./chart.js";
import { Refused } from "./feed.js";

export class Settings {
  /**
   * @param {object[]} catalog of the contract: name, kind, choices, unit, help, expected, live
   * @param {(changes: object) => Promise<object>} change sends them
   */
  constructor(catalog, change) {
    this.change = change;
    this.note = document.getElementById("settings-note");
    this.rows = new Map();
    const live = document.getElementById("live-settings");
    const start = document.getElementById("start-settings");
    for (const knob of catalog) {
      const row = knob.live ? this.liveRow(knob) : startRow(knob);
      this.rows.set(knob.name, row);
      (knob.live ? live : start).append(row.element);
    }
  }

  /** Show what is in force. A field that a person is editing keeps what they wrote. */
  show({ settings, generation, revision, inForce }) {
    document.getElementById("generation").textContent =
      `generation ${generation}, revision ${revision}`;
    for (const [name, row] of this.rows) row.show(settings[name], inForce[name]);
  }

  liveRow(knob) {
    const { row, title } = rowOf(knob);
    const field = fieldOf(knob);
    field.setAttribute("aria-label", knob.name);
    const button = element("button");
    button.type = "button";
    button.textContent = "Set";
    button.disabled = true;
    title.append(field, button);
    let shown = "";
    const mark = () => {
      const isChanged = field.value !== shown;
      row.classList.toggle("changed", isChanged);
      button.disabled = !isChanged;
    };
    field.addEventListener("input", mark);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !button.disabled) button.click();
      if (event.key === "Escape") {
        field.value = shown;
        mark();
      }
    });
    button.addEventListener("click", async () => {
      button.disabled = true;
      await this.send(knob, field.value);
      mark();
    });
    return {
      element: row,
      show(value, inForce) {
        const text = textOf(value);
        const isEdited = field.value !== shown;
        shown = text;
        if (!isEdited || field.value === text) field.value = text;
        const derived = value === null && inForce ? `${inForce} in force` : "";
        field.placeholder = derived || (value === null ? "not set" : "");
        mark();
      },
    };
  }

  async send(knob, text) {
    this.tell("", "");
    try {
      const { generation, old, new: now } = await this.change({ [knob.name]: valueOf(knob, text) });
      const turned = Object.keys(now).map(
        (name) => `${name} ${textOf(old[name]) || "not set"} → ${textOf(now[name]) || "not set"}`,
      );
      this.tell("good", `${turned.join(", ") || "nothing changed"}; in force, generation ${generation}`);
    } catch (error) {
      if (!(error instanceof Refused) && !(error instanceof SyntaxError)) throw error;
      const why = error instanceof Refused ? error.message : `${knob.name} must be ${knob.expected}`;
      this.tell("bad", why);
    }
  }

  tell(tone, text) {
    this.note.className = `note ${tone}`;
    this.note.textContent = text;
  }
}

function rowOf(knob) {
  const row = element("div", "setting");
  row.dataset.name = knob.name;
  const name = element("code");
  name.textContent = knob.name;
  const unit = element("span", "unit");
  unit.textContent = knob.unit ? `  ${knob.unit}` : "";
  const head = element("div");
  head.append(name, unit);
  row.append(head);
  row.title = `${knob.help} (${knob.expected})`;
  return { row, title: row };
}

function startRow(knob) {
  const { row } = rowOf(knob);
  const value = element("output");
  row.append(value);
  return {
    element: row,
    show(found) {
      value.textContent = textOf(found) || "not set";
    },
  };
}

function fieldOf(knob) {
  if (!knob.choices.length) {
    const input = element("input");
    input.autocomplete = "off";
    input.spellcheck = false;
    return input;
  }
  const select = element("select");
  for (const choice of knob.choices) select.append(new Option(choice, choice));
  return select;
}

function textOf(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What was typed as the value that the API takes. Decimals are text there. */
function valueOf(knob, text) {
  const typed = text.trim();
  if (typed === "") return null;
  if (knob.kind === "string") return typed;
  if (knob.kind === "integer") return /^-?\d+$/.test(typed) ? Number(typed) : typed;
  return JSON.parse(typed);
}
