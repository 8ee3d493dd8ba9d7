// The page: tabs, runs, theme, keys, and reading on while a run goes on.

import * as about from "./about.js";
import * as curves from "./curves.js";
import * as left from "./left.js";
import * as trees from "./trees.js";
import { byId, h } from "./dom.js";
import { hue } from "./colours.js";
import { go, read } from "./route.js";
import { isSaved, notice, refresh, start, store } from "./store.js";
import { move, nextHit } from "./tree.js";

const TABS = { curves: ["Curves", curves], trees: ["Trees", trees], left: ["Excluded", left], about: ["Settings", about] };
const EVERY = 2000;
const KEYS = [
  ["1 2 3 4", "curves, trees, excluded, settings"], ["↑ ↓", "completion before, after"], ["← →", "decision before, after"],
  ["[ ]", "previous, next tree that passes the filter"], ["n N", "next, previous completion that passes the filter"],
  ["a c k v s", "completion, group, tokens, conversation, state"], [", .", "previous, next state"], ["/", "filter by text"], ["t", "light, dark"], ["?", "these keys"],
];
const VIEW_KEYS = { a: "", c: "compare", k: "tokens", v: "talk", s: "state" };
let drawn = "";
let framed = "";

// The tabs and the runs above, drawn again only where they change.
function frame(place) {
  const wanted = JSON.stringify([place.tab, store.runs.map((run) => [run.name, run.on])]);
  if (framed === wanted) return;
  framed = wanted;
  byId("tabs").replaceChildren(...Object.entries(TABS).map(([name, [label]]) =>
    h("a", { href: `#/${name}`, "aria-current": name === place.tab ? "page" : null, onclick: (event) => { event.preventDefault(); go({ tab: name }); } }, label)));
  byId("runs").replaceChildren(...(store.runs.length > 1 ? store.runs.map((run, index) => h("label", { class: "run" },
    h("input", { type: "checkbox", checked: run.on, onchange: (event) => { run.on = event.target.checked; show(true); } }), h("i", { class: "swatch", vars: { "--hue": hue(index) } }), run.name)) : [h("b", {}, store.runs[0]?.name ?? "")]));
}

export async function show(anew = false) {
  const place = read();
  const [, page] = TABS[place.tab] ?? TABS.curves;
  frame(place);
  if (anew || drawn !== place.tab) byId("main").replaceChildren();
  drawn = place.tab;
  document.title = `${store.runs.length === 1 ? store.runs[0].name : `${store.runs.length} runs`} · Cadre`;
  try {
    await page.show(byId("main"));
  } catch (error) {
    byId("main").replaceChildren(notice(error));
    throw error;
  }
}

function live() {
  const newest = Math.max(0, ...store.runs.map((run) => run.changed));
  const done = store.runs.every((run) => run.xs.length && run.xs[run.xs.length - 1] >= run.steps);
  const quiet = Date.now() - newest > 120000;
  byId("live").textContent = isSaved ? "saved page" : done ? "finished" : quiet ? "waiting" : "live";
  byId("live").dataset.state = isSaved || done ? "done" : quiet ? "waiting" : "live";
}

async function follow() {
  try {
    const changed = await refresh();
    // What stands under the reader's eyes stays: a tree that is open, a text that is typed.
    if (changed && (read().tab !== "trees" || !document.activeElement?.closest?.(".body"))) await show();
    live();
  } catch {
    byId("live").textContent = "the server does not answer";
    byId("live").dataset.state = "waiting";
  }
  setTimeout(follow, EVERY);
}

function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
  show(true);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("cadre-theme", name); } catch { /* a page from disk may keep nothing */ }
}

function keys() {
  const dialog = byId("keys");
  dialog.replaceChildren(h("h2", {}, "Keys"), h("dl", { class: "facts" }, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])), h("form", { method: "dialog" }, h("button", {}, "Close")));
  dialog.showModal();
}

const ACTIONS = {
  "?": keys, t: theme, "/": () => { go({ tab: "trees" }); setTimeout(() => byId("filter")?.focus(), 50); },
  "[": () => trees.turn(-1), "]": () => trees.turn(1), n: () => nextHit(1), N: () => nextHit(-1),
  ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
  ",": () => byId("frame-back")?.click(), ".": () => byId("frame-on")?.click(),
};

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea, dialog")) return;
  const tab = Object.keys(TABS)["1234".indexOf(event.key)];
  const onTrees = read().tab === "trees";
  if (tab) go({ tab });
  else if (onTrees && event.key in VIEW_KEYS) go({ view: VIEW_KEYS[event.key] }, true);
  else if (event.key in ACTIONS && (onTrees || ["?", "t", "/"].includes(event.key))) ACTIONS[event.key]();
  else return;
  event.preventDefault();
}

async function begin() {
  try {
    const name = localStorage.getItem("cadre-theme");
    if (name) document.documentElement.dataset.theme = name;
  } catch { /* a page from disk may keep nothing */ }
  byId("theme").addEventListener("click", theme);
  byId("help").addEventListener("click", keys);
  addEventListener("keydown", pressed);
  addEventListener("hashchange", () => { if (store.ready) show(); });
  let wide = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; show(true); } });
  try {
    await start();
  } catch (error) {
    byId("main").replaceChildren(notice(error));
    return;
  }
  await show();
  live();
  performance.mark("cadre-shown");
  if (!isSaved) setTimeout(follow, EVERY);
}

begin();
