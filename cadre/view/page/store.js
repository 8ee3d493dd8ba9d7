// The data of the runs. A saved page contains all of it; else the server is asked, and asked again while a run goes on.
// A few trees are cached.

import { h } from "./dom.js";
import { addRows, noRows } from "./texts.js";

const saved = document.getElementById("saved");
const data = saved ? JSON.parse(saved.textContent) : null;
export const isSaved = data !== null;
const TREES_HELD = 6;

export const store = { runs: [], listeners: new Set(), ready: false };

async function ask(path, parameters = {}) {
  const response = await fetch(`api/${path}?${new URLSearchParams(parameters)}`);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

export async function start() {
  const about = isSaved ? data.runs.map((run) => run.about) : await ask("runs");
  store.runs = about.map((one, index) => ({
    ...one, index, on: true, offset: 0, xs: [], columns: {}, evaluations: [], trees: [], leftOut: [], leftOutOffset: 0,
    rows: noRows(), tabled: 0, filling: null, cache: new Map(), changed: 0,
  }));
  await refresh();
}

// Asks every run for what was written since; true where something was.
export async function refresh() {
  const changes = await Promise.all(store.runs.map(refreshRun));
  store.ready = true;
  const changed = changes.some(Boolean);
  if (changed) for (const listener of store.listeners) listener();
  return changed;
}

async function refreshRun(run) {
  const kept = isSaved ? data.runs[run.index] : null;
  if (kept && run.xs.length) return false;
  const asked = (what, parameters) => ask(`runs/${run.index}/${what}`, parameters);
  const [told, trees, evaluations, left] = kept ? [kept.metrics, kept.trees, kept.evaluations, kept.left_out] : await Promise.all([
    asked("metrics", { offset: run.offset }), asked("trees", { first: run.trees.length }), asked("evaluations"), asked("left_out", { offset: run.leftOutOffset }),
  ]);
  if (told.generation !== run.generation) return startAgain(run, told.generation);
  if (told.offset < run.offset) Object.assign(run, { xs: [], columns: {} });
  append(run, told);
  for (const row of trees.rows) run.trees.push(entry(row));
  run.evaluations = evaluations;
  if (left.offset < run.leftOutOffset) run.leftOut = [];
  run.leftOutOffset = left.offset;
  for (const line of left.lines) run.leftOut.push(line); // as arguments too many would overflow the stack
  const grew = told.steps.length + trees.rows.length + left.lines.length > 0;
  if (grew) run.changed = Date.now();
  return grew;
}

// The run was resumed: what came after its checkpoint is written anew, so all of it is read anew.
function startAgain(run, generation) {
  Object.assign(run, { generation, offset: 0, xs: [], columns: {}, trees: [], leftOut: [], leftOutOffset: 0, rows: noRows(), tabled: 0 });
  run.cache.clear();
  return refreshRun(run);
}

function append(run, told) {
  const before = run.xs.length;
  run.offset = told.offset;
  for (const step of told.steps) run.xs.push(step + 1);
  for (const name of Object.keys(told.columns)) run.columns[name] ??= new Array(before).fill(null);
  for (const [name, column] of Object.entries(run.columns)) {
    const more = told.columns[name];
    for (let place = 0; place < told.steps.length; place += 1) column.push(more ? more[place] : null);
  }
}

function entry([step, tree, task, decisions, samples, episodes, wins, reward, roles]) {
  return { step, tree, task, decisions, samples, episodes, wins, reward, roles };
}

// The number of a kept tree, by step and tree; -1 where there is none.
export const numberOf = (run, step, tree) => run.trees.findIndex((one) => one.step === step && one.tree === tree);

export async function treeOf(run, at) {
  if (isSaved) return data.runs[run.index].tree[at];
  if (!run.cache.has(at)) {
    run.cache.set(at, ask(`runs/${run.index}/tree`, { at }));
    while (run.cache.size > TREES_HELD) run.cache.delete(run.cache.keys().next().value);
  }
  return run.cache.get(at);
}

// Where a picture of a message is: in the saved page itself, or at the server.
export const pictureOf = (run, digest) => (isSaved ? data.runs[run.index].pictures[digest] : `api/runs/${run.index}/pictures/${digest}`);

export async function tokensOf(run, at, node, role, index) {
  if (!isSaved) return ask(`runs/${run.index}/tokens`, { at, node, role, index });
  const told = data.runs[run.index].tokens[at]?.[`${node} ${role} ${index}`];
  if (!told) return null;
  const words = data.runs[run.index].words;
  return { ...told, prompt: told.prompt.map((word) => words[word]), tokens: told.tokens.map((word) => words[word]) };
}

// Rows of all samples of the kept trees, for filters: read in the background, a part at a time, by one reader a run.
export function fillTable(run, told) {
  run.filling ??= fill(run, told).finally(() => { run.filling = null; });
  return run.filling;
}

async function fill(run, told) {
  const part = 50;
  while (run.tabled < run.trees.length) {
    const [rows, first] = [run.rows, run.tabled];
    const trees = isSaved ? data.runs[run.index].table.slice(first, first + part) : await ask(`runs/${run.index}/table`, { first, count: part });
    if (rows !== run.rows || !trees.length) return;
    addRows(rows, first, trees);
    run.tabled += trees.length;
    told();
    await new Promise((resume) => setTimeout(resume));
  }
}

export const notice = (error) => h("p", { class: "note bad", role: "alert" }, String(error.message ?? error));
