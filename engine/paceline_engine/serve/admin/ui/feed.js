// What the engine says, as it comes: the admin port is asked, and what it said is kept for a while.

import { parseMetrics } from "./figures.js";

// The page may stand behind a prefix (a proxy, a port-forward), so paths are relative to it.
const BASE = "../v1/paceline/";
const KEPT_S = 660;
const MOST_STEPS = 512;
const STEPS_AT_FIRST = 1024;
const METRICS_KEPT_S = 60;

/** The admin port refused or did not answer; `status` is 0 where nothing answered. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Feed {
  /** The token lives here alone: in no URL, no storage, no cookie. */
  #token = "";

  constructor() {
    this.steps = [];
    this.pages = [];
    this.now = 0;
    this.missed = false;
    this.want = STEPS_AT_FIRST;
  }

  set token(value) {
    this.#token = value;
  }

  async ask(path, { method = "GET", body } = {}) {
    const headers = {};
    if (this.#token) headers.Authorization = `Bearer ${this.#token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        credentials: "omit",
      });
    } catch {
      throw new Refused(0, "the engine's admin port does not answer; trying again");
    }
    if (!answer.ok) throw new Refused(answer.status, await messageOf(answer));
    return answer;
  }

  async json(what) {
    return (await this.ask(BASE + what)).json();
  }

  status() {
    return this.json("status");
  }

  async requests() {
    return (await this.json("requests")).requests;
  }

  settings() {
    return this.json("settings");
  }

  async tuning() {
    return (await this.json("tuning")).tuning;
  }

  /** Change settings; answers {generation, old, new}. */
  async change(changes) {
    return (await this.ask(`${BASE}settings`, { method: "PATCH", body: changes })).json();
  }

  /** Steps since the last call. The engine answers between two steps, so no more than needed. */
  async readSteps() {
    const { steps, nowS } = await this.json(`steps?limit=${this.want}`);
    const last = this.steps.at(-1);
    // A restarted engine counts from the beginning.
    if (last && steps.length && steps.at(-1).plannedS < last.plannedS) this.steps = [];
    const known = this.steps.at(-1)?.plannedS ?? -Infinity;
    const fresh = steps.filter((step) => step.plannedS > known);
    this.missed = fresh.length === steps.length && this.steps.length > 0 && steps.length > 0;
    this.want = Math.min(MOST_STEPS, Math.max(16, fresh.length * 2 + 8));
    this.steps.push(...fresh);
    const oldest = nowS - KEPT_S;
    const first = this.steps.findIndex((step) => step.appliedS >= oldest);
    this.steps.splice(0, first < 0 ? this.steps.length : first);
    this.now = nowS;
  }

  async readMetrics() {
    const page = parseMetrics(await (await this.ask("../metrics")).text());
    const at = performance.now() / 1e3;
    this.pages = this.pages.filter((one) => one.at >= at - METRICS_KEPT_S);
    this.pages.push({ at, page });
  }
}

async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the admin port answered ${answer.status}`;
  }
}
