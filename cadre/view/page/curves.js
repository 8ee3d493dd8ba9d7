// The curves: a card a figure, a line a role, policy or run. Several runs lie over each other; runs that differ in
// their seed alone can be drawn as one band.

import { count, h, number, select } from "./dom.js";
import { hue, line, roleHue, style } from "./colours.js";
import { go, read } from "./route.js";
import { store } from "./store.js";

// Sections of cards. `ROLE` and `POLICY` stand for the names of a run, `*` for what the run has there.
const SECTIONS = [
  ["Outcome", [
    ["Success of sampled episodes", "rollout/success", "share"],
    ["Success on held-out tasks", "evaluate/success", "share"],
    ["Reward by role", "ROLE/reward", "a sample"],
    ["Parts of the reward", "parts/*", "a step, mean"],
  ]],
  ["Who learns", [
    ["Zero-variance groups by role", "ROLE/zero_variance_groups", "share"],
    ["Zero-variance groups by depth", "ROLE/zero_variance_groups/*", "share"],
    ["Gradient share by role", "ROLE/gradient_fraction", "share"],
    ["Effective samples by role", "ROLE/effective_samples", "samples"],
    ["Gradient norm", "POLICY/grad_norm", ""],
    ["Loss", "POLICY/loss", ""],
  ]],
  ["Policies", [
    ["Entropy", "POLICY/entropy", "nats a token"],
    ["KL to the sampler", "POLICY/kl_to_sampler", "nats a token, k3"],
    ["KL to the reference", "POLICY/kl_to_reference", "nats a token"],
    ["Mismatch of sampler and learner by role", "POLICY/logprob_diff/*", "|Δ log-probability| a token"],
    ["Largest difference of learner and sampler", "POLICY/logprob_diff_max", "|Δ log-probability|"],
    ["Share of tokens clipped", "POLICY/clip_fraction", "share"],
    ["Staleness by role", "ROLE/staleness", "updates"],
    ["Critic's explained variance", "ROLE/explained_variance", "share"],
  ]],
  ["Lengths and speed", [
    ["Tokens of an answer", "ROLE/tokens", "tokens, mean"],
    ["Longest answer", "ROLE/tokens_max", "tokens"],
    ["Answers cut off", "ROLE/truncated", "share"],
    ["Decisions an episode", "rollout/decisions", ""],
    ["Tokens trained a second", "POLICY/tokens_per_s", "tokens/s"],
    ["Seconds a step", "time/*", "s"],
    ["MFU of learning", "gpu/learning_mfu", "share of the GPU's peak"],
    ["Bandwidth of sampling", "gpu/sampling_bandwidth_fraction", "share of the GPU's peak"],
    ["Failed episodes", "rollout/failures", "a step"],
  ]],
];

let plots = [];

export function show(main) {
  const place = read();
  const runs = store.runs.filter((run) => run.on);
  for (const plot of plots) plot.destroy();
  plots = [];
  const smooth = Number(place.smooth ?? 0);
  const bands = place.seeds === "bands" && groups(runs).some((group) => group.length > 1);
  const shown = SECTIONS.map(([title, cards]) => [title, cards.map((card) => cardOf(card, runs, bands, smooth)).filter(Boolean)]);
  const controls = h("div", { class: "bar" },
    h("label", {}, "Smoothing ", h("input", {
      type: "range", min: 0, max: 0.98, step: 0.02, value: smooth, id: "smooth",
      onchange: (event) => go({ smooth: event.target.value === "0" ? "" : event.target.value }, true),
    })),
    h("label", {}, "Seeds ", select("Seeds", [["", "a line each"], ["bands", "as bands"]], place.seeds ?? "", (seeds) => go({ seeds }, true))),
    h("label", {}, "Other figures ", select("Other figures", [["", "none"], ["all", "all"]], place.others ?? "", (others) => go({ others }, true))),
    h("span", { class: "note" }, "Pick a step on a curve to open its trees."));
  if (place.others === "all") shown.push(["All other figures", others(runs, bands, smooth)]);
  main.replaceChildren(controls, ...shown.filter(([, cards]) => cards.length).map(([title, cards]) =>
    h("section", { class: "figures" }, h("h2", {}, title), h("div", { class: "cards" }, cards.map((card) => card.element)))));
  if (!runs.some((run) => run.xs.length)) main.append(h("p", { class: "note" }, "No step is logged yet; curves appear as the run goes on."));
  drawWhenSeen(shown.flatMap(([, cards]) => cards));
}

// Cards are drawn when they come into sight: a page of thirty figures is there at once.
function drawWhenSeen(cards) {
  const byElement = new Map(cards.map((card) => [card.element, card]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      plots.push(draw(byElement.get(entry.target)));
    }
  }, { rootMargin: "200px" });
  for (const card of cards) seen.observe(card.element);
}

function groups(runs) {
  const found = new Map();
  for (const run of runs) {
    const key = run.config.replace(/^(\s*)seed: .*$/m, "$1seed");
    found.set(key, [...(found.get(key) ?? []), run]);
  }
  return [...found.values()];
}

// What one run has under a pattern: [[label, hue, values, steps], ...]; the steps are those of the run where left out.
function seriesOf(run, pattern) {
  const policies = [...new Set(Object.values(run.assignment))];
  if (pattern.startsWith("evaluate/")) {
    // The evaluation before training is that of step 0, at which there is no update.
    const byStep = new Map(run.evaluations.map((one) => [one.step, one[pattern.slice(9)]]));
    return byStep.size ? [["held-out", hue(0), [...byStep.values()], [...byStep.keys()]]] : [];
  }
  const names = pattern.startsWith("ROLE") ? Object.keys(run.assignment) : pattern.startsWith("POLICY") ? policies : [""];
  return names.flatMap((name, place) => {
    const wanted = name ? pattern.replace(/ROLE|POLICY/, name) : pattern;
    const colour = pattern.startsWith("ROLE") ? roleHue(run, name) : hue(place);
    if (!wanted.endsWith("*")) return run.columns[wanted] ? [[name || wanted.split("/").pop(), colour, run.columns[wanted]]] : [];
    const start = wanted.slice(0, -1);
    const found = Object.keys(run.columns).filter((key) => key.startsWith(start)).sort();
    return found.map((key, index) => [`${name ? `${name} ` : ""}${key.slice(start.length)}`, hue(place * 3 + index), run.columns[key]]);
  });
}

function smoothed(values, weight) {
  if (!weight) return values;
  let mean = null;
  return values.map((value) => {
    if (value === null) return mean;
    mean = mean === null ? value : weight * mean + (1 - weight) * value;
    return mean;
  });
}

function cardOf([title, pattern, unit], runs, bands, smooth) {
  const lines = bands
    ? groups(runs).flatMap((group, place) => bandsOf(group, place, pattern, smooth, runs.length > group.length))
    : runs.flatMap((run, place) => seriesOf(run, pattern).map(([label, colour, values, xs]) => ({
      label: runs.length > 1 ? `${run.name} ${label}` : label,
      hue: colour, dash: runs.length > 1 ? place : 0, xs: xs ?? run.xs, ys: smoothed(values, smooth), run,
    })));
  if (!lines.length) return null;
  const holder = h("div", { class: "plot" });
  const legend = h("ul", { class: "legend" }, lines.slice(0, 12).map((one) =>
    h("li", {}, h("i", { class: `swatch dash${one.dash % 4}`, vars: { "--hue": one.hue } }), one.label, " ",
      h("b", {}, number(lastOf(one.ys))))), lines.length > 12 && h("li", { class: "note" }, `and ${lines.length - 12} more lines, drawn without a name`));
  const element = h("article", { class: "card", "data-figure": pattern }, h("h3", {}, title, unit && h("small", {}, ` ${unit}`)), holder, legend);
  return { element, holder, lines, title };
}

const lastOf = (values) => { for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i]; return null; };

// The mean of a group of seeds, with its least and its most at every step.
function bandsOf(group, place, pattern, smooth, named) {
  const found = new Map();
  for (const run of group) {
    for (const [label, colour, values, xs] of seriesOf(run, pattern)) {
      const told = found.get(label) ?? { colour, at: new Map() };
      smoothed(values, smooth).forEach((value, i) => {
        const x = (xs ?? run.xs)[i];
        if (value !== null) told.at.set(x, [...(told.at.get(x) ?? []), value]);
      });
      found.set(label, told);
    }
  }
  return [...found].map(([label, { colour, at }]) => {
    const xs = [...at.keys()].sort((a, b) => a - b);
    const each = xs.map((x) => at.get(x));
    return {
      label: `${named ? `${group[0].name} … ` : ""}${label} (${group.length} seeds)`, hue: colour, dash: place, xs,
      ys: each.map((values) => values.reduce((a, b) => a + b) / values.length),
      low: each.map((values) => Math.min(...values)), high: each.map((values) => Math.max(...values)), run: group[0],
    };
  });
}

function others(runs, bands, smooth) {
  const known = new Set();
  for (const run of runs) for (const [, cards] of SECTIONS) for (const [, pattern] of cards) {
    for (const [, , values] of seriesOf(run, pattern)) known.add(values);
  }
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.columns).filter((key) => !known.has(run.columns[key]))))].sort();
  return names.map((name) => cardOf([name, name, ""], runs, bands, smooth)).filter(Boolean);
}

const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];

function draw({ holder, lines, title }) {
  const xs = [...new Set(lines.flatMap((one) => one.xs))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, place) => [x, place]));
  const column = (one, values) => {
    const placed = new Array(xs.length).fill(null);
    one.xs.forEach((x, i) => { placed[at.get(x)] = values[i]; });
    return placed;
  };
  const data = [xs];
  const series = [{ label: "step" }];
  const bands = [];
  for (const one of lines) {
    if (one.low) {
      const first = data.length;
      data.push(column(one, one.high), column(one, one.low));
      series.push({ show: true, width: 0, points: { show: false } }, { show: true, width: 0, points: { show: false } });
      bands.push({ series: [first, first + 1], fill: `oklch(0.7 0.12 ${one.hue} / 0.25)` });
    }
    data.push(column(one, one.ys));
    series.push({
      label: one.label, stroke: colourOf(one.hue), width: 1.6, dash: DASHES[one.dash % 4], spanGaps: true,
      points: { show: one.xs.length < 2 || one.label === "held-out" || sparse(one.ys), size: 5 },
    });
  }
  const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 }, font: "11px system-ui", size: 52 };
  const plot = new globalThis.uPlot({
    width: Math.max(120, holder.clientWidth), height: 170, series, bands, legend: { show: false },
    scales: { x: { time: false } },
    axes: [{ ...axis, size: 26 }, { ...axis, values: (_, ticks) => ticks.map((tick) => number(tick)) }],
    cursor: { drag: { x: true, y: false }, points: { size: 6 } },
    hooks: { setCursor: [(u) => tip(u, holder, lines)] },
  }, data, holder);
  plot.over.setAttribute("role", "img");
  plot.over.setAttribute("aria-label", `${title}: ${lines.map((one) => `${one.label} ${number(lastOf(one.ys))}`).join(", ")}`);
  let down = 0;
  plot.over.addEventListener("mousedown", (event) => { down = event.clientX; });
  plot.over.addEventListener("click", (event) => {
    const place = plot.cursor.idx;
    if (Math.abs(event.clientX - down) < 4 && place !== null && place !== undefined) openTrees(lines[0].run, xs[place]);
  });
  return plot;
}

const colourOf = (value) => line(0).replace(/ 215 /, ` ${value} `);
const sparse = (values) => values.length > 1 && values.filter((value) => value !== null).length <= values.length / 2;

// The nearest kept tree at or before a step; before the first update there is none.
function openTrees(run, shown) {
  const step = Math.max(shown, 1);
  const best = run.trees.reduce((found, one) => (Math.abs(one.step + 1 - step) < Math.abs((found?.step ?? 1e9) + 1 - step) ? one : found), null);
  go({ tab: "trees", run: run.name, step, tree: best && best.step + 1 === step ? best.tree : "", node: "", role: "", index: "" });
}

function tip(u, holder, lines) {
  let box = holder.querySelector(".tip");
  const place = u.cursor.idx;
  if (place === null || place === undefined || u.cursor.left < 0) { box?.remove(); return; }
  if (!box) { box = h("div", { class: "tip" }); holder.append(box); }
  const x = u.data[0][place];
  const told = lines.map((one) => [one, one.ys[one.xs.indexOf(x)]]).filter(([, value]) => value !== undefined && value !== null).slice(0, 8);
  box.replaceChildren(h("b", {}, `step ${count(x)}`), ...told.map(([one, value]) =>
    h("div", {}, h("i", { class: "swatch", vars: { "--hue": one.hue } }), `${one.label} ${number(value, 4)}`)));
  box.style.left = `${Math.min(u.cursor.left + 56, holder.clientWidth - 150)}px`;
}

export const redrawsOnData = true;
