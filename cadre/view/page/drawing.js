// Pictures of states, as Env.render tells them.

import { block, h } from "./dom.js";
import { table } from "./about.js";

const FIGURES = { walker: "●", "walker on goal": "●", goal: "★", box: "■", "box on goal": "■", path: "•", wall: "", free: "", empty: "" };

export function drawing(told) {
  const draw = { grid, code, table: (one) => table(one.head, one.rows), text: (one) => block(one.text), several }[told.kind];
  return draw ? draw(told) : h("div", {}, h("p", { class: "note" }, `Unknown kind of drawing: ${told.kind}. Its content:`), block(JSON.stringify(told, null, 1)));
}

function several({ parts }) {
  return h("div", { class: "several" }, parts.map((part) => h("figure", {}, h("figcaption", {}, part.title), drawing(part.drawing))));
}

function grid({ rows, legend, boxes }) {
  const width = Math.max(...rows.map((row) => [...row].length));
  return h("div", { class: "grid", role: "img", "aria-label": rows.join("; "), vars: { "--columns": width } }, rows.flatMap((row, y) => [...row].map((letter, x) => {
    const thing = legend[letter] ?? "";
    const edge = boxes ? `${x % boxes === 0 && x ? " edge-left" : ""}${y % boxes === 0 && y ? " edge-top" : ""}` : "";
    return h("i", { class: `cell ${thing.replaceAll(" ", "-")}${edge}`, title: thing || letter }, thing ? FIGURES[thing] ?? letter : letter);
  })));
}

function code({ source, results, language }) {
  return h("div", {}, block(source, { class: "code", "data-language": language }), results.length > 0 && h("ul", { class: "results" }, results.map((one) =>
    h("li", { class: one.ok ? "good" : "bad" }, `${one.ok ? "✓" : "✗"} ${one.name}`, one.message && block(one.message)))));
}
