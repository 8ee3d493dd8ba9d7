"""The base that reads Leduc poker: what it is taught, by hand, and that it learns it."""

import math
import random

import pytest
import torch

pytest.importorskip("pyspiel", reason="the extra openspiel is not installed")

from cadre_tasks.models.make_games import encoded, make_model, make_tokenizer, met
from lab import leduc_base

CHOICES = met("leduc_poker", 40)
# A decision of the second round.
LATER = next(choice for choice in CHOICES if "[Public: " in choice.observation.messages[-1].content)


def test_no_spread_is_uniform_play() -> None:
    for choice in CHOICES:
        assert leduc_base.target(choice, 0.0) == pytest.approx([1 / len(choice.answers)] * len(choice.answers))


def test_targets_are_the_softmax_of_sums_of_what_the_text_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws equal their deviation: eight fields, the pot and two rounds with the card 1 each, both cards 2."""
    text = LATER.observation.messages[-1].content
    assert text.count("[") == 9

    class Drawn:
        def __init__(self, answer: str) -> None:
            self.sign = 1.0 if answer == LATER.answers[0] else 0.0

        def gauss(self, mean: float, deviation: float) -> float:
            return mean + self.sign * deviation

    monkeypatch.setattr(leduc_base.random_keys, "generator", lambda _name, _text, answer: Drawn(answer))
    (first, *rest) = leduc_base.target(LATER, 0.1)
    odds = math.exp(0.1 * (9 + 2 + 1 + 1 + 1))
    assert first == pytest.approx(odds / (odds + len(rest)))
    assert rest == pytest.approx([1 / (odds + len(rest))] * len(rest))


def test_divergence_of_a_model_that_knows_nothing() -> None:
    """A uniform model of 512 tokens: two tokens an answer cost 2 ln 512, less the targets' entropy."""
    tokenizer = make_tokenizer({leduc_base.GAME: CHOICES})
    model = make_model(tokenizer)
    torch.nn.init.zeros_(model.get_output_embeddings().weight)
    prompt, answers = encoded(tokenizer, LATER)
    assert [len(answer) for answer in answers[:2]] == [2, 2]
    item = leduc_base.Item(prompt, answers[:2], [0.25, 0.75])
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert leduc_base.excess(model, [item]).item() == pytest.approx(2 * math.log(512) - entropy, rel=1e-5)


@pytest.mark.slow
def test_it_learns_what_it_is_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leduc_base, "BATCH", 4)
    torch.manual_seed(0)
    tokenizer = make_tokenizer({leduc_base.GAME: CHOICES})
    model = make_model(tokenizer)
    few = [leduc_base.Item(*encoded(tokenizer, choice), leduc_base.target(choice, 0.4)) for choice in CHOICES[:4]]
    leduc_base.teach(model, few, 150, 3e-3, random.Random(0))
    assert 0 <= leduc_base.excess(model, few).item() < 0.2
