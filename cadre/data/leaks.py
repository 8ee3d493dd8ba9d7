"""Whether a training set holds test items: the same words, or nine tenths of a test item's runs of eight words.

Texts are compared as their words in lower case, letters and digits only, so neither spacing, signs nor LaTeX's braces
hide a copy. Of a test item with fewer than eight words only an exact copy counts. Eight words and nine tenths find
copies that were reworded at one end; templates filled with other numbers ("how many ways to arrange the letters of
...") share less than that, unless they are short.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cadre.data.records import Record, decided_by, text_of

RUN = 8
# What words leave out, and may be all that tells two items apart.
SIGNS, PLAIN = re.compile(r"[-+*/<>=^!%]"), str.maketrans("−–×·÷", "--**/")
SHARE = 0.9


@dataclass(frozen=True)
class Leak:
    """A training item that is, or nearly is, a test item; `share` of the test item's runs of words are in it."""

    train: int
    test: int
    share: float


def words_of(text: str) -> tuple[str, ...]:
    """The words that texts are compared by: `\\frac{1}{2}` is ("frac", "1", "2")."""
    return tuple(re.findall(r"[^\W_]+", text.lower()))


def runs(words: Sequence[str]) -> set[int]:
    """Hashes of the runs of RUN words; equal within one process."""
    return {hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1)}


def leaks(train: Sequence[Record], test: Sequence[Record]) -> list[Leak]:
    """The worst match of every training item that leaks, in order. Linear in the words of both sets."""
    tested = [words_of(text_of(record)) for record in test]
    same: dict[tuple[str, ...], list[int]] = defaultdict(list)
    held: dict[int, list[int]] = defaultdict(list)
    sizes = [0] * len(tested)
    for place, words in enumerate(tested):
        same[words].append(place)
        distinct = runs(words)
        sizes[place] = len(distinct)
        for run in distinct:
            held[run].append(place)
    leaking = []
    for place, record in enumerate(train):
        words = words_of(text_of(record))
        alike = same.get(words, [])
        copied = next(((1.0, other) for other in alike if is_copy(record, test[other])), None)
        match = copied or worst(runs(words), held, sizes, alike)
        if match is not None:
            leaking.append(Leak(place, match[1], match[0]))
    return leaking


def is_copy(record: Record, other: Record) -> bool:
    """Whether two records of the same words are one: by their signs, or by what is right."""
    signs = [SIGNS.findall(text_of(each).translate(PLAIN)) for each in (record, other)]
    return signs[0] == signs[1] or decided_by(record) == decided_by(other)


def worst(
    distinct: set[int], held: dict[int, list[int]], sizes: Sequence[int], apart: Sequence[int] = ()
) -> tuple[float, int] | None:
    """The (share, test item) of which most is in an item with the runs `distinct`, of those that are not known to be
    `apart`; None below SHARE."""
    shared = Counter(place for run in distinct if run in held for place in held[run] if place not in apart)
    share, place = max(((count / sizes[place], place) for place, count in shared.items()), default=(0.0, 0))
    return (share, place) if share >= SHARE else None


def once(records: Iterable[Record]) -> list[Record]:
    """The records without those that repeat one before: the same text, or the same words decided by the same. Words
    leave signs out, so `sin 60` and `sin (-60)` are told apart by what is right."""
    texts: set[str] = set()
    items: set[tuple[Any, ...]] = set()
    kept = []
    for record in records:
        text = text_of(record)
        item = (words_of(text), *decided_by(record))
        if text not in texts and item not in items:
            kept.append(record)
        texts.add(text)
        items.add(item)
    return kept
