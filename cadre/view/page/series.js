// The lines of a plot: which metrics of which runs, their values along the chosen x axis, colours and dashes.
// Nothing here touches the page.

import { HUES, hue, roleHue } from "./colours.js";

export const AXES = { step: "training step", tokens: "sampled tokens in training", time: "training time" };
export const MAX_DASHES = 4;

// Sampling is waited for and learning is done: the rest of a step is short, and evaluations are not counted.
const COLUMNS = { tokens: ["rollout/tokens"], time: ["time/wait_s", "time/learn_s"] };
const TIME_UNITS = [["h", 3600, 7200], ["min", 60, 120], ["s", 1, 0]];

// The x axis of a page: its label, and `at(run, step)`, which is null where the run lacks the metric. Step 0 is at 0.
export function axisOf(runs, name) {
  if (!Object.hasOwn(COLUMNS, name)) return { name: "step", label: AXES.step, at: (run, step) => step };
  const sums = new Map(runs.map((run) => [run, cumulative(run, COLUMNS[name])]));
  const longest = Math.max(0, ...[...sums.values()].map((sum) => sum?.at(-1) ?? 0));
  const [unit, size] = name === "time" ? TIME_UNITS.find(([, , least]) => longest >= least) : ["", 1];
  const at = (run, step) => {
    const sum = sums.get(run);
    if (!sum) return null;
    let logged = run.xs.length;
    while (logged > 0 && run.xs[logged - 1] > step) logged -= 1;
    return logged ? sum[logged - 1] / size : 0;
  };
  return { name, label: unit ? `${AXES[name]} (${unit})` : AXES[name], at };
}

function cumulative(run, names) {
  if (!names.every((name) => run.columns[name])) return null;
  let sum = 0;
  return run.xs.map((_, index) => (sum += names.reduce((total, name) => total + (run.columns[name][index] ?? 0), 0)));
}

// What one run has under a pattern: [{ name, hue, steps, values, low, high }, ...]. `ROLE` and `POLICY` stand for the
// names of the run, one `*` for what it has there. Evaluations have intervals; the one before training is at step 0.
export function seriesOf(run, pattern) {
  if (pattern.startsWith("evaluate/")) {
    const reports = [...new Map(run.evaluations.map((report) => [report.step, report])).values()];
    const field = pattern.slice("evaluate/".length);
    const column = (name) => reports.map((report) => report[name] ?? null);
    if (field.startsWith("parts/")) {
      const [start, end] = field.slice("parts/".length).split("*");
      const parts = [...new Set(reports.flatMap((report) => Object.keys(report.parts ?? {})))].sort();
      const steps = column("step"), values = (part) => reports.map((report) => report.parts?.[part] ?? null);
      return parts.filter((part) => part.startsWith(start) && part.endsWith(end)).map((part, index) => (
        { name: part.slice(start.length, part.length - end.length), hue: hue(index), steps, values: values(part) }));
    }
    const interval = field === "success" ? { low: column("low"), high: column("high") } : {};
    return reports.length ? [{ name: "held-out", hue: hue(0), steps: column("step"), values: column(field), ...interval }] : [];
  }
  const [kind] = pattern.split("/");
  const roles = Object.keys(run.assignment);
  const owners = kind === "ROLE" ? roles : kind === "POLICY" ? [...new Set(Object.values(run.assignment))] : [""];
  return owners.flatMap((owner, number) => {
    const metric = owner ? owner + pattern.slice(kind.length) : pattern;
    const colour = kind === "ROLE" ? roleHue(run, owner) : hue(number);
    const line = (name, shade, key) => ({ name, hue: shade, steps: run.xs, values: run.columns[key] });
    if (!metric.includes("*")) return run.columns[metric] ? [line(owner || metric.split("/").pop(), colour, metric)] : [];
    const [start, end] = metric.split("*");
    const keys = Object.keys(run.columns).filter((key) => key.startsWith(start) && key.endsWith(end)).sort();
    return keys.map((key, index) => line(`${owner ? `${owner} ` : ""}${key.slice(start.length, key.length - end.length)}`, hue(number * 3 + index), key));
  });
}

export function smoothed(values, weight) {
  if (!weight) return values;
  let mean = null;
  return values.map((value) => {
    if (value !== null) mean = mean === null ? value : weight * mean + (1 - weight) * value;
    return mean;
  });
}

// Runs that differ in their seed alone.
export function seedGroups(runs) {
  const groups = new Map();
  for (const run of runs) {
    const key = run.config.replace(/^(\s*)seed: .*$/m, "$1seed");
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  return [...groups.values()];
}

// The lines of a plot. One run: a colour for each name, and another dash where the colours have been used up. Several:
// a colour for each run, a dash for each name.
// { label, name, run, hue, dash, steps, xs, values, ys, low, high, bars }; `ys` are the values after smoothing.
export function linesOf(runs, pattern, { axis, smooth = 0, bands = false }) {
  const groups = bands ? seedGroups(runs) : runs.map((run) => [run]);
  const names = [...new Set(runs.flatMap((run) => seriesOf(run, pattern).map((one) => one.name)))];
  return groups.flatMap((group) => {
    const several = groups.length > 1;
    const made = bands ? meansOf(group, pattern, axis, smooth) : ownLines(group[0], pattern, axis, smooth);
    return made.filter((line) => line.xs.length).map((line) => {
      const seeds = bands ? ` (mean and range of ${group.length} seeds)` : "";
      const parts = [several && `${group[0].name}${bands ? " …" : ""}`, (!several || names.length > 1) && line.name];
      const label = `${parts.filter(Boolean).join(" ")}${seeds}`;
      const look = several ? { hue: hue(group[0].index), dash: names.indexOf(line.name) % MAX_DASHES }
        : { dash: Math.floor(names.indexOf(line.name) / HUES.length) % MAX_DASHES };
      return { ...line, ...look, label, run: group[0] };
    });
  });
}

function ownLines(run, pattern, axis, smooth) {
  return seriesOf(run, pattern).map(({ steps, values, low, high, ...rest }) => {
    const placed = steps.map((step) => axis.at(run, step));
    const kept = placed.flatMap((x, index) => (x === null ? [] : [index]));
    const pick = (column) => column && kept.map((index) => column[index]);
    const ys = low ? values : smoothed(values, smooth);
    return { ...rest, steps: pick(steps), xs: pick(placed), values: pick(values), ys: pick(ys), low: pick(low), high: pick(high), bars: Boolean(low) };
  });
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// The mean over a group of seeds at every step, with the least and the most; x is the mean of theirs.
function meansOf(group, pattern, axis, smooth) {
  const byName = new Map();
  for (const line of group.flatMap((run) => ownLines(run, pattern, axis, smooth))) {
    const found = byName.get(line.name) ?? { name: line.name, hue: line.hue, at: new Map() };
    line.ys.forEach((value, index) => {
      if (value === null) return;
      const here = found.at.get(line.steps[index]) ?? { xs: [], ys: [] };
      here.xs.push(line.xs[index]);
      here.ys.push(value);
      found.at.set(line.steps[index], here);
    });
    byName.set(line.name, found);
  }
  return [...byName.values()].map(({ at, ...rest }) => {
    const steps = [...at.keys()].sort((a, b) => a - b);
    const column = (reduce) => steps.map((step) => reduce(at.get(step)));
    const ys = column((here) => mean(here.ys));
    const [low, high] = [column((here) => Math.min(...here.ys)), column((here) => Math.max(...here.ys))];
    return { ...rest, steps, xs: column((here) => mean(here.xs)), values: ys, ys, low, high, bars: false };
  });
}

// Plots of a pattern: one, or one for each name where several runs have more names than there are dashes.
export function splitLines(lines) {
  const names = [...new Set(lines.map((line) => line.name))];
  const several = new Set(lines.map((line) => line.run)).size > 1;
  if (!several || names.length <= MAX_DASHES) return [["", lines]];
  return names.map((name) => [name, lines.filter((line) => line.name === name).map((line) => ({ ...line, dash: 0 }))]);
}

// [[setting, value of each run, ...], ...] where the runs differ.
export function differingSettings(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const rows = names.map((name) => [name, ...runs.map((run) => run.settings[name] ?? "not set")]);
  return rows.filter(([, ...values]) => new Set(values).size > 1);
}
