"""Whether a training set holds test items: the same words, nine tenths of a test item's runs of eight words, or
all of a training item's in a longer test item.

Texts are compared as their words in lower case, letters and digits only, so neither spacing, signs nor LaTeX's braces
hide a copy; of scripts that put no spaces between words every character is one. Of a test item with fewer than eight
words only an exact copy counts, and a training item with fewer than twelve is looked for in no longer test item. Eight
words and nine tenths find copies that were reworded at one end; templates filled with other numbers ("how many ways to
arrange the letters of ...") share less than that, unless they are short.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cadre.data.records import Problem, Record, decided_by, text_of

RUN = 8
LEAST = 12  # words of a training item that is looked for in longer test items
SHARE = 0.9
# Thai, Lao, Myanmar, Khmer, kana, Chinese characters and Hangul: every character is a word.
ALONE = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"
WORD = re.compile(rf"[{ALONE}]|[^\W_{ALONE}]+")
RAISED, LOWERED = re.compile("[⁰¹²³⁴-⁹⁺⁻]+"), re.compile("[₀-₉₊₋]+")
SAME = str.maketrans("−–—×·÷∣’", "---**/|'")
# Spaces, the marks that only set a formula, and those that end a clause.
UNSAID = re.compile(r"""[\s{}$"“”]|[.,;:?。]+(?=[\s$]|$)""")


@dataclass(frozen=True)
class Leak:
    """A training item that is, or nearly is, a test item; `share` of the test item's runs of words are in it, 1
    where it is in the test item as a whole."""

    train: int
    test: int
    share: float


def words_of(text: str) -> tuple[str, ...]:
    """The words that texts are compared by: `\\frac{1}{2}` is ("frac", "1", "2"), `x²` is ("x", "2")."""
    return tuple(WORD.findall(_plain(text)))


def _plain(text: str) -> str:
    """A text in lower case with one spelling of every character: `x²` is `x^2`, full-width digits are digits."""
    text = LOWERED.sub(r"_\g<0>", RAISED.sub(r"^\g<0>", text))
    return unicodedata.normalize("NFKC", text).translate(SAME).lower()


def said(text: str) -> str:
    """All of a text that may tell two items of the same words apart: `1 + (2 * 3).` is `1+(2*3)`."""
    return UNSAID.sub("", _plain(text))


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
    return said(text_of(record)) == said(text_of(other)) or decided_by(record) == decided_by(other)


def worst(
    distinct: set[int], held: dict[int, list[int]], sizes: Sequence[int], apart: Sequence[int] = ()
) -> tuple[float, int] | None:
    """The (share, test item) of which most is in an item with the runs `distinct`, of those that are not known to be
    `apart`; all of one that holds these runs, where they are of LEAST words. None below SHARE."""
    shared = Counter(place for run in distinct if run in held for place in held[run] if place not in apart)
    whole = max(len(distinct), LEAST - RUN + 1)
    shares = ((1.0 if count >= whole else count / sizes[place], place) for place, count in shared.items())
    share, place = max(shares, default=(0.0, 0))
    return (share, place) if share >= SHARE else None


def consistent(records: Sequence[Record]) -> list[Record]:
    """The records without the problems that ask the same and have several answers, all of which are left out: which is
    right is not known. Programs may be tested in several ways, and texts have several references."""
    answers: dict[str, set[tuple[str, float]]] = defaultdict(set)
    for record in records:
        if isinstance(record, Problem):
            answers[said(record.question)].add((said(record.answer), record.tolerance))
    return [each for each in records if not isinstance(each, Problem) or len(answers[said(each.question)]) == 1]


def once(records: Iterable[Record]) -> list[Record]:
    """The records without those that repeat one before: the same words decided by the same. Words leave signs out, so
    `sin 60` and `sin (-60)` are told apart by what is right."""
    kept: dict[tuple[Any, ...], Record] = {}
    for record in records:
        kept.setdefault((words_of(text_of(record)), *decided_by(record)), record)
    return list(kept.values())
