// Which kept trees and which of their samples a filter lets through.

export const FIELDS = ["q", "who", "task", "solved", "least", "most", "went"];

const OVER = 2;
const SUCCESS = 4;
const CARRIED = 1;

export function isSet(place) {
  return FIELDS.some((name) => place[name]);
}

const ofSample = (place) => Boolean(place.q || place.who || place.least || place.most || place.went);

// { trees: numbers of the trees that pass, hits: by number, rows of their samples that do, seconds }.
export function matches(run, place) {
  const began = performance.now();
  const trees = new Set();
  run.trees.forEach((one, at) => { if (treePasses(one, place)) trees.add(at); });
  const hits = new Map();
  if (ofSample(place)) {
    const passes = samplePasses(place);
    const rows = run.rows;
    for (let i = 0; i < rows.length; i += 1) {
      const row = rows[i];
      if (!trees.has(row.at) || !passes(row)) continue;
      const found = hits.get(row.at);
      if (found) found.push(row);
      else hits.set(row.at, [row]);
    }
    for (const at of trees) if (!hits.has(at)) trees.delete(at);
  }
  return { trees: [...trees], hits, milliseconds: performance.now() - began };
}

function treePasses(one, place) {
  if (place.task && !one.task.toLowerCase().includes(place.task.toLowerCase())) return false;
  if (place.solved === "yes" && one.wins === 0) return false;
  if (place.solved === "no" && one.wins > 0) return false;
  return !place.who || one.roles.includes(place.who);
}

function samplePasses(place) {
  const wanted = (place.q ?? "").toLowerCase();
  const least = place.least ? Number(place.least) : -Infinity;
  const most = place.most ? Number(place.most) : Infinity;
  return (row) => {
    if (place.who && row.role !== place.who) return false;
    if (row.reward < least || row.reward > most) return false;
    if (place.went === "yes" && !(row.bits & CARRIED)) return false;
    if (place.went === "no" && row.bits & CARRIED) return false;
    return !wanted || row.lower.includes(wanted);
  };
}

export const solved = (row) => Boolean(row.bits & SUCCESS && row.bits & OVER);
