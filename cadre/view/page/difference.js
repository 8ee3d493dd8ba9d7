// Which words of a text another one has too, by the longest common subsequence of words.

const MOST = 1500;

export const words = (text) => text.match(/\s+|[A-Za-z0-9_]+|[^\sA-Za-z0-9_]/gu) ?? [];

// [[same, text], ...] of `text` against `other`; null where they are too long to be compared word by word.
export function difference(text, other) {
  const [a, b] = [words(text), words(other)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const [mine, theirs] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  if (mine.length > MOST || theirs.length > MOST) return null;
  const kept = common(mine, theirs);
  const parts = [];
  const push = (same, word) => {
    const last = parts[parts.length - 1];
    if (last && last[0] === same) last[1] += word;
    else parts.push([same, word]);
  };
  a.slice(0, start).forEach((word) => push(true, word));
  mine.forEach((word, place) => push(kept[place], word));
  a.slice(a.length - end).forEach((word) => push(true, word));
  return parts;
}

function common(a, b) {
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] = a[i] === b[j]
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const kept = new Array(a.length).fill(false);
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) { kept[i] = true; i += 1; j += 1; }
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return kept;
}
