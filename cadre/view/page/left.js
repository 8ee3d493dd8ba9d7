// What was sampled and not learned from, or not kept, with the reasons.

import { block, count, h, plural, select } from "./dom.js";
import { go, read } from "./route.js";
import { numberOf, store } from "./store.js";

const KINDS = {
  failed: "Failed episodes: the environment or a program raised an error",
  "no spread": "Zero-variance groups: all samples have the same return, so nothing is learned from them",
  "cut off": "Truncated answers that are not trained",
  replacement: "Refilled: tasks that stood in for others that taught nothing",
  "not kept": "Trees that were learned from and not kept to look at",
};
const AT_ONCE = 100;

export function show(main) {
  const place = read();
  const shown = store.runs.filter((run) => run.on);
  const kind = place.kind ?? "";
  const counts = new Map(Object.keys(KINDS).map((name) => [name, 0]));
  for (const run of shown) for (const line of run.leftOut) counts.set(line.kind, (counts.get(line.kind) ?? 0) + 1);
  const bar = h("div", { class: "bar" }, h("label", {}, "Kind ", select("Kind", [["", "all"], ...[...counts].map(([name, many]) => [name, `${name} (${count(many)})`])], kind, (next) => go({ kind: next }, true))),
    h("label", {}, "Step ", h("input", { type: "number", min: 1, value: place.leftStep ?? "", class: "short", "aria-label": "Step", onchange: (event) => go({ leftStep: event.target.value }, true) })));
  const lines = shown.flatMap((run) => run.leftOut.map((line) => ({ run, line })))
    .filter(({ line }) => (!kind || line.kind === kind) && (!place.leftStep || line.step + 1 === Number(place.leftStep))).reverse();
  const list = h("ol", { class: "left" }, lines.slice(0, AT_ONCE).map(item));
  const parts = [bar, h("p", { class: "note" }, kind ? KINDS[kind] ?? kind : "Newest first. A step learns from what is not listed here."), list];
  if (lines.length > AT_ONCE) parts.push(more(list, lines));
  if (!lines.length) parts.push(h("p", { class: "note" }, "Nothing was left out."));
  main.replaceChildren(...parts);
}

function more(list, lines) {
  const button = h("button", { type: "button", class: "more" });
  const tell = () => { button.textContent = `Show ${count(Math.min(AT_ONCE, lines.length - list.children.length))} more of ${count(lines.length - list.children.length)}`; };
  button.addEventListener("click", () => {
    list.append(...lines.slice(list.children.length, list.children.length + AT_ONCE).map(item));
    if (list.children.length >= lines.length) button.remove();
    else tell();
  });
  tell();
  return button;
}

function item({ run, line }) {
  const kept = line.tree === undefined ? -1 : numberOf(run, line.step, line.tree);
  const link = kept >= 0 && h("a", { href: `#/trees?run=${encodeURIComponent(run.name)}&step=${line.step + 1}&tree=${line.tree}` }, "open the tree");
  const details = line.error ? h("details", {}, h("summary", {}, "traceback"), block(line.error))
    : line.groups ? h("details", {}, h("summary", {}, plural(line.groups.length, "group")), h("ul", {}, line.groups.map((group) =>
      h("li", {}, `${group.role}, decision ${group.decision + 1}: ${plural(group.samples, "sample")}, each worth ${group.return}`))))
      : line.samples ? h("span", {}, Object.entries(line.samples).map(([role, many]) => `${role} ${many}`).join(", ")) : null;
  return h("li", { class: `kind-${line.kind.replace(" ", "-")}` },
    h("div", {}, h("b", { class: "tag" }, line.kind), ` step ${count(line.step + 1)}`, line.task !== undefined && `, task ${line.task}`,
      line.trees !== undefined && `, ${plural(line.trees, "tree")}`, store.runs.length > 1 && h("span", { class: "note" }, ` ${run.name}`), " ", link),
    h("div", {}, line.reason), details);
}
