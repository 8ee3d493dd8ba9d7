"""What the embedded model of small games reads: legal moves, as likely as was drawn for each decision."""

from collections import Counter

import pytest

from cadre import random_keys

pytest.importorskip("pyspiel", reason="the extra openspiel is not installed")
from cadre.envs.adapters.openspiel import OpenSpiel
from cadre.models.make_games import GAMES, batches, make_tokenizer, tendencies


def test_tendencies_belong_to_the_decision() -> None:
    first, second = OpenSpiel.choices("kuhn_poker")[:2]
    assert tendencies(first) == tendencies(first) != tendencies(second)
    assert len(tendencies(first)) == len(first.answers)


def test_moves_are_drawn_by_them() -> None:
    choice = OpenSpiel.choices("tiny_hanabi")[0]
    choices = {game: [choice] for game in GAMES}
    tokenizer = make_tokenizer(choices)
    batch = next(batches(choices, tokenizer, 4000, random_keys.generator("test")))
    ends = [[int(token) for token in row if token >= 0] for row in batch["labels"]]
    said = Counter(tokenizer.decode(labels, skip_special_tokens=True) for labels in ends)
    whole = sum(tendencies(choice))
    assert set(said) <= set(choice.answers)
    for answer, likely in zip(choice.answers, tendencies(choice), strict=True):
        assert said[answer] / 4000 == pytest.approx(likely / whole, abs=0.04)
