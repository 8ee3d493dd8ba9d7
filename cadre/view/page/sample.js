// One completion: its text, reward and advantage, its tokens, the other completions of its group, the conversation on
// its path, and the state before and after it.

import { block, count, h, number, plural, put, select, signed, visible } from "./dom.js";
import { difference } from "./difference.js";
import { drawing } from "./drawing.js";
import { roleHue } from "./colours.js";
import { go, read } from "./route.js";
import { notice, pictureOf, tokensOf } from "./store.js";
import { labelOf } from "./left.js";
import { reason, worth } from "./tree.js";

const VIEWS = [["answer", "Completion"], ["compare", "Group"], ["tokens", "Tokens"], ["talk", "Conversation"], ["state", "State"]];
const TOKENS_AT_ONCE = 3000;

export function showSample(element, open) {
  const { run, tree, node, role, index } = open;
  const sample = tree.nodes[node].samples[role][index];
  const branches = tree.nodes[node].branches.filter((branch) => branch.choice[role] === index);
  const view = VIEWS.some(([name]) => name === read().view) ? read().view : "answer";
  const body = h("div", { class: "body", role: "tabpanel", id: "panel", "aria-labelledby": `view-${view}`, tabindex: 0 });
  const tabs = h("div", { role: "tablist", class: "views", "aria-label": "Views of the completion" }, VIEWS.map(([name, label]) =>
    h("button", { type: "button", role: "tab", id: `view-${name}`, "aria-selected": name === view, "aria-controls": "panel", onclick: () => go({ view: name === "answer" ? "" : name }, true) }, label)));
  element.replaceChildren(
    h("header", { vars: { "--hue": roleHue(run, role) } }, h("h3", {}, h("i", { class: "swatch", vars: { "--hue": roleHue(run, role) } }), `${role} #${index + 1}`),
      h("span", { class: "note" }, `policy ${sample.policy}, after ${plural(sample.version, "update")}, ${plural(sample.tokens, "token")}${sample.finish === "length" ? ", truncated at its limit" : ""}`)),
    tabs, body);
  const show = { answer, compare, tokens, talk, state }[view];
  show(body, { ...open, sample, branches });
}

function facts(open) {
  const { run, tree, node, role, sample, branches } = open;
  const rows = [];
  for (const branch of branches) {
    const others = Object.entries(branch.choice).filter(([name]) => name !== role);
    const beside = others.length ? ` with ${others.map(([name, one]) => `${name} #${one + 1}`).join(", ")}` : "";
    const local = Object.entries(branch.reward.local).map(([name, value]) => `${name} ${signed(value)}`).join(", ");
    rows.push([`reward${beside}`, `${signed(worth(run, branch, role))} = ${run.alpha === 1 ? "" : `${run.alpha} × `}team ${signed(branch.reward.team)}${local ? ` + ${local}` : ""}`]);
    const parts = Object.entries(branch.reward.parts);
    if (parts.length) rows.push(["parts", parts.map(([name, value]) => `${name} ${number(value)}`).join(", ")]);
    rows.push(["branch", `${reason(run, tree.nodes[node], branch)}${branch.over ? `; episode ended, ${branch.success ? "solved" : "not solved"}` : ""}`]);
  }
  const { credit, critic, ...others } = sample.said;
  if (credit) {
    rows.push(["return", number(credit.return)], ["advantage", signed(credit.advantage)], ["weight in the loss", number(credit.weight)]);
    if (credit.penalty) rows.push(["penalty", signed(-credit.penalty)]);
    if (credit.left_out) rows.push(["excluded from the loss", labelOf(credit.left_out)]);
  }
  if (critic) rows.push(["critic value", `${critic.values.slice(0, 12).map((value) => number(value)).join(", ")}${critic.values.length > 12 ? ` and ${critic.values.length - 12} more` : ""}; target ${number(critic.return)}`]);
  for (const [producer, fields] of Object.entries(others)) rows.push([producer, JSON.stringify(fields)]);
  return h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, visible(value))]));
}

function answer(body, open) {
  const { run, tree, node, role, sample } = open;
  const messages = tree.nodes[node].observations[role].messages;
  put(body, facts(open), h("h4", {}, "Completion"), sample.text ? block(sample.text, { id: "said" }) : h("p", { class: "note" }, "The completion is empty."),
    sample.message?.tool_calls.length > 0 && [h("h4", {}, "Tool calls"), block(JSON.stringify(sample.message.tool_calls, null, 1))],
    h("h4", {}, "Prompt messages"), messages.map((one) => message(one, run)), tree.nodes[node].privileged && [h("h4", {}, "Privileged text for critics"), block(tree.nodes[node].privileged)]);
}

function message(one, run) {
  return h("div", { class: `message by-${one.role}` }, h("b", {}, one.role), one.images.map((image) => picture(image, run)), one.thinking && h("details", { class: "muted" }, h("summary", {}, "thinking"), block(one.thinking)), block(one.content), one.tool_calls.length > 0 && block(JSON.stringify(one.tool_calls, null, 1)));
}

// Small images are enlarged, pixel by pixel.
function picture({ digest, width, height }, run) {
  const scale = Math.max(1, Math.floor(240 / Math.max(width, height)));
  const about = `image of ${width} by ${height} pixels, ${digest.slice(0, 12)}`;
  return h("img", { class: "picture", src: pictureOf(run, digest), width: width * scale, height: height * scale, alt: about, title: about });
}

// The completions of the group beside each other, with the words marked that the reference lacks.
function compare(body, open) {
  const { run, tree, node, role, index } = open;
  const siblings = tree.nodes[node].samples[role];
  const against = Math.min(siblings.length - 1, Number(read().against ?? index));
  put(body, h("label", { class: "field" }, "Differences from ", select("Compared with", siblings.map((_, place) => [place, `#${place + 1}`]), against, (place) => go({ against: place }, true))),
    h("div", { class: "beside" }, siblings.map((sample, place) => {
      const branch = tree.nodes[node].branches.find((one) => one.choice[role] === place);
      const credit = sample.said.credit;
      const parts = place === against ? null : difference(sample.text, siblings[against].text);
      const same = place !== against && sample.text === siblings[against].text;
      return h("article", { class: place === against ? "against" : "" },
        h("header", {}, h("b", {}, `#${place + 1}`), branch && ` reward ${signed(worth(run, branch, role))}`, credit && ` adv ${signed(credit.advantage)}`, branch?.selected && h("span", { class: "tag" }, "selected"), same && h("span", { class: "tag" }, `same as #${against + 1}`)),
        parts ? h("pre", { class: "text", dir: "auto" }, parts.map(([alike, text]) => (alike ? h("span", { class: "alike" }, visible(text)) : h("mark", {}, visible(text)))))
          : [block(sample.text), place !== against && h("p", { class: "note" }, "Too long for a comparison by words.")]);
    })));
}

const SHADES = [["advantage", "advantage"], ["logprob", "log-probability"], ["entropy", "entropy"], ["logprob_diff", "log-prob, learner − sampler"]];

async function tokens(body, open) {
  const { run, at, node, role, index, sample } = open;
  put(body, h("p", { class: "note" }, "Loading the tokens …"));
  let told;
  try {
    told = await tokensOf(run, at, node, role, index);
  } catch (error) {
    body.replaceChildren(notice(error));
    return;
  }
  if (!told) {
    body.replaceChildren(h("p", { class: "note" }, "The saved page does not contain the tokens of this completion; run cadre view on the run folder to see them."));
    return;
  }
  const shade = read().shade ?? "logprob";
  const values = valuesOf(told, sample, shade);
  const missing = values === null && { logprob_diff: "The learner did not compute this completion (its advantage is 0): there is no difference to show.", entropy: "The learner did not compute this completion (its advantage is 0): there is no entropy.", advantage: "No advantage is recorded for this completion." }[shade];
  const most = values ? Math.max(1e-9, ...values.map((value) => Math.abs(value ?? 0)).slice(0, 100000)) : 1;
  const list = h("div", { class: "tokens", dir: "auto" });
  const fill = (from, to) => list.append(...told.tokens.slice(from, to).map((word, place) => token(word, from + place, told, values, most)));
  fill(0, TOKENS_AT_ONCE);
  const rest = told.tokens.length - TOKENS_AT_ONCE;
  const more = rest > 0 && h("button", { type: "button", class: "more", onclick: () => { fill(TOKENS_AT_ONCE, told.tokens.length); more.remove(); } }, `Show the other ${count(rest)} tokens`);
  body.replaceChildren();
  put(body,
    h("label", { class: "field" }, "Shading: ", select("Shaded by", SHADES, shade, (name) => go({ shade: name }, true))),
    h("p", { class: "scale" }, values ? `darkest: ${number(most)}` : missing), list, more,
    h("details", { open: told.prompt.length < 600 }, h("summary", {}, `Prompt after the chat template, ${plural(told.prompt.length, "token")}`), block(joined(told.prompt), { class: "prompt" })));
}

function valuesOf(told, sample, shade) {
  if (shade === "logprob") return told.logprobs;
  if (shade === "entropy") return told.entropy;
  if (shade === "logprob_diff") return told.learner && told.learner.map((value, place) => value - told.logprobs[place]);
  if (told.advantages) return told.advantages;
  return sample.said.credit ? told.tokens.map(() => sample.said.credit.advantage) : null;
}

function token(word, place, told, values, most) {
  const value = values?.[place];
  const about = [`token ${place + 1}`, `log-probability ${number(told.logprobs[place])}`];
  if (told.learner) about.push(`learner ${number(told.learner[place])}`, `learner − sampler ${signed(told.learner[place] - told.logprobs[place])}`);
  if (told.entropy) about.push(`entropy ${number(told.entropy[place])} nats`);
  const strength = value === undefined || value === null ? 0 : Math.min(1, Math.abs(value) / most);
  return h("span", { class: `token ${value < 0 ? "minus" : "plus"}`, title: about.join(", "), vars: { "--strength": strength.toFixed(3) } }, visible(spelt(word)));
}

const BYTE = /<0x([0-9A-F]{2})>/g;
const spelt = (word) => word.replace(/\n/g, "↵\n");

// The text of tokens; parts of characters, which stand as bytes, are put together again.
export function joined(pieces) {
  return pieces.join("").replace(/(?:<0x[0-9A-F]{2}>)+/g, (run) => {
    const bytes = Uint8Array.from([...run.matchAll(BYTE)], (match) => parseInt(match[1], 16));
    return new TextDecoder().decode(bytes);
  });
}

// The conversation from the root to here: what a prompt repeats of earlier turns is folded.
function talk(body, open) {
  const { run, tree, parents, node, role, index } = open;
  const turns = [];
  for (let here = node, said = { [role]: index }; ;) {
    turns.unshift([here, said]);
    const above = parents.get(here);
    if (!above) break;
    said = tree.nodes[above.node].branches[above.branch].choice;
    here = above.node;
  }
  const seen = new Set();
  put(body, ...turns.map(([number, said], depth) => h("section", { class: "turn" }, h("h4", {}, `Decision ${depth + 1}`), Object.entries(said).map(([name, place]) => {
    const sample = tree.nodes[number].samples[name][place];
    const messages = tree.nodes[number].observations[name].messages;
    const parts = messages.map((one) => {
      const key = `${name} ${one.role} ${one.images.map((image) => image.digest)} ${one.content}`;
      const repeated = seen.has(key);
      seen.add(key);
      return repeated ? h("details", { class: "muted" }, h("summary", {}, `${one.role}, as before (${plural(one.content.length, "character")})`), message(one, run)) : message(one, run);
    });
    seen.add(`${name} assistant  ${sample.text}`);
    return h("div", {}, h("h5", {}, `prompt of ${name}`), parts, h("h5", {}, `${name} #${place + 1}`), block(sample.text || " ", { class: "said" }));
  }))));
}

// The state at the root, then after each step of the path, one at a time.
function state(body, open) {
  const { run, tree, path, node, branches } = open;
  const frames = [];
  path.slice(0, path.indexOf(node) + 1).forEach((number, depth) => frames.push([`before decision ${depth + 1}`, tree.nodes[number].drawing]));
  const here = frames.length - 1;
  const branch = branches.find((one) => one.selected) ?? branches[0];
  if (branch) frames.push([`after this completion: reward ${signed(worth(run, branch, open.role))}${branch.over ? (branch.success ? ", solved" : ", not solved") : ""}`, branch.drawing]);
  path.slice(path.indexOf(node) + 1).forEach((number, depth) => {
    if (branch?.child === path[path.indexOf(node) + 1]) frames.push([`before decision ${here + depth + 2}`, tree.nodes[number].drawing]);
  });
  const last = tree.nodes[path[path.length - 1]].branches.find((one) => one.selected);
  if (last && path[path.length - 1] !== node) frames.push([`at the end: ${last.success ? "solved" : "not solved"}`, last.drawing]);
  if (!frames.some(([, picture]) => picture)) {
    put(body, h("p", { class: "note" }, "This environment has no drawing. Define Env.render (docs/view.md)."), h("h4", {}, "The task"), block(JSON.stringify(tree.task.data, null, 1)));
    return;
  }
  let shown = Math.min(frames.length - 1, read().frame ? Number(read().frame) : here + 1);
  const holder = h("div", { class: "frame" });
  const title = h("b", { role: "status" });
  const step = (by) => { shown = Math.min(frames.length - 1, Math.max(0, shown + by)); draw(); };
  const draw = () => {
    title.textContent = `${shown + 1} of ${frames.length}: ${frames[shown][0]}`;
    holder.replaceChildren(frames[shown][1] ? drawing(frames[shown][1]) : h("p", { class: "note" }, "No drawing of this state."));
  };
  put(body, h("div", { class: "bar" }, h("button", { type: "button", id: "frame-back", onclick: () => step(-1) }, "◀ Back"), h("button", { type: "button", id: "frame-on", onclick: () => step(1) }, "Forward ▶"), title), holder);
  draw();
}
