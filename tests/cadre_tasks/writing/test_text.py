"""The graded reward of two writers by hand, faithfulness, ROUGE-L against numbers worked out by hand."""

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadre_tasks.data import Article, load
from cadre_tasks.writing import text
from cadre_tasks.writing.text import (
    ARXIV,
    TLDR,
    common_subsequence,
    faithful,
    graded,
    jaccard,
    longest_run,
    prose,
    ramp,
    rouge_l,
    uncopied,
)
from tests.helpers.public_sets import FOLDER, rows
from tests.helpers.writing import HONEST, OTHER, SOURCE

SHORT = "aa bb cc dd ee ff gg hh"  # 8 words, 23 characters


def longer(words: int) -> str:
    return " ".join(f"{chr(97 + i // 26)}{chr(97 + i % 26)}x"[:2] for i in range(words))


@pytest.mark.parametrize(
    ("value", "worth"),
    [(1.09, None), (1.1, 0.0), (1.35, 0.5), (1.6, 1.0), (2.0, 1.0), (3.2, 1.0), (4.1, 0.5), (5.0, 0.0), (5.01, None)],
)
def test_a_ramp(value: float, worth: float | None) -> None:
    assert ramp(value, TLDR.length) == (worth if worth is None else pytest.approx(worth))


@pytest.mark.parametrize(
    ("first", "second", "parts"),
    [
        ("aa bb", SHORT, (0.0, 0.0, 0.0, 0.0)),  # two words are too few
        (SHORT, "x " * 257, (0.0, 0.0, 0.0, 0.0)),
        (SHORT, SHORT, (0.5, 0.0, 0.0, 0.0)),  # as long as the other: the levels end
        # 46 / 23 characters is 2; 16 of 8 distinct words is 2; no transition; nothing shared
        (SHORT, "ia ib ic id ie ii ig ih iw ij ik il im iq io".replace(" iw", " iww") + " ip", (0.5, 1.0, 0.5, 0.0)),
        # the same with one shared word: 1 / 23 of the words, above 0.03
        (SHORT, "aa ib ic id ie ii ig ih iw ij ik il im iq io".replace(" iw", " iww") + " ip", (0.5, 1.0, 0.5, 0.6)),
        # 2 of 23 characters more for "so": length 44 / 23; 8 distinct words more are 10 / 8, below 1.3
        (SHORT, "aa ab aa ab aa ab aa ab aa ab aa ab aa ab aa", (0.5, 1.0, 0.0, 0.0)),
    ],
)
def test_the_levels_by_hand(first: str, second: str, parts: tuple[float, ...]) -> None:
    assert tuple(graded(first, second, TLDR).values()) == pytest.approx(parts)


def test_style_by_hand() -> None:
    """Three kinds of transitions are .4 + 2 * .05 = .5, of which .4; Jaccard 1 / 4 of content words is above .03."""
    second = "However, apples first fell; therefore pears."
    # content words: of the first {apples, fell}; of the second {however, apples, first, fell, therefore, pears}
    assert jaccard("Apples fell.", second) == pytest.approx(2 / 6)
    assert text.style("Apples fell.", second, TLDR) == pytest.approx(0.4 * 0.5 + 0.6)
    assert text.style("However, apples first fell.", "So it was.", TLDR) == 0.0  # nothing shared, none in the second
    assert text.style("However, plums.", "So it was.", ARXIV) == pytest.approx(0.4 * 0.4)  # looked for in both
    half = text.style("a1 a2 a3 a4 a5 a6 a7 a8 a9 b1", "a1 c2 c3 c4 c5 c6 c7 c8 c9 d1", ARXIV)
    assert half == pytest.approx(0.6 * (1 / 19) / 0.23)


def test_transitions_are_words_and_not_parts_of_words() -> None:
    assert text.style("", "whatever thefirsts butter yeti", TLDR) == 0.0


@pytest.mark.parametrize(
    ("ratio", "worth"),
    [
        (0.79, None),
        (0.8, 0.0),
        (1.05, 0.5),  # (1.05 - 0.8) / (1.3 - 0.8)
        (1.2, 0.8),
        (1.3, 1.0),
        (1.5, 1.0),
        (1.6, 1.0),
        (1.7, 0.75),  # 1 - (1.7 - 1.6) / (2.0 - 1.6)
        (1.9, 0.25),
        (2.0, 0.0),
        (2.01, None),
    ],
)
def test_the_ramp_of_arxiv_lengths(ratio: float, worth: float | None) -> None:
    """Full from 1.3 to 1.6, nothing left at 0.8 and 2.0, as in the authors' code (its docstring has other numbers)."""
    assert ramp(ratio, ARXIV.length) == (worth if worth is None else pytest.approx(worth))


def test_arxiv_asks_for_more_words_of_like_length() -> None:
    """128 words of two letters are 383 characters; 140 are 419, 1.094 times as many; 175 are 524, 1.368 times."""
    item = longer(128)
    assert graded(SHORT, item, ARXIV)["range"] == 0.0
    near, full = graded(item, longer(140), ARXIV), graded(item, longer(175), ARXIV)
    assert near["length"] == pytest.approx((419 / 383 - 0.8) / 0.5)
    assert (full["range"], full["length"]) == (0.5, 1.0)
    assert near["distinct"] == 0.5  # 140 / 128 = 1.09 distinct words, full from 0.7 to 1.3
    assert full["distinct"] == pytest.approx(0.5 * (1.7 - 175 / 128) / 0.4)


UNFAITHFUL = {
    "another source": OTHER,
    "nothing": "",
    "no words": "... !!",
    "the source copied": SOURCE,
    "one phrase again and again": "the rivers carry the sand " * 20,
    "a list of key words": "rivers sand sea dams beaches mouths samples forty years dammed shrink carry measure",
    "function words only": "and so it is that they were there with us and then some more of it was here for you too",
    "copied with a tail": SOURCE + " That is what we found.",
    **{
        f"copied, a filler after every {count} words": " ".join(
            word + (", however," if position % count == count - 1 else "")
            for position, word in enumerate(SOURCE.split())
        )
        for count in (2, 4, 7)
    },
}


@pytest.mark.parametrize("case", UNFAITHFUL)
def test_what_the_source_does_not_bear_out(case: str) -> None:
    assert faithful(SOURCE, HONEST) == 1.0
    assert faithful(SOURCE, UNFAITHFUL[case]) < 0.5


def test_faithfulness_by_hand() -> None:
    """Half of the four content words are the source's (measures and measured are one word): .5 / .6."""
    assert faithful("It measured sand in the rivers.", "They measures the sand on a moon of Mars.") == pytest.approx(
        5 / 6
    )


def test_fillers_hide_no_copy_by_hand() -> None:
    """13 words in a row of those that carry meaning, by every other word: 1 - (13 - 8) / (18 - 8)."""
    words = [f"w{number}" for number in range(13)]
    assert uncopied(" ".join(words), " however ".join(words)) == pytest.approx(0.5)
    assert uncopied(" ".join(words[:8]), " however ".join(words[:8])) == 1.0


def test_longest_run_by_hand() -> None:
    assert longest_run("a b c d e".split(), "x b c d y".split()) == 3
    assert longest_run([], ["a"]) == longest_run(["a"], []) == 0
    assert longest_run("abcdefgh", "abcdefgh", 5) == 5  # more is not counted


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_longest_run_is_that_of_the_table(first: list[str], second: list[str]) -> None:
    best, initial = 0, [0] * (len(first) + 1)
    for word in second:
        row = [0, *(initial[position] + 1 if word == second else 0 for position, second in enumerate(first))]
        best, initial = max(best, *row), row
    assert longest_run(first, second) == min(best, 24)


def test_long_texts_take_no_longer_than_their_length() -> None:
    """Thirty thousand words of each; a table of them would have nine hundred million cells."""
    words = [str(number) for number in range(30_000)]
    assert longest_run(words, words[15_000:] + words[:15_000]) == 24
    assert longest_run(words, words[::-1]) == 1


def test_people_are_more_faithful_to_their_own_source_than_to_another() -> None:
    rows("scitldr/test.jsonl")
    articles = [item for item in load("scitldr", "test", str(FOLDER))[:60] if isinstance(item, Article)]
    own_fmean = statistics.fmean(faithful(article.text, article.references[0]) for article in articles)
    rest = [faithful(sample.text, two.references[0]) for sample, two in itertools.pairwise(articles)]
    assert own_fmean > 0.7
    assert statistics.fmean(rest) < 0.35


@pytest.mark.parametrize(
    ("reference", "answer", "value"),
    [
        ("police killed the gunman", "police kill the gunman", 2 * 3 / 8),  # the example of Lin 2004, F with beta 1
        ("police killed the gunman", "the gunman kill police", 2 * 2 / 8),
        ("a b c", "a b c", 1.0),
        ("a b c", "A, b! C?", 1.0),
        ("a b c", "d e f", 0.0),
        ("a b c", "", 0.0),
        ("", "", 0.0),
        ("a b c d e f", "b d f", 2 * 3 / 9),
        ("a b", "a a a a b b", 2 * 2 / 8),
    ],
)
def test_rouge_l_by_hand(reference: str, answer: str, value: float) -> None:
    assert rouge_l(reference, answer) == pytest.approx(value)


@pytest.mark.parametrize(
    ("words", "worth"),
    [
        ("", 0.0),
        ("the ship sank", 1.0),
        ("the ship the ship the ship the ship", 0.0),  # 2 of 8 are distinct: .25
        ("the ship sank the ship sank the ship", 3 / 8 / 0.25 - 1.0),  # 3 of 8: half way from .25 to .5
        ("the of to a and in we that ship", 1.0 - (8 / 9 - 0.7) / 0.2),
        ("the of to a and in we that", 0.0),
        (" ".join(f"w{number}" for number in range(100)) + " the" * 100, 0.0),  # the second hundred
        (" ".join(f"w{number}" for number in range(198)) + " the and", 1.0),  # of the last hundred, two
    ],
)
def test_prose_by_hand(words: str, worth: float) -> None:
    assert prose(words) == pytest.approx(worth)


def plain(first: list[str], second: list[str]) -> int:
    """The table of the textbook."""
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, item in enumerate(first, 1):
        for j, other_item in enumerate(second, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if item == other_item else max(table[i - 1][j], table[i][j - 1])
    return table[-1][-1]


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.lists(st.sampled_from("abcd"), max_size=40))
def test_rows_of_bits_equal_the_table(first: list[str], second: list[str]) -> None:
    assert common_subsequence(first, second) == plain(first, second)
