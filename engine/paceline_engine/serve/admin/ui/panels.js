// What stands in words and tables: the tiles, the requests and why they wait, the tuner's story.

import { element } from "./chart.js";
import { age, buckets, histogramQuantile, number, quantile, stepMs, total } from "./figures.js";
import { Tiles, item } from "./parts.js";

const MOST_ROWS = 24;
const WHY = {
  SequenceLimit: "as many run as maxNumSeqs allows",
  TokenBudget: "the step's token budget was spent",
  KVBlocks: "too few KV blocks are free",
  Preemption: "a step that preempts admits nobody",
  StaticBatch: "the batch before it has to end",
  TenantLimit: "its tenant has its share",
  NotTried: "it has just come, or stands behind one that waits",
  GrammarCompiling: "its grammar is being compiled",
};

/** The figures at the top. */
export class Figures extends Tiles {
  constructor() {
    const names = ["running", "waiting", "output", "step", "ttft", "itl", "kv", "preemptions"];
    super(document.getElementById("tiles"), names);
  }

  show({ feed, settings, status, seconds }) {
    const shown = feed.steps.filter((step) => step.appliedS >= feed.now - seconds);
    const page = feed.pages.at(-1)?.page;
    const knobs = settings.settings;
    const waiting = total(page, "vllm:num_requests_waiting");
    const oldest = total(page, "paceline:oldest_waiting_seconds");
    const running = total(page, "vllm:num_requests_running");
    const since = total(page, "vllm:num_preemptions_total");
    this.set("running", "running", number(running), `of ${knobs.maxNumSeqs}`,
      `${number(total(page, "vllm:request_success_total"))} ended so far`);
    this.set("waiting", "waiting", number(waiting), "",
      waiting ? `the oldest for ${age(oldest)}` : "nobody waits", waiting ? "warn" : "");
    this.showRate(feed);
    this.showSteps(shown, settings.inForce.interTokenTargetMs);
    this.showLatency("ttft", "first token", "vllm:time_to_first_token_seconds", feed,
      knobs.sloTtftMs);
    this.showLatency("itl", "token gap", "vllm:inter_token_latency_seconds", feed,
      knobs.sloItlMs);
    const usage = total(page, "vllm:kv_cache_usage_perc");
    this.set("kv", "KV blocks in use", number(100 * usage, usage < 0.1 ? 1 : 0), "%",
      `of ${number(status.capacity?.kvBlocks ?? 0)} blocks`, usage > 0.95 ? "warn" : "");
    const preempted = shown.reduce((sum, step) => sum + step.numPreempted, 0);
    this.set("preemptions", "preemptions", number(preempted), "shown",
      `${number(since)} since the start`, preempted ? "warn" : "");
  }

  showRate(feed) {
    const [first, last] = [feed.pages[0], feed.pages.at(-1)];
    const grown = (name) => total(last?.page, name) - total(first?.page, name);
    const seconds = last ? last.at - first.at : 0;
    const rate = (name) => (seconds > 0 ? Math.max(0, grown(name)) / seconds : 0);
    const output = rate("vllm:generation_tokens_total");
    this.set("output", "output", number(output, output < 10 ? 1 : 0), "tokens/s",
      `and ${number(rate("vllm:prompt_tokens_total"))} of prompts`);
  }

  showSteps(shown, target) {
    const times = shown.map(stepMs);
    this.setLatency("step", "step time", quantile(times, 0.5), quantile(times, 0.99), target);
  }

  showLatency(name, title, metric, feed, target) {
    const now = buckets(feed.pages.at(-1)?.page, metric);
    const then = feed.pages.length > 1 ? buckets(feed.pages[0].page, metric) : null;
    const at = (q) => {
      const found = now.size ? histogramQuantile(now, then, q) : null;
      return found === null ? null : found * 1e3;
    };
    this.setLatency(name, title, at(0.5), at(0.99), target);
  }
}

/** The table of requests, and why those wait that do. */
export function showRequests(requests) {
  const waiting = requests.filter((one) => one.waitReason);
  const running = requests.filter((one) => !one.waitReason);
  document.getElementById("requests-count").textContent =
    `${running.length} running, ${waiting.length} waiting`;
  const counts = new Map();
  for (const { waitReason } of waiting) counts.set(waitReason, (counts.get(waitReason) ?? 0) + 1);
  const reasons = [...counts].sort((a, b) => b[1] - a[1]).map(([reason, count]) => {
    const line = element("div");
    const tag = element("span", "tag warn");
    tag.textContent = `${count} × ${reason}`;
    line.append(tag, `  ${WHY[reason] ?? ""}`);
    return line;
  });
  document.getElementById("reasons").replaceChildren(...reasons);
  // Half of the rows for each, what the other does not need besides.
  const half = MOST_ROWS / 2;
  const room = Math.max(half, MOST_ROWS - waiting.length);
  const shown = running.slice(0, room);
  shown.push(...waiting.slice(0, MOST_ROWS - shown.length));
  document.getElementById("request-rows").replaceChildren(...shown.map(rowOf));
  const more = requests.length - shown.length;
  document.getElementById("requests-more").textContent = requests.length
    ? (more ? `and ${number(more)} more` : "")
    : "No request is in the engine.";
}

function rowOf(one) {
  const row = element("tr");
  const id = element("td");
  id.textContent = id.title = one.externalId || `${one.id}`;
  const state = element("td");
  const isDecoding = !one.waitReason && one.numComputedTokens >= one.numPromptTokens;
  const tag = element("span", `tag ${one.waitReason ? "warn" : isDecoding ? "good" : "run"}`);
  tag.textContent = one.waitReason || (isDecoding ? "decode" : "prefill");
  tag.title = WHY[one.waitReason] ?? "";
  state.append(tag);
  if (one.numPreemptions) state.append(` preempted ${one.numPreemptions}×`);
  const tokens = element("td", "wide");
  tokens.append(meterOf(one));
  const cells = [number(one.numBlocks), age(one.ageS)].map((text) => {
    const cell = element("td", "num");
    cell.textContent = text;
    return cell;
  });
  row.append(id, state, tokens, ...cells);
  return row;
}

/** Cached, computed and missing tokens of the prompt, and its output. */
function meterOf(one) {
  const meter = element("div", "meter");
  const bar = element("div", "bar");
  const cached = Math.min(one.numCachedTokens, one.numComputedTokens);
  const prompt = Math.min(one.numComputedTokens, one.numPromptTokens) - cached;
  const missing = Math.max(0, one.numPromptTokens - one.numComputedTokens);
  const parts = [["c2", cached], ["c1", prompt], ["quiet", missing], ["c3", one.numOutputTokens]];
  for (const [tone, size] of parts) {
    if (size <= 0) continue;
    const part = element("i", tone);
    part.style.flexGrow = size;
    bar.append(part);
  }
  bar.title = `prompt ${one.numPromptTokens} (${cached} cached, ${missing} to compute), ` +
    `output ${one.numOutputTokens}`;
  const text = element("span");
  text.textContent = `${number(one.numPromptTokens)} + ${number(one.numOutputTokens)}`;
  meter.append(bar, text);
  return meter;
}

/** What the tuner has done and why, as `status.tuning` has it. */
export function showTuner(tuning) {
  const host = document.getElementById("tuner-story");
  document.getElementById("tuner-state").textContent = tuning?.state ?? "";
  if (!tuning) {
    const text = element("p", "faint");
    text.textContent =
      "No tuner runs beside this engine. `paceline run` has one; in a cluster the operator's " +
      "story is in the status of the LLMDeployment.";
    host.replaceChildren(text);
    return;
  }
  const list = element("ul", "story");
  if (tuning.current) list.append(changeOf(tuning.current, tuning.current.phase, "run"));
  for (const one of [...(tuning.history ?? [])].reverse()) {
    list.append(changeOf(one, one.outcome, one.outcome === "Accepted" ? "good" : "bad"));
  }
  for (const one of tuning.recommendations ?? []) {
    list.append(item("warn", one.symptom, [one.text, one.change]));
  }
  const seen = (tuning.symptoms ?? []).filter((one) => one.windows);
  for (const one of seen) {
    const figures = Object.entries(one.evidence ?? {}).map(([name, value]) => `${name} ${value}`);
    list.append(item("", one.name, [`shown by ${one.windows} window${one.windows === 1 ? "" : "s"}: ${figures.join(", ")}`]));
  }
  const lead = element("p", "faint");
  const calm = tuning.state ? "It watches; nothing is wrong so far." : "It has said nothing so far.";
  lead.textContent = tuning.message || tuning.lackOfMetrics || (list.childElementCount ? "" : calm);
  host.replaceChildren(lead, list);
}

function changeOf(change, outcome, tone) {
  const measured = Object.keys(change.measuredAfter ?? {})
    .filter((name) => name in (change.measuredBefore ?? {}))
    .map((name) => `${name} ${change.measuredBefore[name]} → ${change.measuredAfter[name]}`);
  const made = item(tone, `${change.setting} ${change.before} → ${change.after}`, [
    `${change.symptom}: ${change.reason ?? ""}`,
    measured.join(", "),
  ]);
  const tag = element("span", `tag ${tone}`);
  tag.textContent = outcome;
  made.firstChild.after("  ", tag);
  const moment = change.ended ?? change.phaseSince;
  if (moment) {
    const time = element("time");
    time.dateTime = moment;
    time.textContent = `  ${new Date(moment).toLocaleTimeString()}`;
    tag.after(time);
  }
  return made;
}
