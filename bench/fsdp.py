"""Learner groups: ten steps of two and of four ranks against one process, in every way that a model is trained.

    python bench/fsdp.py [--write]

`fsdp2.vs_single.max_diff`: the largest difference of a weight after ten updates, over models trained whole and two
adapters, prefix trees and padding, two and four ranks. The model is the embedded one; sequences are of random tokens,
four siblings of each prompt, of unequal lengths. `--write` appends the figure to results/fsdp.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

import common
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.engines.torch.group import GroupLearner, LearnerPart
from cadre.settings import LearnerConfig, LoraConfig, Packing, PolicyConfig
from cadre.types import TrainingSequence

STEPS, TASKS, SIBLINGS = 10, 4, 4
RANKS = (2, 4)
KINDS = {"whole": {"p": None}, "two adapters": {"p": LoraConfig(rank=8), "q": LoraConfig(rank=4)}}
PACKINGS: tuple[Packing, ...] = ("prefix_tree", "padded")


def part(kind: str, packing: Packing) -> LearnerPart:
    """What is trained, in micro-batches that hold a part of a step."""
    policies = {name: PolicyConfig(model="seed", device="cpu", lora=lora) for name, lora in KINDS[kind].items()}
    learner = LearnerConfig(learning_rate=1e-4, pack=packing, tokens_per_microbatch=512)
    return LearnerPart("seed", policies, TrainingSettings(dict.fromkeys(policies, learner)), 0)


def step_data(policies: Sequence[str], step: int) -> list[TrainingSequence]:
    """The sequences of a step."""
    draw = random.Random(step)
    return [
        sibling(policy, prompt, k, draw)
        for policy in policies
        for prompt in ([draw.randrange(900) for _ in range(draw.randint(20, 120))] for _ in range(TASKS))
        for k in range(SIBLINGS)
    ]


def sibling(policy: str, prompt: Sequence[int], k: int, draw: random.Random) -> TrainingSequence:
    said = [draw.randrange(900) for _ in range(8 * (k + 1))]
    before, mask = (0.0,) * len(prompt), (False,) * len(prompt) + (True,) * len(said)
    advantages = before + (draw.choice((-1.0, 1.0)),) * len(said)
    return TrainingSequence(policy, "any", (*prompt, *said), mask, before + (-7.0,) * len(said), advantages, 0)


def updated(learner: TorchLearner | GroupLearner) -> None:
    for step in range(STEPS):
        asyncio.run(learner.update(step_data(learner.policies, step)))


def difference(kind: str, packing: Packing) -> dict[int, float]:
    """By number of ranks, how far the weights are from those that one process comes to."""
    what = part(kind, packing)
    alone = TorchLearner(TorchEngine(what.model, what.policies, what.seed), what.training)
    updated(alone)
    known = {name: dict(alone.engine.parameters(name)) for name in alone.policies}
    differences = {}
    for ranks in RANKS:
        group = GroupLearner(what, ranks)
        updated(group)
        with tempfile.TemporaryDirectory() as folder:
            group.save(Path(folder))
            other = TorchLearner(TorchEngine(what.model, what.policies, what.seed), what.training)
            other.load(Path(folder))
        pairs = [(known[name][key], value) for name in known for key, value in other.engine.parameters(name).items()]
        differences[ranks] = max(float((one - two).detach().abs().max()) for one, two in pairs)
        group.close()
        other.close()
    alone.close()
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="append to results/fsdp.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for kind in KINDS:
        for packing in PACKINGS:
            for ranks, value in difference(kind, packing).items():
                print(f"{kind}, {packing}, {ranks} ranks: {value:.3g}", flush=True)
                found.append(value)
    if options.write:
        common.record(
            "fsdp", "fsdp2.vs_single.max_diff", [max(found)], "absolute", "python bench/fsdp.py", len(found), [0]
        )


if __name__ == "__main__":
    main()
