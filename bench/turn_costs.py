"""What a turn costs: four turns of conversations against one, with the same new tokens a turn, sampling and learning.

    python bench/turn_costs.py [--width 512] [--layers 4] [--repeats 5] [--write]

Four conversations, 8 siblings of 32 tokens a turn after 200 new ones, the first sibling answered; a random Llama of
four layers, or with --width 128 one of the size of the embedded model. `turns.four_vs_one.sampling` and `.learning` are
the CPU time on one thread of four turns over that of one, in pairs run in turn, `turns.four_vs_one` the greater of the
two; linear cost is 4. `.without` is sampling that forgets earlier turns, `.operations` what the ratio would be if every
operation took as long: attention to what was read and said before has no counterpart in the first turn. `--write`
appends to results/turns.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import common
from cadre.engines.text.model import Completion
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.types import Sampling, TrainingSequence
from learner import build

CONVERSATIONS, SIBLINGS, NEW, SAID = 4, 8, 200, 32
VOCABULARY = 1024

Turn = tuple[tuple[int, ...], list[Completion]]


def made(folder: Path, width: int, layers: int = 4) -> TorchLearner:
    shape = {"hidden_size": width, "intermediate_size": 21 * width // 8, "num_hidden_layers": layers}
    build(folder, vocab_size=VOCABULARY, **shape)
    engine = TorchEngine(folder, {"p": PolicyConfig(model=str(folder), device="cpu")}, 0)
    # Nothing ends before its time, so that every turn has as many tokens.
    engine.loaded = replace(engine.loaded, stops=(-1,))
    return TorchLearner(engine, TrainingSettings({"p": LearnerConfig(learning_rate=1e-9)}))


async def conversation(engine: TorchEngine, number: int, turns: int) -> list[Turn]:
    """The prompts of a conversation, each with its completions."""
    draw, prompt, had = random.Random(number), (), []
    for turn in range(turns):
        prompt = (*prompt, *(draw.randrange(VOCABULARY) for _ in range(NEW)))
        sampling = Sampling(max_tokens=SAID)
        asked = GenerationRequest("p", prompt, SIBLINGS, SAID, sampling, 97 * number + turn)
        had.append((prompt, await engine._batcher.submit(asked)))
        prompt += had[-1][1][0].token_ids
    return had


def sampled(learner: TorchLearner, turns: int) -> list[Turn]:
    every = asyncio.run(gather(*(conversation(learner.engine, n, turns) for n in range(CONVERSATIONS))))
    return [turn for had in every for turn in had]


def data(had: list[Turn]) -> list[TrainingSequence]:
    return [datum(prompt, one, k) for prompt, completions in had for k, one in enumerate(completions)]


def datum(prompt: tuple[int, ...], completion: Completion, k: int) -> TrainingSequence:
    before, mask = (0.0,) * len(prompt), (False,) * len(prompt) + (True,) * SAID
    advantages = before + ((-1.0) ** k,) * SAID
    return TrainingSequence(
        "p", "any", prompt + completion.token_ids, mask, before + completion.logprobs, advantages, 0
    )


def costs(learner: TorchLearner, turns: int) -> tuple[float, float]:
    """CPU seconds of sampling and of learning."""
    began = time.process_time()
    had = sampled(learner, turns)
    between = time.process_time()
    asyncio.run(learner.update(data(had)))
    return between - began, time.process_time() - between


def forgetful(learner: TorchLearner) -> float:
    """Sampling's ratio where nothing is known of earlier turns."""
    limit, learner.engine.prefix_cache.limit = learner.engine.prefix_cache.limit, 0
    one, four = (costs(learner, turns)[0] for turns in (1, 4))
    learner.engine.prefix_cache.limit = limit
    return four / one


def operations(width: int, turns: int) -> float:
    """Of one layer for one conversation: products with weights, and attention to what stands before."""
    # A sibling's last token is drawn and not run, and answers begin where the prompt ends.
    said = SIBLINGS * (SAID - 1)
    weights = (3 + 3 * 21 / 8) * width**2
    pasts = [turn * (NEW + SAID) for turn in range(turns)]
    pairs = sum(NEW * (past + NEW / 2) + said * (past + NEW + SAID / 2) for past in pasts)
    return 2 * turns * (NEW + said) * weights + 4 * width * pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512, help="hidden size of the model")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="append to results/turns.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        learner = made(Path(folder), options.width, options.layers)
        # The most memory that anything takes here is taken once before the clock runs.
        costs(learner, 4)
        pairs = [(costs(learner, 1), costs(learner, 4)) for _ in range(options.repeats)]
        without = [forgetful(learner) for _ in range(min(3, options.repeats))]
        learner.close()
    sampling, learning = ([four[half] / one[half] for one, four in pairs] for half in (0, 1))
    greater = max(sampling, learning, key=statistics.median)
    counted = [operations(options.width, 4) / operations(options.width, 1)]
    figures = {"": greater, ".sampling": sampling, ".learning": learning, ".without": without, ".operations": counted}
    keep(options, figures)
    print("seconds, one turn:", *(f"{statistics.median(one[half] for one, _ in pairs):.3g}" for half in (0, 1)))


def keep(options: argparse.Namespace, figures: dict[str, list[float]]) -> None:
    suffix = "" if options.width == 512 else f".width{options.width}"
    command = f"python bench/turn_costs.py --width {options.width} --layers {options.layers} --write"
    for half, values in figures.items():
        name = f"turns.four_vs_one{half}{suffix}"
        print(f"{name}: {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})", flush=True)
        if options.write:
            common.record("turns", name, values, "ratio", command, len(values), [0])


if __name__ == "__main__":
    main()
