"""Find training items that are test items: the same words, 90% of a test item's runs of eight words, or all runs of a
training item within a longer test item.

Texts are compared as their words in lower case, letters and digits only, so neither spacing, signs nor LaTeX's braces
hide a copy; in scripts that put no spaces between words every character is a word. For a test item with fewer than
eight words only an exact copy counts, and a training item with fewer than twelve words is not searched for in longer
test items. Eight words and 90% find copies that were reworded at one end; templates filled with other numbers ("how
many ways to arrange the letters of ...") share less than that, unless they are short.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cadre_tasks.data.records import Problem, Record, prompt_text, solution_key

RUN_LENGTH = 8
MIN_WORDS = 12  # of a training item that is searched for in longer test items
MIN_SHARE = 0.9
# Thai, Lao, Myanmar, Khmer, kana, Chinese characters and Hangul: every character is a word.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
SUPERSCRIPTS, SUBSCRIPTS = re.compile("[⁰¹²³⁴-⁹⁺⁻]+"), re.compile("[₀-₉₊₋]+")
SAME_SIGNS = str.maketrans("−–—×·÷∣’", "---**/|'")
# Spaces, the marks that only set a formula, and those that end a clause.
IGNORED_SIGNS = re.compile(r"""[\s{}$"“”]|[.,;:?。]+(?=[\s$]|$)""")


@dataclass(frozen=True)
class Leak:
    """A training item that is, or nearly is, a test item.

    train, test   indices
    share         fraction of the test item's runs of words in the training item, 1 if it is within the test item
    """

    train: int
    test: int
    share: float


def find_leaks(train: Sequence[Record], test: Sequence[Record]) -> list[Leak]:
    """Return the worst match of every training item that leaks, in order. Linear in the words of both sets."""
    test_words = [split_words(prompt_text(record)) for record in test]
    tests_by_words: dict[tuple[str, ...], list[int]] = defaultdict(list)
    tests_by_run: dict[int, list[int]] = defaultdict(list)
    run_counts = [0] * len(test_words)
    for index, words in enumerate(test_words):
        tests_by_words[words].append(index)
        runs = hash_runs(words)
        run_counts[index] = len(runs)
        for run in runs:
            tests_by_run[run].append(index)

    leaks = []
    for index, record in enumerate(train):
        words = split_words(prompt_text(record))
        same_words = tests_by_words.get(words, [])
        copy = next((candidate for candidate in same_words if is_copy(record, test[candidate])), None)
        if copy is not None:
            leaks.append(Leak(index, copy, 1.0))
            continue
        # Items of the same words that are no copies differ in signs, and are told apart by them.
        runs = hash_runs(words)
        shared = Counter(
            candidate
            for run in runs
            if run in tests_by_run
            for candidate in tests_by_run[run]
            if candidate not in same_words
        )
        all_runs = max(len(runs), MIN_WORDS - RUN_LENGTH + 1)
        shares = (
            (1.0 if count >= all_runs else count / run_counts[candidate], candidate)
            for candidate, count in shared.items()
        )
        share, candidate = max(shares, default=(0.0, 0))
        if share >= MIN_SHARE:
            leaks.append(Leak(index, candidate, share))
    return leaks


def is_copy(record: Record, test_record: Record) -> bool:
    """Return True if two records of the same words have the same signs, or the same solution."""
    same_signs = without_ignored_signs(prompt_text(record)) == without_ignored_signs(prompt_text(test_record))
    return same_signs or solution_key(record) == solution_key(test_record)


def split_words(text: str) -> tuple[str, ...]:
    """Return the words by which texts are compared: `\\frac{1}{2}` is ("frac", "1", "2"), `x²` is ("x", "2")."""
    return tuple(WORD.findall(normalize(text)))


def normalize(text: str) -> str:
    """Return a text in lower case with one spelling of every character: `x²` is `x^2`, full-width digits are digits."""
    text = SUBSCRIPTS.sub(r"_\g<0>", SUPERSCRIPTS.sub(r"^\g<0>", text))
    return unicodedata.normalize("NFKC", text).translate(SAME_SIGNS).lower()


def without_ignored_signs(text: str) -> str:
    """Return the characters that distinguish items of the same words: `1 + (2 * 3).` is `1+(2*3)`."""
    return IGNORED_SIGNS.sub("", normalize(text))


def hash_runs(words: Sequence[str]) -> set[int]:
    """Return hashes of the runs of RUN_LENGTH words; comparable within one process."""
    return {hash(tuple(words[i : i + RUN_LENGTH])) for i in range(len(words) - RUN_LENGTH + 1)}


def remove_contradictions(records: Sequence[Record]) -> list[Record]:
    """Return the records without problems of one question and several answers, none of which is known to be right.
    Programs may be tested in several ways, and texts have several references."""
    answers: dict[str, set[tuple[str, float]]] = defaultdict(set)
    for record in records:
        if isinstance(record, Problem):
            answer = (without_ignored_signs(record.answer), record.tolerance)
            answers[without_ignored_signs(record.question)].add(answer)
    return [
        record
        for record in records
        if not isinstance(record, Problem) or len(answers[without_ignored_signs(record.question)]) == 1
    ]


def remove_repetitions(records: Iterable[Record]) -> list[Record]:
    """Return the first record of each text and solution. Texts are compared by words, which leave signs out: `sin 60`
    and `sin (-60)` differ by their solutions."""
    first: dict[tuple[Any, ...], Record] = {}
    for record in records:
        first.setdefault((split_words(prompt_text(record)), *solution_key(record)), record)
    return list(first.values())
