// Which kept trees and which of their samples a filter lets through.

import { rowsWith } from "./texts.js";

export const FIELDS = ["q", "who", "task", "solved", "least", "most", "went"];

const CARRIED = 1;

export function isSet(place) {
  return FIELDS.some((name) => place[name]);
}

const ofSample = (place) => Boolean(place.q || place.who || place.least || place.most || place.went);

// { trees: numbers of the trees that pass, hits: by number, the rows of their samples that do, answers: how many these
// are, milliseconds }.
export function matches(run, place) {
  const began = performance.now();
  const passes = run.trees.map((one) => treePasses(one, place));
  const hits = new Map();
  let answers = 0;
  if (ofSample(place)) {
    for (const row of samplesThatPass(run.rows, place)) {
      const at = run.rows.at[row];
      if (!passes[at]) continue;
      answers += 1;
      if (hits.has(at)) hits.get(at).push(row);
      else hits.set(at, [row]);
    }
  }
  const trees = [];
  passes.forEach((through, at) => { if (through && (!ofSample(place) || hits.has(at))) trees.push(at); });
  return { trees, hits, answers, milliseconds: performance.now() - began };
}

function treePasses(one, place) {
  if (place.task && !one.task.toLowerCase().includes(place.task.toLowerCase())) return false;
  if (place.solved === "yes" && one.wins === 0) return false;
  if (place.solved === "no" && one.wins > 0) return false;
  return !place.who || one.roles.includes(place.who);
}

function samplesThatPass(rows, place) {
  const least = place.least ? Number(place.least) : -Infinity;
  const most = place.most ? Number(place.most) : Infinity;
  const went = { yes: CARRIED, no: 0 }[place.went];
  const all = place.q ? rowsWith(rows, place.q.toLowerCase()) : rows.at.keys();
  const through = [];
  for (const row of all) {
    if (place.who && rows.role[row] !== place.who) continue;
    if (rows.reward[row] < least || rows.reward[row] > most) continue;
    if (went !== undefined && (rows.bits[row] & CARRIED) !== went) continue;
    through.push(row);
  }
  return through;
}
