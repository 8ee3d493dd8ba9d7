"""The learner: prefix trees against plain padding, in time and memory, and how far apart their results are.

    python bench/learner.py [--write] [--cpu-time]

`learner.vs_bound.pP.kK`: the time of an update with prefix trees over that of a padded one, divided by the share of
tokens that are distinct, for K completions of each prompt of P tokens. `prefix_tree.max_diff`: the largest
difference of a gradient. `learner.memory_ratio`: the memory that an update of 4,096 tokens at vocabulary 152k takes at
its peak, over that of a padded one that holds all scores at once. Both sides run in turn. `--cpu-time` takes CPU time
for time, which other programs on the machine disturb less; `--write` appends the figures to results/learner.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import common
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings, logprobs
from cadre.engines.torch.memory import release_freed_memory
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.types import TrainingSequence
from side import WARMING
from tests.cadre.engines.tiny import byte_tokenizer

COMMAND = "python bench/learner.py --write"
REPEATS = 5
SEQUENCES = 64
LENGTHS = {200: 32, 1024: 64}  # completion by prompt, tokens
SIBLINGS = (4, 8)
# Three million parameters with a vocabulary of a thousand, as the embedded model has it.
SMALL = {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 672, "num_hidden_layers": 4}
WIDE = {"vocab_size": 152_000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def build(folder: Path, **shape: int) -> Path:
    """A random Llama of a shape, saved with a tokenizer."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": shape["hidden_size"] // 32, "num_key_value_heads": shape["hidden_size"] // 64}
    ids = {"pad_token_id": 256, "eos_token_id": 257, "bos_token_id": None, "max_position_embeddings": 2048}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads, **ids, tie_word_embeddings=True))
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def made(folder: Path, packing: str, tokens: int = 4_096) -> TorchLearner:
    """A model trained whole."""
    learner = LearnerConfig(learning_rate=1e-6, pack=packing, tokens_per_microbatch=tokens)
    policy = PolicyConfig(model=str(folder), device="cpu")
    return TorchLearner(TorchEngine(folder, {"p": policy}, 0), TrainingSettings({"p": learner}))


def pair(folder: Path) -> tuple[TorchLearner, TorchLearner]:
    """Both sides."""
    return made(folder, "prefix_tree"), made(folder, "padded")


def siblings(
    prompt: int, completion: int, count: int, vocabulary: int, total: int = SEQUENCES
) -> list[TrainingSequence]:
    """`total` sequences of random tokens, `count` after each prompt."""
    draw = random.Random(0)
    data = []
    for number in range(total):
        if number % count == 0:
            shared = tuple(draw.randrange(vocabulary) for _ in range(prompt))
        ids = shared + tuple(draw.randrange(vocabulary) for _ in range(completion))
        before = (0.0,) * prompt
        advantages = before + ((-1.0) ** number,) * completion
        mask = (False,) * prompt + (True,) * completion
        data.append(TrainingSequence("p", "any", ids, mask, before + (-7.0,) * completion, advantages, 0))
    return data


def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return clock() - started


def time_ratios(folder: Path, prompt: int, count: int, clock: Callable[[], float]) -> list[float]:
    """The prefix tree's time over the padded one's, over the share of distinct tokens, in pairs run in turn."""
    completion = LENGTHS[prompt]
    data = siblings(prompt, completion, count, SMALL["vocab_size"])
    bound = (prompt + count * completion) / (count * (prompt + completion))
    sides = pair(folder)
    pairs = [
        [seconds(lambda side=side: asyncio.run(side.update(data)), clock) for side in sides]
        for _ in range(WARMING + REPEATS)
    ]
    for side in sides:
        side.close()
    return [tree / padded / bound for tree, padded in pairs[WARMING:]]


def gradients(side: TorchLearner, data: Sequence[TrainingSequence]) -> dict[str, torch.Tensor]:
    """What the optimiser would be given."""
    (optimiser,) = (pair.weights for pair in side.rank._optimisers.values())
    caught: dict[str, torch.Tensor] = {}

    def catch(loss: float, norm: float) -> float:
        caught.update({name: weight.grad.clone() for name, weight in optimiser._parameters.items()})
        optimiser.clear()
        return 1.0

    optimiser.step = catch
    asyncio.run(side.update(data))
    return caught


def largest_difference(folder: Path) -> float:
    """Between the gradients of the two, over all shapes."""
    found = []
    for prompt, completion in LENGTHS.items():
        data = siblings(prompt, completion, 8, SMALL["vocab_size"], total=16)
        sides = pair(folder)
        one, other = (gradients(side, data) for side in sides)
        found += [float((one[name] - other[name]).abs().max()) for name in one]
        for side in sides:
            side.close()
    return max(found)


def resident(what: str) -> int:
    """Bytes of this process in memory: now (`VmRSS`), or at the most since the peak was forgotten (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def memory(folder: Path, packing: str) -> int:
    """Bytes that this process holds at the peak of an update beyond those before it."""
    data = siblings(64, 448, 8, 1024, total=8)
    side = made(folder, packing, tokens=4_096)
    if packing == "padded":
        logprobs.CHUNK = logprobs.KEPT = sys.maxsize
    # Loading a model may take more than an update: what it left free goes back, and the peak so far is forgotten.
    release_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    asyncio.run(side.update(data))
    after = resident("VmHWM")
    side.close()
    return after - before


def memory_ratio(folder: Path) -> float:
    """Each side in a process of its own."""
    command = [sys.executable, __file__, "--memory", str(folder), "--side"]
    sides = [subprocess.run([*command, side], check=True, capture_output=True) for side in ("prefix_tree", "padded")]
    tree, padded = (int(side.stdout) for side in sides)
    print(f"memory: {tree / 1e9:.2f} against {padded / 1e9:.2f} GB")
    return tree / padded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--only", choices=("time", "memory", "difference"))
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(memory(options.memory, options.side))
        return
    clock = time.process_time if options.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as root:
        small, wide = build(Path(root) / "small", **SMALL), Path(root) / "wide"
        figures: dict[str, tuple[list[float], str]] = {}
        if options.only in (None, "time"):
            for prompt in LENGTHS:
                for count in SIBLINGS:
                    values = time_ratios(small, prompt, count, clock)
                    figures[f"learner.vs_bound.p{prompt}.k{count}"] = (values, "ratio")
                    print(prompt, count, [f"{value:.3f}" for value in values], flush=True)
        if options.only in (None, "difference"):
            figures["prefix_tree.max_diff"] = ([largest_difference(small)], "absolute")
        if options.only in (None, "memory"):
            figures["learner.memory_ratio"] = ([memory_ratio(build(wide, **WIDE))], "ratio")
    for name, (values, unit) in figures.items():
        print(f"{name} {statistics.median(values):.4g} {unit}")
        if options.write:
            common.record("learner", name, values, unit, COMMAND, len(values))


if __name__ == "__main__":
    main()
