"""Scores of texts: MAGRPO's graded reward of two writers, faithfulness to a source, ROUGE-L and prose.

The graded reward has four levels, each reached only past the one before (arXiv 2508.04652; bounds and ramps as its
authors' public code computes them, which its comments do not): both lengths in range (0.5), the ratio of the lengths in
characters (1.0), the ratio of the numbers of distinct words (0.5), and style (1.0): .4 for transitions, .6 for the
words that the two share. It never looks at the source. The lists of words are our own, and are
matched as words: the public rewards look for parts of words, in which almost any text has transitions of several kinds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

BEST = 3.0
TRANSITIONS = {
    "addition": "furthermore moreover additionally besides also likewise",
    "example": "specifically namely notably particularly including especially",
    "explanation": "essentially basically meaning indeed precisely",
    "cause": "therefore thus hence consequently accordingly because",
    "contrast": "however nevertheless nonetheless conversely instead whereas but yet",
    "sequence": "first second third next finally subsequently lastly",
    "emphasis": "certainly clearly undoubtedly importantly significantly",
    "summary": "overall altogether briefly ultimately",
    "comparison": "similarly equally compared analogously",
    "concession": "although though despite admittedly regardless",
    "condition": "if unless otherwise provided",
    "time": "meanwhile previously currently recently later during eventually",
}
KINDS = {word: kind for kind, listed in TRANSITIONS.items() for word in listed.split()}
FUNCTION_WORDS = frozenset(
    "a about after all also am an and any are as at be because been before being between both but by can could did do "
    "does each for from had has have he her here him his how i if in into is it its just many may me might more most "
    "much must my no not of on one only or other our out over own same she should so some such than that the their "
    "them then there these they this those through to too under up us very was we were what when where which while who "
    "whom why will with would you your".split()
)


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def content_of(text: str) -> set[str]:
    """Return the distinct words of a text that carry meaning."""
    return set(words_of(text)) - FUNCTION_WORDS


@dataclass(frozen=True)
class Levels:
    """The bounds of the graded reward. A ramp (a, b, c, d) rises from a to b, is full to c and falls to d.

    tokens     fewest and most words of each text, split at spaces
    length     ramp of the second text's characters over the first's
    distinct   ramp of the second text's distinct words over the first's
    shared     Jaccard index of the content words that is enough
    both       transitions are looked for in both texts, not in the second alone
    """

    tokens: tuple[int, int]
    length: tuple[float, float, float, float]
    distinct: tuple[float, float, float, float]
    shared: float
    both: bool


TLDR = Levels((8, 256), (1.1, 1.6, 3.2, 5.0), (1.3, 2.0, inf, inf), 0.03, both=False)
ARXIV = Levels((128, 256), (0.8, 1.3, 1.6, 2.0), (0.5, 0.7, 1.3, 1.7), 0.23, both=True)


def ramp(value: float, bounds: tuple[float, float, float, float]) -> float | None:
    """Return the height of the ramp, 0 to 1, inside the bounds; None outside them, which ends the levels."""
    rise, full, fall, end = bounds
    if not rise <= value <= end:
        return None
    if value < full:
        return (value - rise) / (full - rise)
    return 1.0 if value <= fall else (end - value) / (end - fall)


def graded(first: str, second: str, levels: Levels) -> dict[str, float]:
    """Return the graded reward of two texts by level; levels that were not reached are 0."""
    parts = {"range": 0.0, "length": 0.0, "distinct": 0.0, "style": 0.0}
    low, high = levels.tokens
    if not all(low <= len(text.split()) <= high for text in (first, second)):
        return parts
    parts["range"] = 0.5
    length = ramp(len(second) / len(first), levels.length)
    if length is None:
        return parts
    parts["length"] = length
    distinct = ramp(len(set(words_of(second))) / max(1, len(set(words_of(first)))), levels.distinct)
    if distinct is None:
        return parts
    return {**parts, "distinct": 0.5 * distinct, "style": style(first, second, levels)}


def style(first: str, second: str, levels: Levels) -> float:
    """Return .4 for transitions (.4 of it for the first kind, .05 for each further one) and .6 for shared content
    words."""
    kinds = {KINDS[word] for word in words_of(f"{first} {second}" if levels.both else second) if word in KINDS}
    transitions = min(1.0, 0.4 + 0.05 * (len(kinds) - 1)) if kinds else 0.0
    return 0.4 * transitions + 0.6 * min(1.0, jaccard(first, second) / levels.shared)


def jaccard(first: str, second: str) -> float:
    """Return the number of shared content words over that of all content words, 0 if there is none."""
    first_words, second_words = content_of(first), content_of(second)
    return len(first_words & second_words) / len(first_words | second_words) if first_words | second_words else 0.0


ENOUGH = 0.6  # of a text's content words in the source; people's summaries of abstracts have 0.73 on average
COPY = (8, 24)  # words in a row as in the source: so many are free, from so many on nothing is left
COPY_OF_SENSE = (8, 18)  # likewise, of those words alone that carry meaning: others put in between hide no copy
REPEATS = (0.25, 0.5)  # distinct words of all words, on the first 100: below is nothing, above is all
CONNECTED = (0.1, 0.25)  # function words of all words, likewise: a list of key words has none


def faithful(source: str, text: str) -> float:
    """Return the faithfulness of a text to its source, 0 to 1: its content words are the source's, it is more than a
    list of them, it does not repeat itself, and it is not a copy of the source. Order and meaning are not checked."""
    content, source_stems = content_of(text), {stem(word) for word in content_of(source)}
    words = words_of(text)
    if not content:
        return 0.0
    support = sum(stem(word) in source_stems for word in content) / len(content)
    # Longer texts repeat words by necessity; the first hundred are comparable for all lengths.
    start = words[:100]
    connected = sum(word in FUNCTION_WORDS for word in words) / len(words)
    full = min(1.0, support / ENOUGH) * uncopied(source, text)
    return full * rise(len(set(start)) / len(start), REPEATS) * rise(connected, CONNECTED)


def uncopied(source: str, text: str) -> float:
    """Return 1 for a text in its own words, down to 0 for one with many words in a row from the source."""
    copied = rise(longest_run(words_of(source), words_of(text)), COPY)
    sense = longest_run(_meaning(source), _meaning(text))
    return 1.0 - max(copied, rise(sense, COPY_OF_SENSE))


def _meaning(text: str) -> list[str]:
    """Return the words of a text in order, without function words and transitions."""
    return [word for word in words_of(text) if word not in FUNCTION_WORDS and word not in KINDS]


EMPTY = (0.7, 0.9)  # function words of all words: so many are prose, from so many on nothing is left


def prose(text: str) -> float:
    """Return a score for written-out text, 0 to 1, by its worst hundred words: they do not repeat themselves, and are
    more than function words. Function words alone have a ROUGE-L of up to .2 with any long text, more than most texts.
    """
    words = words_of(text)
    # Windows of a hundred words; the last one reaches back, so that none is short.
    starts = [*range(0, len(words) - 100, 100), max(0, len(words) - 100)]
    return min(varied(words[start : start + 100]) for start in starts) if words else 0.0


def varied(words: Sequence[str]) -> float:
    """Return the score of a hundred words in `prose`."""
    function = sum(word in FUNCTION_WORDS for word in words) / len(words)
    return rise(len(set(words)) / len(words), REPEATS) * (1.0 - rise(function, EMPTY))


def rise(value: float, bounds: tuple[float, float]) -> float:
    """Return 0 up to the first bound, 1 from the second on, and the linear interpolation between them."""
    low, high = bounds
    return min(1.0, max(0.0, (value - low) / (high - low)))


def stem(word: str) -> str:
    """Return a word without its English ending: "measured", "measures" and "measuring" have the same stem."""
    # Longer endings first; at least three letters must remain.
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def longest_run(source: Sequence[str], words: Sequence[str], limit: int = COPY[1]) -> int:
    """Return the largest number of words in a row that both have, counted up to `limit`; in time linear in their
    lengths."""
    low, high = 0, min(limit, len(source), len(words))
    # Binary search: two texts that share a run of n words share all shorter ones too.
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if runs_of(source, middle) & runs_of(words, middle) else (low, middle - 1)
    return low


def runs_of(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    """Return every run of `length` words."""
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def rouge_l(reference: str, text: str) -> float:
    """Return ROUGE-L as an F-measure (Lin 2004, equations 2 to 4, with beta 1) over words in lower case, 0 to 1."""
    text_words, reference_words = words_of(text), words_of(reference)
    common = common_subsequence(text_words, reference_words)
    # F1 of precision common / len(text) and recall common / len(reference).
    return 2 * common / (len(text_words) + len(reference_words)) if common else 0.0


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, by rows of bits (Hyyro 2004), a bit a word of the shorter
    one."""
    # The shorter one in bits, to keep the numbers small.
    if len(first) > len(second):
        first, second = second, first
    positions: Counter[str] = Counter()
    for position, word in enumerate(first):
        positions[word] |= 1 << position
    full = (1 << len(first)) - 1
    # All ones: no word of the shorter text is matched yet.
    row = full
    for word in second:
        matches = row & positions[word]
        # A bit of `row` is 0 where the subsequence grew; the addition carries over to the next word that can extend it.
        row = ((row + matches) | (row - matches)) & full
    return len(first) - row.bit_count()
