// Elements made of plain data. Text only ever becomes text: nothing here or elsewhere parses HTML.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "vars") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  put(element, children);
  return element;
}

// Appends what there is of the children, however nested.
export function put(element, ...children) {
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
}

export const byId = (id) => document.getElementById(id);

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udfff]/g;

// Text with its control characters and marks of direction written out, so that what is shown is what is there.
export function visible(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(h("span", { class: "control", title: `the character U+${code}` }, `U+${code}`));
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}

const AT_ONCE = 50000;

// A block of text as it is. A very long one begins with its start, says how much is missing, and shows it when asked.
export function block(text, attributes = {}) {
  const pre = h("pre", { dir: "auto", ...attributes, class: `text ${attributes.class ?? ""}` }, visible(text.slice(0, AT_ONCE)));
  if (text.length <= AT_ONCE) return pre;
  const rest = text.length - AT_ONCE;
  const more = h("button", { type: "button", class: "more" }, `Show the other ${count(rest)} characters`);
  more.addEventListener("click", () => { pre.append(...visible(text.slice(AT_ONCE))); more.remove(); });
  return h("div", {}, pre, more);
}

export const count = (number) => number.toLocaleString("en-US");

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3)) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

// For the ticks of an axis: 1500 is 1.5k.
export function compact(value) {
  const [size, suffix] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return suffix ? `${Number((value / size).toPrecision(6))}${suffix}` : number(value, 6);
}

export const signed = (value, digits = 3) => (value > 0 ? "+" : "") + number(value, digits).replace("-", "−");

export function plural(many, word) {
  return `${count(many)} ${word}${many === 1 ? "" : "s"}`;
}

export function select(label, options, value, change) {
  const element = h("select", { "aria-label": label, onchange: (event) => change(event.target.value) },
    options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)));
  return element;
}
