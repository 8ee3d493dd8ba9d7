// Samples that were excluded from training and trees that were not stored, with the reasons.

import { block, count, h, plural, select } from "./dom.js";
import { go, read } from "./route.js";
import { numberOf, store } from "./store.js";

// What the kinds in the file are called and mean.
const KINDS = {
  failed: "Failed episodes: the environment or a program raised an error",
  "no spread": "Zero-variance groups: all samples have the same return, so their advantage is 0",
  "cut off": "Truncated completions that are excluded from the loss",
  replacement: "Tasks that replaced others whose groups had zero variance",
  "not kept": "Trees that were trained on and not stored",
};
const KIND_LABELS = {
  failed: "failed", "no spread": "zero variance", "cut off": "truncated", replacement: "replacement", "not kept": "not stored",
};
export const labelOf = (kind) => (Object.hasOwn(KIND_LABELS, kind) ? KIND_LABELS[kind] : kind);
const AT_ONCE = 100;

export function show(main) {
  const place = read();
  const shown = store.runs.filter((run) => run.on);
  const kind = place.kind ?? "";
  const counts = new Map(Object.keys(KINDS).map((name) => [name, 0]));
  for (const run of shown) for (const line of run.leftOut) counts.set(line.kind, (counts.get(line.kind) ?? 0) + 1);
  const bar = h("div", { class: "bar" }, h("label", {}, "Kind ", select("Kind", [["", "all"], ...[...counts].map(([name, many]) => [name, `${labelOf(name)} (${count(many)})`])], kind, (next) => go({ kind: next }, true))),
    h("label", {}, "Step ", h("input", { type: "number", min: 1, value: place.leftStep ?? "", class: "short", "aria-label": "Step", onchange: (event) => go({ leftStep: event.target.value }, true) })));
  const lines = shown.flatMap((run) => run.leftOut.map((line) => ({ run, line })))
    .filter(({ line }) => (!kind || line.kind === kind) && (!place.leftStep || line.step + 1 === Number(place.leftStep))).reverse();
  const list = h("ol", { class: "left" }, lines.slice(0, AT_ONCE).map(item));
  const parts = [bar, h("p", { class: "note" }, kind ? KINDS[kind] ?? kind : "Newest first. All other samples were trained on."), list];
  if (lines.length > AT_ONCE) parts.push(more(list, lines));
  if (!lines.length) parts.push(h("p", { class: "note" }, "Nothing was excluded."));
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
      h("li", {}, `${group.role}, decision ${group.decision + 1}: ${plural(group.samples, "sample")}, each with return ${group.return}`))))
      : line.samples ? h("span", {}, Object.entries(line.samples).map(([role, many]) => `${role} ${many}`).join(", ")) : null;
  return h("li", { class: `kind-${line.kind.replace(" ", "-")}` },
    h("div", {}, h("b", { class: "tag" }, labelOf(line.kind)), ` step ${count(line.step + 1)}`, line.task !== undefined && `, task ${line.task}`,
      line.trees !== undefined && `, ${plural(line.trees, "tree")}`, store.runs.length > 1 && h("span", { class: "note" }, ` ${run.name}`), " ", link),
    h("div", {}, line.reason), details);
}
