// The kept trees of a run: the list with its filters on the left, the tree that is open beside it.

import { byId, count, h, number, plural, select } from "./dom.js";
import { FIELDS, isSet, matches } from "./filter.js";
import { go, read } from "./route.js";
import { fillTable, notice, numberOf, store, treeOf } from "./store.js";
import { sampleOf } from "./texts.js";
import { markHits, showTree } from "./tree.js";

const ROW = 46;
let list = null;
let found = null;

export async function show(main) {
  const place = read();
  const run = store.runs.find((one) => one.name === place.run) ?? store.runs.find((one) => one.on) ?? store.runs[0];
  const fresh = main.querySelector("#trees")?.dataset.run !== run.name;
  if (fresh) build(main, run);
  update(run, place);
  if (fresh && run.trees.length) bringToSight(run, place);
  await open(run, place);
}

function build(main, run) {
  list = h("div", { id: "list", class: "list", tabindex: 0, role: "listbox", "aria-label": "Stored trees", onscroll: () => drawRows(run) });
  main.replaceChildren(h("div", { id: "trees", class: "trees", "data-run": run.name },
    h("aside", { class: "side" },
      store.runs.length > 1 && h("label", { class: "field" }, "Run ", select("Run", store.runs.map((one) => [one.name, one.name]), run.name, (name) => go({ run: name, step: "", tree: "", node: "" }))),
      filters(run), h("p", { id: "found", class: "note", role: "status" }), list),
    h("section", { id: "open", class: "open", "aria-label": "The open tree" })));
  readOn(run);
}

function readOn(run) {
  fillTable(run, () => update(run, read())).catch((error) => byId("found")?.replaceChildren(notice(error)));
}

function filters(run) {
  const place = read();
  const set = (name) => (event) => go({ [name]: event.target.value }, true);
  const text = h("input", { id: "filter", type: "search", placeholder: "Text of a completion", "aria-label": "Text of a completion", value: place.q ?? "", oninput: set("q") });
  const box = (name, label, type = "text") => h("input", { id: `filter-${name}`, type, step: "any", placeholder: label, "aria-label": label, value: place[name] ?? "", oninput: set(name) });
  const choice = (name, label, options) => {
    const element = select(label, options, place[name] ?? "", (value) => go({ [name]: value }, true));
    element.id = `filter-${name}`;
    return element;
  };
  return h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, text,
    choice("who", "Role", [["", "any role"], ...Object.keys(run.assignment).map((role) => [role, role])]),
    choice("solved", "Success", [["", "any outcome"], ["yes", "solved"], ["no", "not solved"]]),
    box("task", "Task"),
    choice("went", "Selected", [["", "any completion"], ["yes", "selected"], ["no", "not selected"]]),
    box("least", "Min reward", "number"), box("most", "Max reward", "number"),
    h("button", { type: "button", class: "quiet", onclick: (event) => { event.target.form.querySelectorAll("input").forEach((input) => { input.value = ""; }); event.target.form.querySelectorAll("select").forEach((one) => { one.value = ""; }); go({ q: "", who: "", solved: "", task: "", went: "", least: "", most: "" }, true); } }, "Clear"));
}

// The filter again, and the rows in sight.
function update(run, place) {
  if (!list?.isConnected) return;
  if (run.tabled < run.trees.length && !run.filling) readOn(run);
  found = matches(run, place);
  const reading = run.tabled < run.trees.length ? `; loaded ${count(run.tabled)} of ${count(run.trees.length)}` : "";
  const decisions = run.trees.reduce((sum, one) => sum + one.decisions, 0);
  byId("found").textContent = isSet(place)
    ? `${plural(found.trees.length, "tree")} of ${count(run.trees.length)}${found.hits.size ? `, ${plural(found.answers, "completion")}` : ""}${reading}`
    : `${plural(run.trees.length, "tree")}, ${plural(decisions, "decision")}${reading}`;
  byId("found").dataset.milliseconds = found.milliseconds.toFixed(1);
  drawRows(run);
}

function drawRows(run) {
  if (!list || !found) return;
  const place = read();
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const shown = found.trees.slice(first, first + Math.ceil(list.clientHeight / ROW) + 8);
  const rows = shown.map((at, index) => row(run, at, first + index, place));
  list.replaceChildren(h("div", { class: "spacer", vars: { "--height": `${found.trees.length * ROW}px` } }, rows));
}

function row(run, at, place, here) {
  const one = run.trees[at];
  const rows = found.hits.get(at);
  const chosen = at === openAt(run, here);
  const solved = one.episodes ? one.wins / one.episodes : 0;
  return h("a", {
    class: `row${chosen ? " chosen" : ""}`, role: "option", "aria-selected": chosen, vars: { "--top": `${place * ROW}px` }, href: link(run, one, rows && sampleOf(run.rows, rows[0])), tabindex: -1,
  }, h("span", { class: `end ${one.wins ? "good" : "bad"}`, title: `${one.wins} of ${one.episodes} episodes solved` }, solved === 1 || (one.wins && one.episodes === 1) ? "✓" : one.wins ? `${one.wins}/${one.episodes}` : "✗"),
  h("span", { class: "what" }, h("b", {}, `step ${count(one.step + 1)}`), ` · ${one.task}`, h("small", {}, rows ? plural(rows.length, "completion") : plural(one.decisions, "decision"))),
  h("span", { class: "paid" }, number(one.reward)));
}

function link(run, one, hit) {
  const { tab, ...rest } = read();
  const place = { ...rest, run: run.name, step: one.step + 1, tree: one.tree, node: hit ? hit.node : "", role: hit ? hit.role : "", index: hit ? hit.index : "" };
  const kept = Object.entries(place).filter(([, value]) => value !== "" && value !== undefined);
  return `#/trees?${new URLSearchParams(kept.map(([key, value]) => [key, String(value)]))}`;
}

// The number of the tree that a place opens: the newest where it names none; -1 where that is not kept.
function openAt(run, place) {
  const step = place.step ? Number(place.step) - 1 : run.trees[run.trees.length - 1].step;
  const tree = place.tree ? Number(place.tree) : run.trees.find((one) => one.step === step)?.tree ?? 0;
  return numberOf(run, step, tree);
}

function bringToSight(run, place) {
  const at = openAt(run, place);
  list.scrollTop = Math.max(0, found.trees.indexOf(at) * ROW - list.clientHeight / 2);
}

async function open(run, place) {
  const section = byId("open");
  if (!run.trees.length) {
    section.replaceChildren(h("p", { class: "note" }, "No tree is stored yet. train.trees_kept sets how many of each step are."));
    return;
  }
  const at = openAt(run, place);
  if (at < 0) {
    const steps = run.trees.map((one) => one.step + 1);
    section.replaceChildren(h("p", { class: "note" }, `This tree of step ${place.step} is not stored (train.trees_kept, train.trees_megabytes). Stored are trees of steps ${steps[0]} to ${steps.at(-1)}.`));
    return;
  }
  try {
    const tree = await treeOf(run, at);
    if (!section.isConnected || read().tab !== "trees") return;
    const hits = (found?.hits.get(at) ?? []).map((row) => sampleOf(run.rows, row));
    // While only the filter changes, what is open stays as it is, but for what the filter marks in it.
    const open = JSON.stringify([at, Object.entries(place).filter(([name]) => !FIELDS.includes(name))]);
    if (section.dataset.open === open) return markHits(section, hits);
    showTree(section, run, at, tree, hits);
    section.dataset.open = open;
  } catch (error) {
    section.replaceChildren(notice(error));
  }
}

// The tree before or after the one that is open, among those that pass the filter.
export function turn(by) {
  const place = read();
  const run = store.runs.find((one) => one.name === place.run) ?? store.runs.find((one) => one.on);
  if (!run || !found?.trees.length) return;
  const at = openAt(run, place);
  const next = found.trees[Math.min(found.trees.length - 1, Math.max(0, found.trees.indexOf(at) + by))];
  const one = run.trees[next];
  go({ run: run.name, step: one.step + 1, tree: one.tree, node: "", role: "", index: "" });
  if (list) list.scrollTop = Math.max(0, found.trees.indexOf(next) * ROW - list.clientHeight / 2);
}
