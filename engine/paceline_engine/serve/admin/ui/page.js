// The page as a whole: it asks the admin port once a second and shows what it says.

import { Chart } from "./chart.js";
import { Feed } from "./feed.js";
import { PARTS, age, mean, ms, number, spans, stepMs } from "./figures.js";
import { Figures, showRequests, showTuner } from "./panels.js";
import { holdBy, switchThemeBy, tell } from "./parts.js";
import { Settings } from "./settings.js";

const EVERY_MS = 1000;
const SLOW_EVERY = 2;
const PAUSE_AFTER_PROBLEM_MS = 3000;
const by = (id) => document.getElementById(id);

const feed = new Feed();
const tiles = new Figures();
const charts = {
  steps: new Chart(
    by("chart-steps"),
    [
      { key: "planMs", label: "schedule", tone: "c3" },
      { key: "forwardMs", label: "forward", tone: "c1" },
      { key: "sampleMs", label: "sample", tone: "c2" },
      { key: "applyMs", label: "apply", tone: "c4" },
    ],
    { limits: [{ key: "target", label: "target", tone: "target" }], text: ms, most: "slowest" },
  ),
  budget: new Chart(
    by("chart-budget"),
    [
      { key: "numDecodeTokens", label: "decode", tone: "c2" },
      { key: "numDraftTokens", label: "drafts", tone: "c4" },
      { key: "numPrefillTokens", label: "prefill", tone: "c1" },
    ],
    { limits: [{ key: "budget", label: "budget", tone: "target" }], text: whole, most: "largest" },
  ),
  requests: new Chart(
    by("chart-requests"),
    [
      { key: "numRunning", label: "running", tone: "c2" },
      { key: "numWaiting", label: "waiting", tone: "c3" },
    ],
    {
      limits: [{ key: "cap", label: "maxNumSeqs", tone: "target" }],
      text: whole,
      events: "preempted",
    },
  ),
  blocks: new Chart(
    by("chart-blocks"),
    [
      { key: "blocksActive", label: "active", tone: "c1" },
      { key: "blocksCached", label: "cached", tone: "c2" },
      { key: "blocksFree", label: "free", tone: "quiet" },
    ],
    { text: whole, events: "preempted" },
  ),
};

let settings = null; // the panel
let state = null; // what GET settings said
let status = null;
let turn = 0;
let timer = 0;
let isReading = false;
let hasToken = false;
let isLocked = false; // a token is needed, or was refused

function whole(value) {
  return number(Math.round(value));
}

async function start() {
  const access = await (await feed.ask("access.json")).json();
  const catalog = await (await feed.ask("settings.json")).json();
  settings = new Settings(catalog.settings, async (changes) => {
    const answer = await feed.change(changes);
    showSettings(await feed.settings());
    return answer;
  });
  isLocked = access.needsToken;
  by("token-form").hidden = !isLocked;
  if (isLocked) by("token").focus();
  else tick();
}

async function tick() {
  clearTimeout(timer);
  if (isReading || isLocked) return;
  isReading = true;
  let pause = EVERY_MS;
  try {
    if (!document.hidden && !isHeld()) {
      await read();
      problem("");
      by("token-form").hidden = true;
      by("token-note").hidden = !hasToken;
      show();
    }
  } catch (error) {
    problem(error.message);
    // A token that is refused will not be accepted later: nothing is asked until there is another.
    if (error.status === 401) lock();
    pause = PAUSE_AFTER_PROBLEM_MS;
  } finally {
    isReading = false;
  }
  if (!isLocked) timer = setTimeout(tick, pause);
}

async function read() {
  const isSlow = turn % SLOW_EVERY === 0;
  turn += 1;
  if (isSlow) {
    status = await feed.status();
    if (status.phase !== "Ready") return;
    showSettings(await feed.settings());
    await feed.readMetrics();
    showTuner(await feed.tuning());
  }
  if (status?.phase !== "Ready") return;
  await feed.readSteps();
  showRequests(await feed.requests());
}

function showSettings(found) {
  state = found;
  settings.show(found);
}

function show() {
  by("model").textContent = status.model;
  document.title = `${status.model} · Paceline`;
  const pill = by("state");
  const isDraining = status.drain.phase !== "Serving";
  pill.textContent = status.ready ? "ready" : isDraining ? status.drain.phase : status.phase;
  pill.className = `pill ${status.ready ? "good" : isDraining ? "warn" : "bad"}`;
  if (status.phase !== "Ready" || !state) return;
  by("about").textContent =
    `${status.dtype}, KV ${status.kvCacheDtype}, requests up to ` +
    `${number(status.capacity.maxModelLen)} tokens`;
  const seconds = Number(by("span").value);
  tiles.show({ feed, settings: state, status, seconds });
  drawCharts(seconds);
  const last = feed.steps.at(-1);
  by("freshness").textContent =
    (last ? `last step ${age(Math.max(0, feed.now - last.appliedS))} ago` : "no step so far") +
    (feed.missed ? "; steps between two looks were too many to show all of them" : "");
}

function drawCharts(seconds) {
  const to = feed.now;
  const from = to - seconds;
  const width = by("chart-steps").clientWidth || 600;
  const found = spans(feed.steps, from, to, (1.5 * seconds) / width);
  const values = (span, keys, of) =>
    Object.fromEntries(keys.map((key) => [key, of(span.steps.map((step) => step[key]))]));
  const last = (list) => list.at(-1);
  const blocks = (keys, of, more = () => ({})) =>
    found.map((span) => ({ from: span.from, to: span.to, values: values(span, keys, of), ...more(span) }));
  const most = (sizeOf) => (span) => ({ most: Math.max(...span.steps.map(sizeOf)) });
  const events = (span) => ({ events: span.steps.some((step) => step.numPreempted > 0) });
  const turns = turnsOf(from);
  const target = state.inForce.interTokenTargetMs || null;
  charts.steps.draw(blocks(PARTS, mean, most(stepMs)), from, to, { target }, turns);
  charts.budget.draw(
    blocks(["numDecodeTokens", "numDraftTokens", "numPrefillTokens"], mean, most((s) => s.numTokens)),
    from, to, { budget: feed.steps.at(-1)?.budgetTokens ?? state.settings.maxNumBatchedTokens }, turns,
  );
  const steady = (keys) => held(blocks(keys, last, events), to);
  charts.requests.draw(
    steady(["numRunning", "numWaiting"]), from, to, { cap: state.settings.maxNumSeqs }, turns,
  );
  charts.blocks.draw(steady(["blocksActive", "blocksCached", "blocksFree"]), from, to, {}, turns);
}

/** Nothing changes between two steps: what the last one left lasts until the next. */
function held(blocks, to) {
  return blocks.map((block, index) => ({ ...block, to: blocks[index + 1]?.from ?? to }));
}

/** Moments at which settings changed, told by the steps that ran under them. */
function turnsOf(from) {
  const found = [];
  feed.steps.forEach((step, index) => {
    const before = feed.steps[index - 1];
    if (before && step.generation !== before.generation && step.plannedS >= from) {
      found.push({ at: step.plannedS, name: `settings ${step.generation}` });
    }
  });
  return found;
}

function problem(text) {
  tell(by("problem"), text);
}

function lock() {
  isLocked = true;
  by("token-form").hidden = false;
  by("token-note").hidden = true;
  by("token").focus();
}

by("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = by("token");
  if (!field.value.trim()) return;
  feed.token = field.value.trim();
  field.value = "";
  isLocked = false;
  hasToken = true;
  problem("");
  turn = 0;
  tick();
});

by("forget").addEventListener("click", () => location.reload());

const isHeld = holdBy(by("hold"));
by("span").addEventListener("change", () => state && show());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && settings) tick();
});

switchThemeBy(by("theme"));

function begin() {
  start().catch((error) => {
    problem(error.message);
    setTimeout(begin, PAUSE_AFTER_PROBLEM_MS);
  });
}
begin();
