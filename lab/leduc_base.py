"""A base that reads Leduc poker: `python -m lab.leduc_base OUT`, seven minutes of a core.

A model of the embedded one's shape that is taught the probabilities of legal moves, not sampled moves, in one game. As
there, they say nothing of what pays: they are softmax of sums of normal draws, one for every bracketed field of what a
player sees and one for the private card together with the public one, with the pot and with each round's moves. So the
cards, and how they go together, have to be read. At the end the same sums are made faint.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from cadre import random_keys
from cadre.types import Choice
from cadre_tasks.models.make_games import descend, encoded, make_model, make_tokenizer, met
from cadre_tasks.models.make_seed import padded

GAME = "leduc_poker"
# Of random play, which meets nearly all decisions.
PLAYS = 4000
BATCH = 48
# Together with the private card, and how much more than a field alone these say.
TOGETHER = {"Public": 2.0, "Round1": 1.0, "Round2": 1.0, "Pot": 1.0}
# Deviation of the draws, steps and peak of the rate, one after the other.
PHASES = ((0.4, 1300, 3e-3), (0.4, 900, 3e-3), (0.08, 150, 1e-3))


@dataclass(frozen=True)
class Item:
    """A decision as token ids: the prompt, its answers, and how probable each is to be."""

    prompt: list[int]
    answers: list[list[int]]
    target: list[float]


def target(choice: Choice, spread: float) -> list[float]:
    """Probability of each answer: softmax of sums of draws of that deviation, by what the text says."""
    fields = re.findall(r"\[[^\]]*\]", choice.observation.messages[-1].content)
    named = {field.strip("[").split(":")[0]: field for field in fields}
    effects = {field: 1.0 for field in fields}
    effects |= {named["Private"] + named[field]: weight for field, weight in TOGETHER.items() if field in named}
    sums = [
        sum(
            random_keys.generator("fields", text, answer).gauss(0.0, weight * spread)
            for text, weight in effects.items()
        )
        for answer in choice.answers
    ]
    return torch.tensor(sums, dtype=torch.float64).softmax(0).tolist()


def excess(model: LlamaForCausalLM, items: list[Item]) -> torch.Tensor:
    """Mean KL divergence, in nats, of the model's answers from their targets."""
    rows, weights = [], []
    for item in items:
        start = len(item.prompt)
        rows += [(item.prompt + answer, [-100] * start + answer) for answer in item.answers]
        weights += item.target
    batch = padded(rows)
    first = min(len(item.prompt) for item in items) - 1
    logits = model(input_ids=batch["input_ids"]).logits[:, first:-1].transpose(1, 2)
    losses = cross_entropy(logits, batch["labels"][:, first + 1 :], reduction="none").sum(1)
    entropy = -sum(math.log(weight) * weight for weight in weights)
    return ((losses * torch.tensor(weights)).sum() - entropy) / len(items)


def teach(model: LlamaForCausalLM, items: list[Item], steps: int, peak: float, generator: random.Random) -> None:
    """Descend by the divergence on random decisions."""
    descend(model, (excess(model, generator.choices(items, k=BATCH)) for _ in count()), steps, peak)


def make(out: Path) -> None:
    """Write the base as a model's folder. Equal seeds give equal weights on one machine."""
    torch.manual_seed(0)
    choices = met(GAME, PLAYS)
    tokenizer = make_tokenizer({GAME: choices})
    model = make_model(tokenizer)
    ids = [encoded(tokenizer, choice) for choice in choices]
    for spread, steps, peak in PHASES:
        items = [Item(*pair, target(choice, spread)) for pair, choice in zip(ids, choices, strict=True)]
        teach(model, items, steps, peak, random_keys.generator("games"))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    make(parser.parse_args().out)


if __name__ == "__main__":
    main()
