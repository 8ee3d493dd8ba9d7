"""A small library: people, companies and towns with known facts, in passages, and questions over several of them.

Every fact is in one passage, and every passage is about one thing; others have similar names. A question follows `hops`
facts from a person on, so that the passages that it needs are known.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

FIRST = ("ada", "bruno", "clara", "dario", "edda", "fabio", "gerda", "hugo", "irma", "jonas")
LAST = ("kern", "lund", "marek", "nolan", "orsini", "pavel", "quist", "rossi", "stahl", "tamm")
FIRMS = ("alpha", "borea", "cetus", "delta", "ember", "fjord", "grano", "helix", "iris", "juno")
TRADES = ("mills", "works", "press", "foods", "motors")
TOWNS = ("arlen", "brova", "caldis", "drenn", "elmar", "farow", "gilda", "harth", "istra", "jorvik")
ENDS = ("bay", "hill", "ford", "wick")
RIVERS = ("amber", "birch", "coral", "dusk", "elder", "flint", "grove", "heron", "inlet", "jade")
# A relation of a question from one thing to the next: its words in a passage, and in a question.
RELATIONS = (
    ("{0} has worked for {1} for years.", "the company that {0} works for"),
    ("The head office of {0} is in {1}.", "the town of the head office of {0}"),
    ("Through {0} runs the river {1}.", "the river through {0}"),
)
EXTRAS = (
    "{0} is known far beyond the region.",
    "Little has been written about {0}.",
    "{0} was in the papers last spring.",
    "Visitors like to hear of {0}.",
)


@dataclass(frozen=True)
class Passage:
    title: str
    text: str


@dataclass(frozen=True)
class Library:
    """Passages in order of their numbers; the chain of facts of each person, and the numbers of the passages that hold
    it."""

    passages: tuple[Passage, ...]
    chains: tuple[tuple[str, ...], ...]
    passage_numbers: tuple[tuple[int, ...], ...]


def names(draw: random.Random, first: Sequence[str], last: Sequence[str], count: int) -> list[str]:
    """Return `count` different names of two words, many of which share one of them."""
    return [
        f"{first_word} {last_word}"
        for first_word, last_word in draw.sample([(a, b) for a in first for b in last], count)
    ]


def library(draw: random.Random, people: int) -> Library:
    """Return a library with `people` persons, as many companies, and half as many towns and rivers."""
    half = max(2, people // 2)
    # 50 and 40 are the numbers of different names that the word lists give.
    firms, towns = names(draw, FIRMS, TRADES, min(people, 50)), names(draw, TOWNS, ENDS, min(half, 40))
    rivers = names(draw, RIVERS, ("water", "brook", "stream", "beck"), len(towns))
    firm_of = {person: draw.choice(firms) for person in names(draw, FIRST, LAST, people)}
    town_of = {firm: draw.choice(towns) for firm in firms}
    river_of = dict(zip(towns, rivers, strict=True))
    # One dictionary a relation, in the order of RELATIONS.
    facts = [dict(firm_of), town_of, river_of]
    statements = [
        (name, RELATIONS[index][0].format(name, target))
        for index, it in enumerate(facts)
        for name, target in it.items()
    ]
    passages = [
        Passage(name, f"{draw.choice(EXTRAS).format(name)} {text}")
        for name, text in draw.sample(statements, len(statements))
    ]
    number_of = {passage.title: number for number, passage in enumerate(passages, 1)}
    chains = [(it, firm_of[it], town_of[firm_of[it]], river_of[town_of[firm_of[it]]]) for it in firm_of]
    numbers = [tuple(number_of[name] for name in chain[:3]) for chain in chains]
    return Library(tuple(passages), tuple(chains), tuple(numbers))


def question(chain: Sequence[str], hops: int) -> str:
    """Return the question that follows `hops` facts from a person on."""
    subject = chain[0]
    for _, words in RELATIONS[:hops]:
        subject = words.format(subject)
    return f"What is {subject}?"
