"""Training texts of the embedded model of small games: legal moves, as likely as was drawn for each decision."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from cadre import random_keys

pytest.importorskip("pyspiel", reason="the extra openspiel is not installed")
from cadre.types import Choice
from cadre_tasks.integrations.openspiel import OpenSpiel
from cadre_tasks.models.make_games import GAMES, batches, make_tokenizer, tendencies


def test_tendencies_belong_to_the_decision() -> None:
    first, second = OpenSpiel.choices("kuhn_poker")[:2]
    assert tendencies(first) == tendencies(first) != tendencies(second)
    assert len(tendencies(first)) == len(first.answers)


def test_the_same_ones_are_made_small() -> None:
    choice = OpenSpiel.choices("tiny_hanabi")[0]
    large, small = tendencies(choice), tendencies(choice, spread=0.15)
    assert small == pytest.approx([likely**0.1 for likely in large])


@pytest.mark.parametrize("likely", [tendencies, pytest.param(partial(tendencies, spread=0.3), marks=pytest.mark.slow)])
def test_moves_are_drawn_by_them(likely: Callable[[Choice], list[float]]) -> None:
    choice = OpenSpiel.choices("tiny_hanabi")[0]
    choices = {game: [choice] for game in GAMES}
    tokenizer = make_tokenizer(choices)
    batch = next(batches(choices, tokenizer, 4000, random_keys.generator("test"), likely))
    ends = [[int(token) for token in row if token >= 0] for row in batch["labels"]]
    counter = Counter(tokenizer.decode(labels, skip_special_tokens=True) for labels in ends)
    full = sum(likely(choice))
    assert set(counter) <= set(choice.answers)
    for answer, weight in zip(choice.answers, likely(choice), strict=True):
        assert counter[answer] / 4000 == pytest.approx(weight / full, abs=0.04)
