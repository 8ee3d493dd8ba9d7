// The settings of the runs, what they ran on, and their evaluations.

import { block, h, number } from "./dom.js";
import { store } from "./store.js";

export function show(main) {
  main.replaceChildren(...store.runs.filter((run) => run.on).map((run) => h("section", { class: "about" },
    h("h2", {}, run.name),
    h("p", {}, `${run.env}, ${run.algorithm}${run.shape ? `, ${run.shape}` : ""}, ${run.xs.length} of ${run.steps} steps`),
    run.command.recipe && h("p", {}, h("code", {}, ["cadre train", run.command.recipe, ...run.command.overrides].join(" "))),
    run.evaluations.length > 0 && table(["after step", "success", "95% interval", "reward", "tokens an episode"],
      run.evaluations.map((one) => [one.step, percent(one.success), `${percent(one.low)} to ${percent(one.high)}`, number(one.reward), number(one.tokens)])),
    h("h3", {}, "Settings"), block(run.config),
    h("h3", {}, "Machine and packages"), block(JSON.stringify(run.environment, null, 1)))));
}

const percent = (share) => `${(100 * share).toFixed(1)}%`;

export function table(head, rows) {
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": head.join(", ") }, h("table", {}, h("thead", {}, h("tr", {}, head.map((cell) => h("th", {}, cell)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, String(cell))))))));
}
