// Arithmetic of the page, without the document and without a clock.

/** Time of a step by part, in the order in which they are stacked. */
export const PARTS = ["planMs", "forwardMs", "sampleMs", "applyMs"];

/** Milliseconds of a step: its own parts together. */
export function stepMs(step) {
  return PARTS.reduce((sum, part) => sum + step[part], 0);
}

/**
 * Steps as spans of time that are wide enough to be seen: neighbours are merged until they are.
 *
 * @param {object[]} steps oldest first, each with plannedS and appliedS
 * @param {number} from start of what is shown, engine's seconds
 * @param {number} to its end
 * @param {number} least shortest span in seconds
 * @returns {{from: number, to: number, steps: object[]}[]} a gap between two is idleness
 */
export function spans(steps, from, to, least) {
  const made = [];
  let open = null;
  for (const step of steps) {
    if (step.appliedS < from || step.plannedS > to) continue;
    // A step that was planned while another one ran begins when that is done.
    const starts = step.plannedS - (step.planMs - (step.queuedMs ?? 0)) / 1e3;
    if (open && (open.to - open.from >= least || starts - open.to > Math.max(least, 0.05))) {
      if (starts - open.to <= Math.max(least, 0.05)) open.to = starts;
      made.push(open);
      open = null;
    }
    if (!open) open = { from: Math.max(from, starts), to: step.appliedS, steps: [] };
    open.steps.push(step);
    open.to = Math.min(to, step.appliedS);
  }
  if (open) made.push(open);
  return made;
}

export function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
}

/** The q-quantile of values, nearest rank; null of none. */
export function quantile(values, q) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(q * sorted.length) - 1))];
}

/**
 * The q-quantile of a histogram's growth, linear within a bucket as Prometheus has it.
 *
 * @param {Map<number, number>} now cumulative counts by upper edge
 * @param {Map<number, number>} then the same, earlier
 * @returns {number|null} in the edges' unit
 */
export function histogramQuantile(now, then, q) {
  const edges = [...now.keys()].sort((a, b) => a - b);
  const counts = edges.map((edge) => now.get(edge) - (then?.get(edge) ?? 0));
  const total = counts.at(-1);
  if (!(total > 0)) return null;
  const rank = q * total;
  const at = counts.findIndex((count) => count >= rank);
  const low = at ? edges[at - 1] : 0;
  if (edges[at] === Infinity) return low;
  const below = at ? counts[at - 1] : 0;
  return low + (edges[at] - low) * ((rank - below) / (counts[at] - below));
}

/**
 * A page of metrics: name -> list of {labels, value}.
 *
 * @param {string} text in Prometheus' text format
 */
export function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const space = line.lastIndexOf(" ");
    const head = line.slice(0, space);
    const brace = head.indexOf("{");
    const name = brace < 0 ? head : head.slice(0, brace);
    const labels = {};
    if (brace >= 0) {
      for (const [, key, value] of head.slice(brace).matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g)) {
        labels[key] = value;
      }
    }
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels, value: Number(line.slice(space + 1)) });
  }
  return found;
}

/** The sum of a metric's samples that have these labels. */
export function total(page, name, labels = {}) {
  const samples = page?.get(name) ?? [];
  return samples
    .filter((one) => Object.entries(labels).every(([key, value]) => one.labels[key] === value))
    .reduce((sum, one) => sum + one.value, 0);
}

/** Cumulative counts by upper edge of a histogram. */
export function buckets(page, name) {
  const samples = page?.get(`${name}_bucket`) ?? [];
  const edge = (text) => (text === "+Inf" ? Infinity : Number(text));
  return new Map(samples.map((one) => [edge(one.labels.le), one.value]));
}

/** Round numbers at or above which an axis may end, and the distance of its lines. */
export function axis(most) {
  const rough = Math.max(most, 1e-9) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
  return { step, top: Math.max(step, Math.ceil(most / step - 1e-9) * step) };
}

export function number(value, digits = 0) {
  return value.toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

/** Milliseconds in a reader's unit. */
export function ms(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value >= 10_000) return `${number(value / 1e3, 1)} s`;
  if (value >= 1000) return `${number(value / 1e3, 2)} s`;
  return value < 10 ? `${number(value, 1)} ms` : `${number(value)} ms`;
}

/** Seconds in a reader's unit. */
export function age(seconds) {
  if (seconds < 60) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
