// All samples of the kept trees in columns, a row each, for filters. The lower-cased texts of a part stand in one string
// with the places where its rows begin: one native search looks through thousands of them.

export const noRows = () => ({ at: [], node: [], role: [], index: [], reward: [], bits: [], parts: [] });

// Adds the rows of some trees, of which the first has number `first`.
export function addRows(rows, first, trees) {
  const part = { first: rows.at.length, starts: [0], text: "" };
  const texts = [];
  let end = 0;
  trees.forEach((of, place) => {
    for (const [node, role, index, text, reward, , bits] of of) {
      rows.at.push(first + place);
      rows.node.push(node);
      rows.role.push(role);
      rows.index.push(index);
      rows.reward.push(reward);
      rows.bits.push(bits);
      const lower = text.toLowerCase();
      texts.push(lower);
      end += lower.length + 1;
      part.starts.push(end);
    }
  });
  part.text = `${texts.join("\n")}\n`;
  rows.parts.push(part);
}

// The numbers of the rows whose text holds a word, which is in small letters, in order.
export function rowsWith(rows, word) {
  const held = [];
  for (const { first, starts, text } of rows.parts) {
    let row = 0;
    let place = text.indexOf(word);
    while (place >= 0 && row < starts.length - 1) {
      row = rowAt(starts, place, row);
      // A word with a line break in it might begin in one text and end in the next.
      const within = place + word.length < starts[row + 1];
      if (within) held.push(first + row);
      place = text.indexOf(word, within ? starts[row + 1] : place + 1);
    }
  }
  return held;
}

// The row in which a place of the string lies, at or after row `least`.
function rowAt(starts, place, least) {
  let low = least;
  let high = starts.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= place) low = middle;
    else high = middle;
  }
  return low;
}

export const sampleOf = (rows, row) => ({ node: rows.node[row], role: rows.role[row], index: rows.index[row] });
