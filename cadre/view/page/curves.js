// The curves: a card for each plot, a line for each role or policy. Several runs share the plots, a colour for each;
// runs that differ in their seed alone can be drawn as one band.

import { compact, count, h, number, plural, select } from "./dom.js";
import { line, style } from "./colours.js";
import { settingsTable } from "./about.js";
import { DASHES, isWhole, save } from "./plotfile.js";
import { go, read } from "./route.js";
import { axisOf, linesOf, seedGroups, seriesOf, splitLines } from "./series.js";
import { store } from "./store.js";

// Sections of cards: title, metrics (see seriesOf), and unit, which is the label of the y axis.
const SECTIONS = [
  ["Outcome", [
    ["Success in training", "rollout/success", "fraction of episodes"],
    ["Success on held-out tasks", "evaluate/success", "fraction of tasks, 95% interval"],
    ["Reward by role", "ROLE/reward", "mean reward per branch"],
    ["Reward parts", "parts/*", "mean per step"],
    ["Success in training by environment", "parts/*/success", "fraction of episodes that ended"],
    ["Success on held-out tasks by environment", "evaluate/parts/*/success", "fraction of tasks"],
    ["Level of the curriculum", "curriculum/level", "level, from 0"],
  ]],
  ["Learning signal", [
    ["Zero-variance groups by role", "ROLE/zero_variance_groups", "fraction"],
    ["Zero-variance groups by depth", "ROLE/zero_variance_groups/*", "fraction"],
    ["Samples with gradient by role", "ROLE/gradient_fraction", "fraction"],
    ["Effective samples by role", "ROLE/effective_samples", "samples"],
    ["Gradient norm", "POLICY/grad_norm", "norm"],
    ["Loss", "POLICY/loss", "loss"],
  ]],
  ["Policies", [
    ["Entropy", "POLICY/entropy", "nats per token"],
    ["KL to the sampler", "POLICY/kl_to_sampler", "nats per token (k3)"],
    ["KL to the reference", "POLICY/kl_to_reference", "nats per token"],
    ["Log-probability difference, sampler against learner", "POLICY/logprob_diff/*", "mean |Δ log-prob| per token"],
    ["Largest log-probability difference", "POLICY/logprob_diff_max", "|Δ log-prob|"],
    ["Clipped tokens", "POLICY/clip_fraction", "fraction"],
    ["Staleness by role", "ROLE/staleness", "updates"],
    ["Explained variance of the critic", "ROLE/explained_variance", "fraction"],
  ]],
  ["Lengths and speed", [
    ["Completion length", "ROLE/tokens", "tokens, mean"],
    ["Longest completion", "ROLE/tokens_max", "tokens"],
    ["Truncated completions", "ROLE/truncated", "fraction"],
    ["Decisions per episode", "rollout/decisions", "decisions"],
    ["Training speed", "POLICY/tokens_per_s", "tokens per second"],
    ["Time per step", "time/*", "seconds"],
    ["GPU tokens by phase", "gpu/*_tokens_per_s", "tokens per second"],
    ["GPU peak memory by phase", "gpu/*_peak_gb", "GB"],
    ["MFU of learning", "gpu/learning_mfu", "fraction of the GPU's peak"],
    ["Bandwidth of sampling", "gpu/sampling_bandwidth_fraction", "fraction of the GPU's peak"],
    ["Failed episodes", "rollout/failures", "episodes per step"],
  ]],
];

let plots = [];

export function show(main) {
  const place = read();
  const runs = store.runs.filter((run) => run.on);
  for (const plot of plots) plot.destroy();
  plots = [];
  const smooth = Number(place.smooth ?? 0);
  const bands = place.seeds === "bands" && seedGroups(runs).some((group) => group.length > 1);
  const options = { axis: axisOf(runs, place.x), smooth, bands };
  const shown = SECTIONS.map(([title, cards]) => [title, cards.flatMap((card) => cardsOf(card, runs, options))]);
  const controls = h("div", { class: "bar" },
    h("label", {}, "x axis ", select("x axis", [["", "steps"], ["tokens", "tokens"], ["time", "time"]], place.x ?? "", (x) => go({ x }, true))),
    h("label", {}, "Smoothing ", h("input", {
      type: "range", min: 0, max: 0.98, step: 0.02, value: smooth, id: "smooth",
      onchange: (event) => go({ smooth: event.target.value === "0" ? "" : event.target.value }, true),
    })),
    h("label", {}, "Seeds ", select("Seeds", [["", "one line each"], ["bands", "mean and range"]], place.seeds ?? "", (seeds) => go({ seeds }, true))),
    h("label", {}, "Other metrics ", select("Other metrics", [["", "hide"], ["all", "show"]], place.others ?? "", (others) => go({ others }, true))),
    h("span", { class: "note" }, "Click a step to open its trees; drag to zoom, double-click to reset."));
  if (place.others === "all") shown.push(["Other metrics", otherCards(runs, options)]);
  const lacking = runs.filter((run) => run.xs.length && options.axis.at(run, run.xs[0]) === null).map((run) => run.name);
  const missing = lacking.length > 0 && h("p", { class: "note bad" }, `Not drawn, as it is not in the metrics: ${options.axis.label} of ${lacking.join(", ")}.`);
  main.replaceChildren(controls, ...[missing].filter(Boolean), ...differences(runs), ...shown.filter(([, cards]) => cards.length).map(([title, cards]) =>
    h("section", { class: "figures" }, h("h2", {}, title), h("div", { class: "cards" }, cards.map((card) => card.element)))));
  if (!runs.some((run) => run.xs.length)) main.append(h("p", { class: "note" }, "No step is logged yet; curves appear during the run."));
  drawWhenSeen(shown.flatMap(([, cards]) => cards));
}

let open = false;

// The settings that differ between the runs, folded away; the fold is remembered while the plots are drawn anew.
function differences(runs) {
  if (runs.length < 2) return [];
  const { element, rows } = settingsTable(runs);
  return [h("details", { class: "differences", open, ontoggle: (event) => { open = event.target.open; } }, h("summary", {}, `${plural(rows, "setting")} ${rows === 1 ? "differs" : "differ"} between these runs`), element)];
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

// The cards of a pattern: one, or several where the lines would not be told apart.
function cardsOf([title, pattern, unit], runs, options) {
  return splitLines(linesOf(runs, pattern, options)).filter(([, lines]) => lines.length).map(([name, lines]) => {
    // What success in training means: in the title, or at each line where compared runs differ in it.
    const labels = new Set(pattern === "rollout/success" ? lines.map((one) => one.run.success) : []);
    const named = (one) => (one.run.success === "success" ? one : { ...one, label: `${one.label}, ${one.run.success}` });
    const selection = labels.size === 1 && !labels.has("success") ? `, ${[...labels][0]}` : "";
    return makeCard({ title: `${title}${selection}${name && `: ${name}`}`, unit, axis: options.axis, lines: labels.size > 1 ? lines.map(named) : lines }, pattern);
  });
}

function makeCard(figure, pattern) {
  const { title, lines } = figure;
  const holder = h("div", { class: "plot" });
  const legend = h("ul", { class: "legend" }, lines.slice(0, 12).map((one) =>
    h("li", {}, h("i", { class: `swatch dash${one.dash}`, vars: { "--hue": one.hue } }), one.label, " ",
      h("b", {}, number(lastOf(one.ys))))), lines.length > 12 && h("li", { class: "note" }, `and ${lines.length - 12} more lines, drawn without a name`));
  const buttons = ["png", "svg", "csv"].map((kind) =>
    h("button", { type: "button", class: "quiet", title: `Save as ${kind.toUpperCase()}`, onclick: () => save(figure, kind) }, kind.toUpperCase()));
  const element = h("article", { class: "card", "data-figure": pattern }, h("header", {}, h("h3", {}, title), h("span", { class: "save" }, buttons)), holder, legend);
  return { element, holder, ...figure };
}

const lastOf = (values) => values.findLast((value) => value !== null) ?? null;

function otherCards(runs, options) {
  const inSections = new Set(runs.flatMap((run) => SECTIONS.flatMap(([, cards]) => cards.flatMap(([, pattern]) => seriesOf(run, pattern).map((one) => one.values)))));
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.columns).filter((key) => !inSections.has(run.columns[key]))))].sort();
  return names.flatMap((name) => cardsOf([name, name, ""], runs, options));
}

const WHOLE = [1, 2, 5].flatMap((digit) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10].map((power) => digit * power)).sort((a, b) => a - b);

function draw({ holder, lines, title, unit, axis }) {
  const xs = [...new Set(lines.flatMap((one) => one.xs))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, index) => [x, index]));
  const column = (one, values) => {
    const placed = new Array(xs.length).fill(null);
    one.xs.forEach((x, index) => { placed[at.get(x)] = values[index]; });
    return placed;
  };
  const data = [xs];
  const series = [{ label: axis.label }];
  const bands = [];
  for (const one of lines) {
    if (one.low) {
      // Not drawn as lines: the scale makes room for them.
      const first = data.length;
      data.push(column(one, one.high), column(one, one.low));
      series.push({ show: true, width: 0, points: { show: false } }, { show: true, width: 0, points: { show: false } });
      if (!one.bars) bands.push({ series: [first, first + 1], fill: `oklch(0.7 0.12 ${one.hue} / 0.25)` });
    }
    data.push(column(one, one.ys));
    series.push({
      label: one.label, stroke: colourOf(one.hue), width: 1.6, dash: DASHES[one.dash], spanGaps: true,
      points: { show: one.xs.length < 2 || one.bars || sparse(one.ys), size: 5 },
    });
  }
  const font = "11px system-ui";
  const common = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 }, font, labelFont: font, labelSize: 16, labelGap: 0 };
  const plot = new globalThis.uPlot({
    width: Math.max(120, holder.clientWidth), height: 196, series, bands, legend: { show: false },
    // Without a zoom x begins at 0, where the evaluation before training is; points and bars at both ends are whole.
    scales: { x: { time: false, range: (_, low, high) => (low === xs[0] ? [-0.015 * (high || 1), 1.015 * (high || 1)] : [low, high]) } },
    axes: [
      { ...common, size: 26, label: axis.label, values: (_, ticks) => ticks.map(compact), ...(axis.name !== "time" && { incrs: WHOLE }) },
      { ...common, size: 50, label: unit || undefined, values: (_, ticks) => ticks.map((tick) => number(tick)), ...(isWhole(lines) && { incrs: WHOLE }) },
    ],
    cursor: { drag: { x: true, y: false }, points: { size: 6 } },
    hooks: { draw: [(u) => drawBars(u, lines)], setCursor: [(u) => tip(u, holder, lines, axis)] },
  }, data, holder);
  plot.over.setAttribute("role", "img");
  plot.over.setAttribute("aria-label", `${title}: ${lines.map((one) => `${one.label} ${number(lastOf(one.ys))}`).join(", ")}`);
  let down = 0;
  plot.over.addEventListener("mousedown", (event) => { down = event.clientX; });
  plot.over.addEventListener("click", (event) => {
    const index = plot.cursor.idx;
    if (Math.abs(event.clientX - down) >= 4 || index === null || index === undefined) return;
    const one = lines.find((candidate) => candidate.xs.includes(xs[index]));
    openTrees(one.run, one.steps[one.xs.indexOf(xs[index])]);
  });
  return plot;
}

// The interval of each evaluation as a bar. Those of several runs at one step stand beside each other.
function drawBars(u, lines) {
  const barred = lines.filter((one) => one.bars);
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  u.ctx.lineWidth = devicePixelRatio;
  barred.forEach((one, order) => {
    const shift = (order - (barred.length - 1) / 2) * 3 * devicePixelRatio;
    u.ctx.strokeStyle = colourOf(one.hue);
    one.xs.forEach((value, index) => {
      if (one.low[index] === null || one.high[index] === null) return;
      const [x, low, high] = [u.valToPos(value, "x", true) + shift, u.valToPos(one.low[index], "y", true), u.valToPos(one.high[index], "y", true)];
      const cap = 2.5 * devicePixelRatio;
      u.ctx.beginPath();
      for (const [from, to, y, end] of [[x, x, low, high], [x - cap, x + cap, low, low], [x - cap, x + cap, high, high]]) {
        u.ctx.moveTo(from, y);
        u.ctx.lineTo(to, end);
      }
      u.ctx.stroke();
    });
  });
  u.ctx.restore();
}

const colourOf = (value) => line(0).replace(/ 215 /, ` ${value} `);
const sparse = (values) => values.length > 1 && values.filter((value) => value !== null).length <= values.length / 2;

// The nearest kept tree at or before a step; before the first update there is none.
function openTrees(run, shown) {
  const step = Math.max(shown, 1);
  const best = run.trees.reduce((found, one) => (Math.abs(one.step + 1 - step) < Math.abs((found?.step ?? 1e9) + 1 - step) ? one : found), null);
  go({ tab: "trees", run: run.name, step, tree: best && best.step + 1 === step ? best.tree : "", node: "", role: "", index: "" });
}

function tip(u, holder, lines, axis) {
  let box = holder.querySelector(".tip");
  const index = u.cursor.idx;
  if (index === null || index === undefined || u.cursor.left < 0) { box?.remove(); return; }
  if (!box) { box = h("div", { class: "tip" }); holder.append(box); }
  const x = u.data[0][index];
  const points = lines.map((one) => [one, one.xs.indexOf(x)]).filter(([one, here]) => here >= 0 && one.ys[here] !== null).slice(0, 8);
  const steps = [...new Set(points.map(([one, here]) => `step ${count(one.steps[here])}`))].join(", ");
  box.replaceChildren(h("b", {}, axis.name === "step" ? steps : `${compact(x)} (${steps})`), ...points.map(([one, here]) =>
    h("div", {}, h("i", { class: "swatch", vars: { "--hue": one.hue } }), `${one.label} ${number(one.ys[here], 4)}`, one.bars && ` [${number(one.low[here])}, ${number(one.high[here])}]`)));
  box.style.left = `${Math.max(0, Math.min(u.cursor.left + 70, holder.clientWidth - 190))}px`;
}
