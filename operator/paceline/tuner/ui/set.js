// A replica set: its figures, its engines one by one, what ails it, and how it went.

import { Chart, element } from "./chart.js";
import { age, ms, number } from "./figures.js";
import { Tiles, item } from "./parts.js";

const MOST_ROWS = 24;
const FULL = 0.95; // KV pressure begins here
const TILES = ["running", "waiting", "output", "step", "ttft", "itl", "kv", "preemptions"];
const percent = (share) => `${number(100 * share, share > 0 && share < 0.1 ? 1 : 0)} %`;
const seconds = (value) => ms(milliseconds(value));
const whole = (value) => number(value, value > 0 && value < 10 ? 1 : 0);

export class ReplicaSet {
  constructor(name) {
    this.root = document.getElementById("set").content.firstElementChild.cloneNode(true);
    this.root.dataset.name = name;
    this.find(".name").textContent = name;
    this.tiles = new Tiles(this.find(".tiles"), TILES);
    const chart = (place, series, how) => new Chart(this.find(`.charts .${place}`), series, how);
    const latency = (place, tone, limits) =>
      chart(place, [{ key: "p50", label: "p50", tone }], { limits, text: seconds, most: "p99" });
    const target = [{ key: "target", label: "target", tone: "target" }];
    this.charts = {
      requests: chart(
        "requests",
        [
          { key: "running", label: "running", tone: "c2" },
          { key: "waiting", label: "waiting", tone: "c3" },
        ],
        {
          limits: [{ key: "cap", label: "maxNumSeqs", tone: "target" }],
          text: whole,
          events: "preempted",
        },
      ),
      kv: chart(
        "kv",
        [
          { key: "active", label: "active", tone: "c1" },
          { key: "cached", label: "cached", tone: "c2" },
          { key: "free", label: "free", tone: "quiet" },
        ],
        { text: percent, events: "preempted" },
      ),
      output: chart("output", [{ key: "output", label: "output", tone: "c4" }], { text: whole }),
      step: latency("step", "c1", []),
      itl: latency("itl", "c2", target),
      ttft: latency("ttft", "c3", target),
    };
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  show(set, look) {
    const count = set.diagnosis.recommendations?.length ?? 0;
    const isKnown = set.diagnosis.windows >= look.windows;
    const pill = this.find(".pill");
    pill.textContent = !isKnown ? "not known yet" : count ? plural(count, "symptom") : "nothing is wrong";
    pill.className = `pill ${!isKnown ? "" : count ? "warn" : "good"}`;
    this.find(".about").textContent = set.selector;
    this.showTiles(set, look.spanS);
    this.showEngines(set);
    this.showDiagnosis(set.diagnosis, look);
    this.draw(set, look);
  }

  showTiles({ now, engines, settings, targets, course }, spanS) {
    const cap = capOf(settings, engines);
    const rate = (name, digits) => (now[name] === undefined ? "–" : number(now[name] / spanS, digits));
    this.tiles.set("running", "running", text(now.running, number), cap ? `of ${number(cap)}` : "",
      `${rate("finished", 1)} requests/s end`);
    const { waiting, oldestWaiting: oldest } = now;
    this.tiles.set("waiting", "waiting", text(waiting, number), "",
      !waiting ? "nobody waits" : oldest === undefined ? "somebody waits" : `the oldest for ${age(oldest)}`,
      waiting ? "warn" : "");
    this.tiles.set("output", "output", rate("outputTokens", now.outputTokens < 10 * spanS ? 1 : 0),
      "tokens/s", `and ${rate("promptTokens")} of prompts`);
    const latency = (name, title, target) =>
      this.tiles.setLatency(name, title, milliseconds(now[`${name}P50`]),
        milliseconds(now[`${name}P99`]), target ? target * 1e3 : null);
    latency("step", "step time");
    latency("ttft", "first token", targets.ttft);
    latency("itl", "token gap", targets.itl);
    this.tiles.set("kv", "KV blocks in use", text(now.kvUsage, percent), "",
      now.kvBlocks ? `of ${number(now.kvBlocks)}, fullest ${text(now.kvUsageMost, percent)}`
        : `fullest engine ${text(now.kvUsageMost, percent)}`,
      now.kvUsageMost > FULL ? "warn" : "");
    const preempted = Math.round(now.preemptions ?? 0);
    const shown = course.reduce((sum, point) => sum + (point.preemptions ?? 0), 0);
    this.tiles.set("preemptions", "preemptions", text(now.preemptions, () => number(preempted)),
      `in ${age(spanS)}`, `${number(Math.round(shown))} shown`, preempted ? "warn" : "");
  }

  showEngines({ engines, targets }) {
    this.find(".engines .count").textContent = number(engines.length);
    // Those that somebody waits for come first, where not all can be shown.
    const busiest = [...engines].sort((a, b) => (b.waiting ?? 0) - (a.waiting ?? 0));
    const shown = engines.length > MOST_ROWS ? busiest.slice(0, MOST_ROWS) : engines;
    this.find(".engines tbody").replaceChildren(...shown.map((one) => rowOf(one, targets)));
    const more = engines.length - shown.length;
    this.find(".engines .more").textContent = more ? `and ${number(more)} more` : "";
  }

  showDiagnosis(diagnosis, { windows, windowS }) {
    const { problem, recommendations = [], notEvaluated = {}, estimated = [] } = diagnosis;
    const isKnown = diagnosis.windows >= windows;
    this.find(".diagnosis .count").textContent = problem
      ? ""
      : `${number(diagnosis.windows)} of ${number(windows)} windows of ${age(windowS)}`;
    const items = recommendations.map(recommended);
    if (problem) items.push(item("", "not known", [problem]));
    else if (!isKnown) items.push(item("", "wait", ["a symptom has to show in three windows in a row"]));
    else if (!items.length) {
      items.push(item("good", "nothing is wrong", ["as far as it could be evaluated"]));
    }
    if (estimated.length) {
      const names = estimated.join(", ");
      items.push(item("", "estimated", [`from histograms: shares within the targets of ${names}`]));
    }
    this.find(".diagnosis .story").replaceChildren(...items);
    const lacks = Object.entries(notEvaluated);
    this.find("details").hidden = !lacks.length;
    this.find("summary").textContent = `${number(lacks.length)} not evaluated`;
    this.find(".lacks").replaceChildren(
      ...lacks.map(([name, lack]) => item("", name, [`needs ${lack}`])),
    );
  }

  draw({ course, settings, targets, engines }, { spanS, at, points }) {
    const [from, to] = [at - points * spanS, at];
    const blocks = (values, most) =>
      course
        .map((point) => ({
          from: point.at - spanS,
          to: point.at,
          values: values(point),
          most: most && point[most],
          events: point.preemptions >= 0.5,
        }))
        .filter((block) => Object.values(block.values).every((value) => value !== undefined));
    const latency = (name) => blocks((point) => ({ p50: point[`${name}P50`] }), `${name}P99`);
    const cap = capOf(settings, engines);
    const requests = blocks(({ running, waiting }) => ({ running, waiting }));
    this.charts.requests.draw(requests, from, to, { cap });
    this.charts.kv.draw(blocks(blockShares), from, to);
    const output = blocks((point) => ({ output: perSecond(point.outputTokens, spanS) }));
    this.charts.output.draw(output, from, to);
    this.charts.step.draw(latency("step"), from, to);
    this.charts.itl.draw(latency("itl"), from, to, { target: targets.itl ?? null });
    this.charts.ttft.draw(latency("ttft"), from, to, { target: targets.ttft ?? null });
  }
}

export function plural(count, name) {
  return `${number(count)} ${name}${count === 1 ? "" : "s"}`;
}

/** Shares of the blocks; vLLM tells no cached ones. */
function blockShares({ kvUsage: active, kvCached: cached = 0 }) {
  return { active, cached, free: active === undefined ? undefined : Math.max(0, 1 - active - cached) };
}

function capOf(settings, engines) {
  return Number(settings.maxNumSeqs) * engines.length || null;
}

function perSecond(count, spanS) {
  return count === undefined ? undefined : count / spanS;
}

function milliseconds(value) {
  return value === undefined ? null : value * 1e3;
}

function text(value, how) {
  return value === undefined ? "–" : how(value);
}

function recommended({ symptom, text: sentence, evidence, change, flag }) {
  const figures = Object.entries(evidence).map(([name, value]) => `${name} ${+value.toPrecision(4)}`);
  const made = item("warn", symptom, [sentence, figures.join(", ")]);
  made.lastChild.className = "faint";
  for (const line of [change, flag && `vllm serve ${flag}`].filter(Boolean)) {
    const code = element("code", "change");
    code.textContent = line;
    made.append(code);
  }
  return made;
}

function rowOf(engine, targets) {
  const row = element("tr");
  const name = element("td");
  name.textContent = name.title = engine.name;
  const kv = element("td", "blocks");
  kv.append(meterOf(engine));
  row.append(
    name,
    cell(text(engine.running, number)),
    cell(text(engine.waiting, number), engine.waiting ? "warn" : ""),
    kv,
    cell(text(engine.preemptions, (v) => number(Math.round(v))), engine.preemptions >= 0.5 ? "warn" : ""),
    ...["step", "itl", "ttft"].map((latency) => {
      const [p50, p99] = [engine[`${latency}P50`], engine[`${latency}P99`]];
      const isLate = targets[latency] && p99 > targets[latency];
      return cell(p99 === undefined ? "–" : `${seconds(p50)} · ${seconds(p99)}`, isLate ? "warn" : "");
    }),
  );
  return row;
}

function cell(words, tone = "") {
  const made = element("td", `num ${tone}`);
  made.textContent = words;
  return made;
}

/** Blocks of one engine: active, cached, free. */
function meterOf({ kvUsage, kvCached = 0, kvBlocks }) {
  const meter = element("div", "meter");
  const bar = element("div", "bar");
  if (kvUsage === undefined) return meter;
  for (const [tone, share] of [["c1", kvUsage], ["c2", kvCached], ["quiet", 1 - kvUsage - kvCached]]) {
    if (share <= 0) continue;
    const part = element("i", tone);
    part.style.flexGrow = share;
    bar.append(part);
  }
  bar.title = `${percent(kvUsage)} active, ${percent(kvCached)} cached`;
  const words = element("span");
  words.textContent = percent(kvUsage) + (kvBlocks ? ` of ${number(kvBlocks)}` : "");
  meter.append(bar, words);
  return meter;
}
