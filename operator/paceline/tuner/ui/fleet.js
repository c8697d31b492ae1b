// The page of a fleet: a section for each replica set, asked for again while somebody looks.

import { age, number } from "./figures.js";
import { holdBy, switchThemeBy, tell } from "./parts.js";
import { ReplicaSet, plural } from "./set.js";

const PAUSE_AFTER_PROBLEM_MS = 3000;
const by = (id) => document.getElementById(id);

const sets = new Map(); // name -> section
let answer = null;
let timer = 0;
let isReading = false;

async function tick() {
  clearTimeout(timer);
  if (isReading) return;
  isReading = true;
  try {
    if (!document.hidden && !isHeld()) {
      answer = await read();
      show();
    }
    timer = setTimeout(tick, (answer?.everyS ?? 1) * 1e3);
  } catch (error) {
    showProblem(error.message);
    timer = setTimeout(tick, PAUSE_AFTER_PROBLEM_MS);
  } finally {
    isReading = false;
  }
}

async function read() {
  let found;
  try {
    found = await fetch("fleet.json", { cache: "no-store", credentials: "omit" });
  } catch {
    throw new Error("`paceline tune --serve` does not answer; trying again");
  }
  if (!found.ok) throw new Error(`\`paceline tune --serve\` answered ${found.status}; trying again`);
  return found.json();
}

function show() {
  const known = new Set(answer.sets.map((one) => one.name));
  for (const [name, section] of sets) {
    if (known.has(name)) continue;
    section.root.remove();
    sets.delete(name);
  }
  for (const one of answer.sets) {
    if (!sets.has(one.name)) {
      const section = new ReplicaSet(one.name);
      sets.set(one.name, section);
      by("sets").append(section.root);
    }
    sets.get(one.name).show(one, answer);
  }
  showProblem(answer.problem);
}

/** What is shown stays, marked as old, while there is nothing newer. */
function showProblem(problem) {
  tell(by("problem"), problem);
  by("sets").classList.toggle("stale", Boolean(problem));
  const engines = (answer?.sets ?? []).reduce((sum, one) => sum + one.engines.length, 0);
  const ails = (answer?.sets ?? []).filter((one) => one.diagnosis.recommendations?.length).length;
  const pill = by("state");
  pill.textContent = problem ? "no data" : ails ? `${ails} of ${sets.size} ail` : "nothing is wrong";
  pill.className = `pill ${problem ? "bad" : ails ? "warn" : "good"}`;
  if (engines) {
    by("about").textContent =
      `${plural(engines, "engine")} in ${plural(sets.size, "replica set")}, as Prometheus knows ` +
      "them; nothing is changed from here";
  }
  if (answer?.at) {
    by("freshness").textContent =
      `as of ${new Date(answer.at * 1e3).toLocaleTimeString()}; ` +
      `looked at every ${number(answer.everyS)} s, charts of the last ${age(answer.points * answer.spanS)}`;
  }
}

const isHeld = holdBy(by("hold"));
switchThemeBy(by("theme"));
document.addEventListener("visibilitychange", () => document.hidden || tick());
window.addEventListener("resize", () => answer && show());
tick();
