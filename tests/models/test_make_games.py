"""What the embedded model of small games reads: legal moves, as likely as was drawn for each decision, then alike."""

from collections import Counter
from collections.abc import Callable

import pytest

from cadre import random_keys

pytest.importorskip("pyspiel", reason="the extra openspiel is not installed")
from cadre.envs.adapters.openspiel import OpenSpiel
from cadre.models.make_games import GAMES, alike, batches, make_tokenizer, tendencies
from cadre.types import Choice


def test_tendencies_belong_to_the_decision() -> None:
    first, second = OpenSpiel.choices("kuhn_poker")[:2]
    assert tendencies(first) == tendencies(first) != tendencies(second)
    assert len(tendencies(first)) == len(first.answers)


def test_at_last_every_move_is_as_likely() -> None:
    (choice, *_) = OpenSpiel.choices("tiny_hanabi")
    assert alike(choice) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("likely", [tendencies, alike])
def test_moves_are_drawn_by_them(likely: Callable[[Choice], list[float]]) -> None:
    choice = OpenSpiel.choices("tiny_hanabi")[0]
    choices = {game: [choice] for game in GAMES}
    tokenizer = make_tokenizer(choices)
    batch = next(batches(choices, tokenizer, 4000, random_keys.generator("test"), likely))
    ends = [[int(token) for token in row if token >= 0] for row in batch["labels"]]
    said = Counter(tokenizer.decode(labels, skip_special_tokens=True) for labels in ends)
    whole = sum(likely(choice))
    assert set(said) <= set(choice.answers)
    for answer, weight in zip(choice.answers, likely(choice), strict=True):
        assert said[answer] / 4000 == pytest.approx(weight / whole, abs=0.04)
