// One tree: an overview of all its decisions, and the open path as columns, depth to the right, with the completions
// of each decision below each other.

import { count, h, plural, put, signed, visible } from "./dom.js";
import { line, roleHue, style } from "./colours.js";
import { showSample } from "./sample.js";
import { labelOf } from "./left.js";
import { go, read } from "./route.js";

const PREVIEW = 280;
let shown = null;

export function showTree(section, run, at, tree, hits) {
  const parents = parentsOf(tree);
  const place = read();
  const node = clamp(Number(place.node || 0), tree.nodes.length);
  const role = tree.nodes[node].samples[place.role] ? place.role : Object.keys(tree.nodes[node].samples)[0];
  const siblings = tree.nodes[node].samples[role];
  const index = place.index ? clamp(Number(place.index), siblings.length) : chosen(tree.nodes[node], role);
  const path = pathThrough(tree, parents, node, place.index ? { role, index } : null);
  shown = { run, at, tree, parents, node, role, index, path, hits };
  const samples = tree.nodes.reduce((sum, one) => sum + Object.values(one.samples).reduce((a, b) => a + b.length, 0), 0);
  const columns = h("div", { class: "columns", tabindex: 0, role: "group", "aria-label": "Decisions of the open path" }, path.map((number, depth) => column(number, depth)));
  const scrolled = section.dataset.tree === `${run.name} ${at}` ? section.querySelector(".columns")?.scrollLeft ?? 0 : 0;
  const detail = h("div", { id: "sample", class: "sample" });
  section.replaceChildren();
  put(section,
    h("div", { class: "bar" }, h("h2", {}, `Step ${count(tree.step + 1)}, task ${tree.task.id}`), h("span", { class: "note" }, `${plural(tree.nodes.length, "decision")}, ${plural(samples, "completion")}${run.shape ? `, shape ${run.shape}` : ""}`),
      h("button", { type: "button", class: "quiet", onclick: copyLink }, "Copy link")),
    overview(tree, path), columns, detail);
  section.dataset.tree = `${run.name} ${at}`;
  columns.scrollLeft = scrolled;
  const selected = columns.querySelector(".sibling.selected");
  if (selected) reveal(columns, selected);
  showSample(detail, shown);
}

// Marks the completions that the filter lets through, in a tree that is shown.
export function markHits(section, hits) {
  shown.hits = hits;
  const places = new Set(hits.map((hit) => `${hit.node} ${hit.role} ${hit.index}`));
  for (const button of section.querySelectorAll(".sibling")) button.classList.toggle("hit", places.has(button.dataset.place));
}

function reveal(columns, element) {
  const [box, all] = [element.closest(".column").getBoundingClientRect(), columns.getBoundingClientRect()];
  if (box.left < all.left) columns.scrollLeft += box.left - all.left - 8;
  else if (box.right > all.right) columns.scrollLeft += Math.min(box.right - all.right + 8, box.left - all.left);
}

const clamp = (value, length) => Math.min(Math.max(0, value || 0), length - 1);

function copyLink(event) {
  navigator.clipboard?.writeText(location.href).then(() => { event.target.textContent = "Copied"; }, () => { event.target.textContent = "The link is in the address bar"; });
}

export function parentsOf(tree) {
  const parents = new Map();
  tree.nodes.forEach((node, number) => node.branches.forEach((branch, place) => {
    if (branch.child !== null) parents.set(branch.child, { node: number, branch: place });
  }));
  return parents;
}

// The completion that is opened first: a selected one.
function chosen(node, role) {
  return (node.branches.find((branch) => branch.selected) ?? node.branches[0])?.choice[role] ?? 0;
}

// From the root through a decision, then along the picked completion where it has a child, else along the selected.
function pathThrough(tree, parents, node, picked) {
  const path = [node];
  while (parents.has(path[0])) path.unshift(parents.get(path[0]).node);
  let here = node;
  let held = picked;
  while (here !== null) {
    const branches = tree.nodes[here].branches;
    const mine = held ? branches.filter((branch) => branch.choice[held.role] === held.index) : branches;
    const next = mine.find((branch) => branch.selected && branch.child !== null) ?? mine.find((branch) => branch.child !== null);
    held = null;
    here = next ? next.child : null;
    if (here !== null) path.push(here);
  }
  return path;
}

export const worth = (run, branch, role) => run.alpha * branch.reward.team + (branch.reward.local[role] ?? 0);

export const score = (run, branch) => run.alpha * branch.reward.team + Object.values(branch.reward.local).reduce((a, b) => a + b, 0);

// The reason why a branch was selected to continue, in words.
export function reason(run, node, branch) {
  if (!branch.selected) return branch.child !== null ? "explored, not selected" : "not selected";
  const selected = node.branches.filter((one) => one.selected).length;
  if (node.branches.length === 1) return "selected: the only branch";
  if (selected === node.branches.length) return "selected: every branch continues";
  const scores = node.branches.map((one) => score(run, one));
  const mine = score(run, branch);
  const best = Math.max(...scores);
  const ties = (value) => Math.abs(value - best) <= 2 ** -20 * Math.max(Math.abs(value), Math.abs(best)); // as cadre.rewards.rounding
  const equals = scores.filter(ties).length;
  if (ties(mine)) return equals > 1 ? `selected: drawn from ${equals} with the highest reward, ${signed(best)}` : `selected: highest reward, ${signed(best)}`;
  if (node.branches.some((one) => !one.selected && one.child !== null)) return "selected: by the rewards after it";
  return `selected: by the rule of ${run.shape || "the shape"}`;
}

function column(number, depth) {
  const { tree, path } = shown;
  const node = tree.nodes[number];
  const next = path[depth + 1];
  const through = node.branches.find((branch) => branch.child === next && next !== undefined);
  return h("div", { class: "column", "data-node": number },
    h("h3", {}, `Decision ${depth + 1}`, h("small", {}, ` turn ${node.turn + 1}${node.weight !== 1 ? `, weight ${signed(node.weight).replace("+", "")}` : ""}`)),
    Object.entries(node.samples).map(([role, siblings]) => h("div", { class: "of-role", vars: { "--hue": roleHue(shown.run, role) } },
      h("h4", {}, h("i", { class: "swatch", vars: { "--hue": roleHue(shown.run, role) } }), role, h("small", {}, ` ${plural(siblings.length, "completion")}`)),
      h("ol", { class: "siblings" }, siblings.map((sample, index) => sibling(number, role, index, sample, through))))));
}

function sibling(number, role, index, sample, through) {
  const { run, tree, node, role: openRole, index: openIndex, hits } = shown;
  const branches = tree.nodes[number].branches.filter((branch) => branch.choice[role] === index);
  const went = branches.find((branch) => branch.selected) ?? branches[0];
  const paid = branches.length ? branches.reduce((sum, branch) => sum + worth(run, branch, role), 0) / branches.length : null;
  const credit = sample.said.credit;
  const selected = number === node && role === openRole && index === openIndex;
  const hidden = sample.text.length - PREVIEW;
  const classes = ["sibling", went?.selected && "carried", selected && "selected", through?.choice[role] === index && "on-path", hits.some((hit) => hit.node === number && hit.role === role && hit.index === index) && "hit"];
  const open = () => go({ run: run.name, step: tree.step + 1, tree: tree.tree, node: number, role, index }, true);
  return h("li", {}, h("button", { type: "button", class: classes.filter(Boolean).join(" "), "aria-pressed": selected, "data-place": `${number} ${role} ${index}`, onclick: open },
    h("span", { class: "numbers" }, h("b", {}, `#${index + 1}`),
      h("span", { class: paid > 0 ? "good" : paid < 0 ? "bad" : "", title: "reward: alpha × team + local" }, `reward ${signed(paid)}`),
      credit && h("span", { title: "advantage" }, `adv ${signed(credit.advantage)}`), credit && bar(credit.advantage),
      went?.over && h("span", { class: `tag ${went.success ? "good" : ""}`, title: went.failure?.error ?? "" },
        went.failure ? `failed: ${went.failure.reason}` : went.success ? "solved" : "not solved"),
      sample.finish === "length" && h("span", { class: "tag bad" }, "truncated"),
      credit?.left_out && h("span", { class: "tag" }, labelOf(credit.left_out))),
    h("span", { class: "preview", dir: "auto" }, sample.text ? visible(sample.text.slice(0, PREVIEW)) : h("i", {}, "empty")),
    hidden > 0 && h("span", { class: "cut" }, `${count(hidden)} more characters; click to read all`),
    went && h("span", { class: "why" }, went.selected ? "→ " : "", reason(run, tree.nodes[number], went))));
}

function bar(value) {
  const size = Math.min(1, Math.abs(value) / 2);
  return h("i", { class: `credit ${value < 0 ? "minus" : "plus"}`, vars: { "--size": `${50 * size}%` }, "aria-hidden": "true" });
}

// All decisions of the tree on one canvas: depth to the right, a dot a decision in the colour of its role.
function overview(tree, path) {
  const canvas = h("canvas", { class: "overview", role: "img", "aria-label": `Overview: ${plural(tree.nodes.length, "decision")}. Arrow keys move within the tree.` });
  if (tree.nodes.length < 2) return null;
  const { depths, rows, height } = layout(tree);
  const deepest = Math.max(...depths.slice(0, 1), depths.reduce((a, b) => Math.max(a, b), 0));
  const places = tree.nodes.map((_, number) => [depths[number] / Math.max(1, deepest), height > 1 ? rows[number] / (height - 1) : 0.5]);
  requestAnimationFrame(() => paint(canvas, tree, places, new Set(path), height));
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left - 10) / (box.width - 20), (event.clientY - box.top - 10) / (box.height - 20)];
    const distance = ([px, py]) => ((px - x) * box.width) ** 2 + ((py - y) * box.height) ** 2;
    let nearest = 0;
    places.forEach((one, number) => { if (distance(one) < distance(places[nearest])) nearest = number; });
    go({ node: nearest, role: "", index: "" }, true);
  });
  return canvas;
}

function layout(tree) {
  const depths = new Array(tree.nodes.length).fill(0);
  const rows = new Array(tree.nodes.length).fill(0);
  let height = 0;
  tree.nodes.forEach((node, number) => node.branches.forEach((branch) => { if (branch.child !== null) depths[branch.child] = depths[number] + 1; }));
  for (let number = tree.nodes.length - 1; number >= 0; number -= 1) {
    const children = tree.nodes[number].branches.filter((branch) => branch.child !== null).map((branch) => rows[branch.child]);
    if (children.length) rows[number] = children.reduce((a, b) => a + b) / children.length;
    else { rows[number] = height; height += 1; }
  }
  return { depths, rows, height };
}

function paint(canvas, tree, places, path, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const tall = Math.min(180, Math.max(44, height * 6 + 20));
  canvas.style.height = `${tall}px`;
  canvas.width = width * ratio;
  canvas.height = tall * ratio;
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  const at = (number) => [10 + places[number][0] * (width - 20), 10 + places[number][1] * (tall - 20)];
  const faint = style("--line-strong");
  tree.nodes.forEach((node, number) => node.branches.forEach((branch) => {
    if (branch.child === null) return;
    const on = path.has(number) && path.has(branch.child);
    draw.strokeStyle = on ? style("--accent") : faint;
    draw.lineWidth = on ? 2 : 0.7;
    const [[x, y], [u, v]] = [at(number), at(branch.child)];
    draw.beginPath();
    draw.moveTo(x, y);
    draw.bezierCurveTo((x + u) / 2, y, (x + u) / 2, v, u, v);
    draw.stroke();
  }));
  const colours = new Map();
  tree.nodes.forEach((node, number) => {
    const role = Object.keys(node.samples)[0];
    if (!colours.has(role)) colours.set(role, line(0).replace(/ 215 /, ` ${roleHue(shown.run, role)} `));
    draw.fillStyle = colours.get(role);
    const [x, y] = at(number);
    draw.beginPath();
    draw.arc(x, y, path.has(number) ? 4.5 : tree.nodes.length > 2000 ? 1.2 : 2.5, 0, 7);
    draw.fill();
  });
}

// Moves by keys: to another completion, to the decision before or after.
export function move(down, right) {
  if (!shown) return false;
  const { run, tree, path, node, role, index } = shown;
  let next = { node, role, index };
  if (right) {
    const place = path[path.indexOf(node) + right];
    if (place === undefined) return true;
    const first = Object.keys(tree.nodes[place].samples)[0];
    next = { node: place, role: first, index: chosen(tree.nodes[place], first) };
    const through = tree.nodes[place].branches.find((branch) => branch.child === path[path.indexOf(place) + 1]);
    if (through) next.index = through.choice[first];
  }
  if (down) {
    const all = Object.entries(tree.nodes[node].samples).flatMap(([name, siblings]) => siblings.map((_, place) => [name, place]));
    const place = all.findIndex(([name, one]) => name === role && one === index);
    const [name, one] = all[clamp(place + down, all.length)];
    next = { node, role: name, index: one };
  }
  go({ run: run.name, step: tree.step + 1, tree: tree.tree, ...next }, true);
  return true;
}

// The next completion in this tree that passes the filter.
export function nextHit(by) {
  if (!shown?.hits.length) return;
  const { hits, node, role, index, run, tree } = shown;
  const here = hits.findIndex((hit) => hit.node === node && hit.role === role && hit.index === index);
  const hit = hits[(here + by + hits.length) % hits.length];
  go({ run: run.name, step: tree.step + 1, tree: tree.tree, node: hit.node, role: hit.role, index: hit.index }, true);
}
