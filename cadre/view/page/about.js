// The settings of the runs and how they differ, the machines, and the evaluations.

import { block, h, number, visible } from "./dom.js";
import { differingSettings } from "./series.js";
import { store } from "./store.js";

const MOST = 300;

export function show(main) {
  const runs = store.runs.filter((run) => run.on);
  const differences = runs.length > 1 && h("section", { class: "about" }, h("h2", {}, "Settings that differ"), settingsTable(runs).element);
  main.replaceChildren(...[differences].filter(Boolean), ...runs.map((run) => h("section", { class: "about" },
    h("h2", {}, run.name),
    h("p", {}, `${run.env}, ${run.algorithm}${run.shape ? `, ${run.shape}` : ""}, ${run.xs.length} of ${run.steps} steps`),
    run.command.recipe && h("p", {}, h("code", {}, ["cadre train", run.command.recipe, ...run.command.overrides].join(" "))),
    run.evaluations.length > 0 && table(["after step", "success", "95% interval", "reward", "tokens per episode"],
      run.evaluations.map((one) => [one.step, percent(one.success), `${percent(one.low)} to ${percent(one.high)}`, number(one.reward), number(one.tokens)])),
    h("h3", {}, "Settings"), block(run.config),
    h("h3", {}, "Machine and packages"), block(JSON.stringify(run.environment, null, 1)))));
}

const percent = (fraction) => `${(100 * fraction).toFixed(1)}%`;

// A table of the settings that differ between the runs, a column for each run; `rows` is their number.
export function settingsTable(runs) {
  const rows = differingSettings(runs);
  const cut = (value) => (value.length > MOST ? `${value.slice(0, MOST)} …` : value);
  const element = rows.length ? table(["setting", ...runs.map((run) => run.name)], rows.map((row) => row.map(cut))) : h("p", { class: "note" }, "None: the runs have the same settings.");
  return { element, rows: rows.length };
}

export function table(head, rows) {
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": head.join(", ") }, h("table", {}, h("thead", {}, h("tr", {}, head.map((cell) => h("th", {}, cell)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, visible(String(cell)))))))));
}
