// A plot as a file: SVG, PNG and CSV. Names come from a run and may be anything: text in SVG is escaped, and a cell of
// CSV that a spreadsheet would take for a formula begins with an apostrophe.

import { compact, h, number } from "./dom.js";
import { hex } from "./colours.js";

export const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, LEGEND] = [640, 360, 62, 18, 34, 46, 18];

// Round values from at or below `low` to at or above `high`: about `count` of them, whole numbers where `whole`.
export function ticks(low, high, count = 6, whole = false) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const found = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const size = whole ? Math.max(1, Math.round(found)) : found;
  const [first, last] = [Math.floor(low / size + 1e-9), Math.ceil(high / size - 1e-9)];
  return Array.from({ length: Math.max(1, last - first) + 1 }, (_, index) => Number(((first + index) * size).toPrecision(12)));
}

export const isWhole = (lines) => lines.every((line) => [line.ys, line.low, line.high].every((column) => !column || column.every((y) => y === null || Number.isInteger(y))));

// Characters that XML has no form for, and marks of direction, are written out.
export const xml = (text) => String(text)
  .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]/g, (one) => `U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`)
  .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
  .replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);

// The text of an SVG file of a plot { title, unit, axis, lines }, for paper: dark on white.
export function svgOf({ title, unit, axis, lines }) {
  const finite = lines.flatMap((line) => [...line.ys, ...(line.low ?? []), ...(line.high ?? [])]).filter((y) => y !== null);
  const least = finite.reduce((a, b) => Math.min(a, b), Infinity);
  const most = finite.reduce((a, b) => Math.max(a, b), -Infinity);
  const xMost = lines.reduce((a, line) => line.xs.reduce((b, x) => Math.max(b, x), a), 0);
  const xTicks = ticks(0, xMost || 1, 8, axis.name !== "time");
  const yTicks = finite.length ? ticks(least, most, 5, isWhole(lines)) : [0, 1];
  const [xEnd, yStart, yEnd] = [xMost || 1, yTicks[0], yTicks.at(-1)];
  const x = (value) => (LEFT + (value / xEnd) * (WIDTH - LEFT - RIGHT)).toFixed(2);
  const y = (value) => (HEIGHT - BOTTOM - ((value - yStart) / (yEnd - yStart)) * (HEIGHT - TOP - BOTTOM)).toFixed(2);
  const label = (px, py, content, more = "") => `<text x="${px}" y="${py}" ${more}>${xml(content)}</text>`;
  const path = (points) => points.map(([px, py], index) => `${index ? "L" : "M"}${px} ${py}`).join("");
  const height = HEIGHT + LEGEND * lines.length;
  const parts = [`<rect width="${WIDTH}" height="${height}" fill="#fff"/>`, label(LEFT, 20, title, 'font-size="14" font-weight="600"')];

  for (const tick of xTicks.filter((tick) => tick <= xEnd)) {
    parts.push(`<path d="M${x(tick)} ${TOP}V${HEIGHT - BOTTOM}" stroke="#e3e7ec"/>`, label(x(tick), HEIGHT - BOTTOM + 16, compact(tick), 'text-anchor="middle"'));
  }
  for (const tick of yTicks) {
    parts.push(`<path d="M${LEFT} ${y(tick)}H${WIDTH - RIGHT}" stroke="#e3e7ec"/>`, label(LEFT - 6, Number(y(tick)) + 4, number(tick), 'text-anchor="end"'));
  }
  parts.push(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, axis.label, 'text-anchor="middle"'));
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  if (unit) parts.push(label(14, middle, unit, `text-anchor="middle" transform="rotate(-90 14 ${middle})"`));

  const barred = lines.filter((line) => line.low && line.bars);
  lines.forEach((line, order) => {
    const colour = hex(line.hue);
    const defined = line.xs.map((_, index) => index).filter((index) => line.ys[index] !== null);
    const points = (column) => defined.map((index) => [x(line.xs[index]), y(column[index])]);
    if (line.low && line.bars) {
      for (const index of defined.filter((one) => line.low[one] !== null && line.high[one] !== null)) {
        // Those of several runs at one step stand beside each other.
        const shift = (barred.indexOf(line) - (barred.length - 1) / 2) * 4;
        const [px, low, high] = [Number(x(line.xs[index])) + shift, y(line.low[index]), y(line.high[index])];
        parts.push(`<path d="M${px} ${low}V${high}M${px - 3} ${low}h6M${px - 3} ${high}h6" stroke="${colour}" fill="none"/>`);
      }
    } else if (line.low) {
      parts.push(`<path d="${path([...points(line.high), ...points(line.low).reverse()])}Z" fill="${colour}" fill-opacity="0.2"/>`);
    }
    const dash = DASHES[line.dash].join(" ");
    parts.push(`<path d="${path(points(line.ys))}" fill="none" stroke="${colour}" stroke-width="1.6"${dash && ` stroke-dasharray="${dash}"`}/>`);
    if (line.bars || defined.length < 2) {
      for (const [px, py] of points(line.ys)) parts.push(`<circle cx="${px}" cy="${py}" r="2.5" fill="${colour}"/>`);
    }
    const row = HEIGHT + LEGEND * order;
    parts.push(`<path d="M${LEFT} ${row}h28" stroke="${colour}" stroke-width="2"${dash && ` stroke-dasharray="${dash}"`}/>`, label(LEFT + 36, row + 4, line.label));
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" font-family="system-ui, sans-serif" font-size="12" fill="#16202c">\n${parts.join("\n")}\n</svg>\n`;
}

const cell = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

// The text of a CSV file: one row for each point, with the logged value and, if it is smoothed, the one that is drawn.
export function csvOf({ axis, lines }) {
  const rows = lines.flatMap((line) => line.steps.map((step, index) => [
    line.run.name, line.name, step, line.xs[index], line.values[index], line.ys[index], line.low?.[index], line.high?.[index],
  ]));
  const isSmoothed = rows.some(([, , , , value, drawn]) => value !== drawn);
  const columns = ["run", "series", "step", axis.label, "value", isSmoothed && "smoothed", "low", "high"];
  return [columns, ...rows].map((row) => row.filter((_, index) => columns[index] && !(index === 3 && axis.name === "step")).map(cell).join(",")).join("\r\n").concat("\r\n");
}

// The file in the browser's downloads.
export async function save(figure, kind) {
  const svg = kind === "csv" ? "" : svgOf(figure);
  const content = kind === "csv" ? csvOf(figure) : kind === "svg" ? svg : await pngOf(svg);
  const type = { csv: "text/csv", svg: "image/svg+xml", png: "image/png" }[kind];
  const url = URL.createObjectURL(new Blob([content], { type }));
  const name = figure.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "plot";
  const link = h("a", { href: url, download: `${name}.${kind}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

async function pngOf(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = h("canvas", { width: image.width * 2, height: image.height * 2 });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}
