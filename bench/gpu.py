"""A graphics card: what the torch engine does on it, in one command of under 20 minutes.

    python bench/gpu.py [PART ...] [--minutes 19] [--write] [--tiny]

parity    log-probabilities of the same sequences on the CPU and on the card (prefix trees by SDPA and by FlexAttention,
          padding; float32 and bfloat16), gradients, and what sampling says of its tokens against what the learner says
learning  updates of 64 sequences with each way of packing: tokens a second, MFU, memory, time over the bound
sampling  128 completions at once: tokens a second with kernels started one by one and with CUDA graphs, as a share of
          what reading weights and keys allows
training  Plan-Path with the embedded model, on the card
largest   the largest shape that one card holds with two adapters, and with two models, trained

Random weights in the shapes of Qwen3-0.6B and 1.7B, trained whole, and 8B, as two adapters. MFU counts 6 operations a
weight and token that is run, 4 where only adapters are trained, without attention and without what is computed again.
A part that would not fit into the minutes is left out, and said. `--write` appends `gpu.*` to results/gpu.jsonl.
`--tiny` runs all of it on the CPU on tiny shapes, and measures nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

import common
import gpu_models
import slices
from cadre.engines.torch import TorchEngine, TorchLearner
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.learn.prefix_tree import PrefixTree
from cadre.rollout.batching import gather
from cadre.types import Sampling, TrainingSequence
from gpu_models import LADDER, ROLES, SHAPES, TINY, Card, Shape, engine, learner, prompts, saved, siblings

console = Console(soft_wrap=True, highlight=False)
# Packing, and whether a tree's attention is FlexAttention's.
PACKINGS = {"tree": ("prefix_tree", False), "flex": ("prefix_tree", True), "padded": ("padded", False)}
# Shapes from so many weights on recompute their activations.
LARGE = 4_000_000_000


@dataclass(frozen=True)
class Sizes:
    """Of the material: prompts and their tokens, siblings of each, and tokens of a completion."""

    prompts: int
    prompt: int
    siblings: int
    said: int


@dataclass(frozen=True)
class Bench:
    """One call: the card, the shapes, when it has to be done, and whether figures are kept."""

    card: Card
    tiny: bool
    write: bool
    ends: float

    @property
    def shapes(self) -> list[Shape]:
        return TINY if self.tiny else SHAPES

    def sizes(self, prompts: int, prompt: int, siblings: int, said: int) -> Sizes:
        return Sizes(2, 24, 2, 6) if self.tiny else Sizes(prompts, prompt, siblings, said)

    def left(self) -> float:
        return self.ends - time.monotonic()

    def keep(self, name: str, values: Sequence[float], unit: str) -> None:
        console.print(f"{name}: {statistics.median(values):.4g} {unit} ({min(values):.4g} to {max(values):.4g})")
        if self.write:
            common.record("gpu", name, values, unit, "python bench/gpu.py --write", len(values), [0])


def logprobs(side: TorchLearner, data: Sequence[TrainingSequence]) -> torch.Tensor:
    """Of all tokens that are trained, one after the other."""
    said = side.engine.work(side._runner.compute_logprobs, data)
    pairs = [zip(values, datum.mask, strict=True) for values, datum in zip(said, data, strict=True)]
    return torch.tensor([value for pair in pairs for value, trained in pair if trained])


def pack(side: TorchLearner, name: str) -> None:
    """Pack what is run from here on this way."""
    packing, flex = PACKINGS[name]
    runner = side._runner
    runner._packing, runner._precision = packing, replace(runner._precision, flex=flex)


def gradients(side: TorchLearner, data: Sequence[TrainingSequence]) -> dict[str, torch.Tensor]:
    """What the optimisers would be given, by weight, on the CPU."""
    caught: dict[str, torch.Tensor] = {}
    for optimiser in (pair.weights for pair in side._optimisers.values()):

        def catch(loss: float, of=optimiser) -> float:
            caught.update({name: weight.grad.float().cpu() for name, weight in of._parameters.items()})
            of.clear()
            return 1.0

        optimiser.step = catch
    asyncio.run(side.update(data))
    return caught


def drawn(of: TorchEngine, asked: Sequence[tuple[int, ...]], sizes: Sizes) -> list[TrainingSequence]:
    """Completions as training sequences, each with the sampler's log-probabilities; prompts are dealt to policies."""
    policies, sampling = list(of.policies), Sampling(max_tokens=sizes.said)
    requests = [
        GenerationRequest(policies[n % len(policies)], prompt, sizes.siblings, sizes.said, sampling, n)
        for n, prompt in enumerate(asked)
    ]

    async def draw() -> list[list[gpu_models.Any]]:
        return await gather(*(of._batcher.submit(request) for request in requests))

    data = []
    for request, completions in zip(requests, asyncio.run(draw()), strict=True):
        before = (0.0,) * len(request.prompt_ids)
        for one in completions:
            mask = (False,) * len(before) + (True,) * len(one.token_ids)
            ids, said = request.prompt_ids + one.token_ids, before + one.logprobs
            data.append(TrainingSequence(request.policy, "any", ids, mask, said, said, 0))
    return data


def parity(bench: Bench) -> None:
    """The first shape on both devices."""
    shape, sizes = bench.shapes[0], bench.sizes(4, 96, 4, 32)
    asked = prompts(sizes.prompts, sizes.prompt, shape.words["vocab_size"])
    with saved(shape, bench.card) as folder:
        for dtype in ("float32", "bfloat16"):
            sides = [
                learner(engine(folder, device, dtype, whole=True))
                for device in (torch.device("cpu"), bench.card.device)
            ]
            data = siblings(asked, [ROLES[0]], sizes.siblings, sizes.said)
            pack(sides[0], "padded")
            reference = logprobs(sides[0], data)
            for name in PACKINGS:
                pack(sides[1], name)
                gaps = (logprobs(sides[1], data) - reference).abs()
                bench.keep(f"gpu.parity.{dtype}.{name}", [float(gaps.max())], "nats")
                bench.keep(f"gpu.parity.{dtype}.{name}.mean", [float(gaps.mean())], "nats")
            pack(sides[1], "tree")
            of_sampling(bench, sides[1], asked, sizes, dtype)
            one, other = (gradients(side, data) for side in sides)
            norm = max(float(part.abs().max()) for part in one.values())
            worst = max(float((one[name] - other[name]).abs().max()) for name in one) / norm
            bench.keep(f"gpu.parity.{dtype}.gradient", [worst], "of the largest")
            for side in sides:
                side.close()


def of_sampling(bench: Bench, side: TorchLearner, asked: Sequence[tuple[int, ...]], sizes: Sizes, dtype: str) -> None:
    """What sampling says of the tokens that it draws, against the learner."""
    for name, graphs in (("steps", False), ("graphs", True)):
        side.engine.graphs = graphs
        data = drawn(side.engine, asked, sizes)
        said = torch.tensor([v for one in data for v, m in zip(one.logprobs, one.mask, strict=True) if m])
        gaps = (logprobs(side, data) - said).abs()
        bench.keep(f"gpu.parity.{dtype}.sampling.{name}", [float(gaps.max())], "nats")


def seconds(bench: Bench, work: Callable[[], object], repeats: int = 2) -> list[float]:
    """Of the work, the first time of which does not count."""
    spent = []
    for _ in range(repeats + 1):
        bench.card.wait()
        began = time.perf_counter()
        work()
        bench.card.wait()
        spent.append(time.perf_counter() - began)
    return spent[1:]


def learning(bench: Bench) -> None:
    for shape in bench.shapes:
        sizes = bench.sizes(8, 512, 8, 128)
        if bench.left() < 60:
            console.print(f"learning: no time left for {shape.name}")
            return
        with saved(shape, bench.card) as folder:
            side = learner(
                engine(folder, bench.card.device, "bfloat16", shape.whole),
                gradient_checkpointing=shape.parameters > LARGE,
                tokens_per_microbatch=8_192,
            )
            of_learning(bench, shape, side, sizes)
            side.close()


def of_learning(bench: Bench, shape: Shape, side: TorchLearner, sizes: Sizes) -> None:
    """Updates with each packing. What is run with prefix trees are the distinct tokens, with padding all."""
    asked = prompts(sizes.prompts, sizes.prompt, shape.words["vocab_size"])
    data = siblings(asked, list(side.policies), sizes.siblings, sizes.said)
    every = sum(len(datum.token_ids) for datum in data)
    distinct = len(PrefixTree.of(sorted(data, key=lambda datum: (datum.policy, datum.token_ids))).token_ids)
    operations = (6 if shape.whole else 4) * shape.parameters
    spent: dict[str, list[float]] = {}
    for name in PACKINGS:
        if name == "flex" and bench.card.device.type == "cpu":
            continue  # it has no backward pass there
        pack(side, name)
        bench.card.forget_peak()
        spent[name] = seconds(bench, lambda: asyncio.run(side.update(data)))
        run = every if name == "padded" else distinct
        rates, label = [run / each for each in spent[name]], f"gpu.learning.{shape.name}.{name}"
        bench.keep(f"{label}.tokens_per_s", rates, "tokens/s")
        bench.keep(f"{label}.mfu", [rate * operations / bench.card.flops for rate in rates], "share")
        bench.keep(f"{label}.peak_gb", [bench.card.peak() / 1e9], "GB")
    for name in spent.keys() - {"padded"}:
        pairs = zip(spent[name], spent["padded"], strict=True)
        ratios = [ours / padded / (distinct / every) for ours, padded in pairs]
        bench.keep(f"gpu.learning.{shape.name}.{name}.vs_bound", ratios, "ratio")


def sampling(bench: Bench) -> None:
    for shape in bench.shapes:
        sizes = bench.sizes(16, 256, 8, 128)
        if bench.left() < 60:
            console.print(f"sampling: no time left for {shape.name}")
            return
        with saved(shape, bench.card) as folder:
            # Two adapters on a frozen base: its weights are held in bfloat16, as they are where speed counts.
            side = engine(folder, bench.card.device, "bfloat16", whole=False)
            of_decoding(bench, shape, side, sizes)
            side.close()


def of_decoding(bench: Bench, shape: Shape, side: TorchEngine, sizes: Sizes) -> None:
    """Tokens a second of decoding alone: what one token takes, prompts included, is taken off."""
    asked = prompts(sizes.prompts, sizes.prompt, shape.words["vocab_size"])
    count, steps = sizes.prompts * sizes.siblings, sizes.said - 1
    config = side.loaded.model.config
    slot = 4 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
    weights = sum(weight.numel() * weight.element_size() for weight in side.loaded.model.parameters())
    at_most = count * bench.card.bandwidth / (weights + count * slot * (sizes.prompt + sizes.said / 2))
    for name, graphs in (("steps", False), ("graphs", True)):
        side.graphs = graphs
        short = min(seconds(bench, lambda: drawn(side, asked, replace(sizes, said=1))))
        whole = seconds(bench, lambda: drawn(side, asked, sizes))
        rates = [count * steps / max(each - short, 1e-9) for each in whole]
        bench.keep(f"gpu.sampling.{shape.name}.{name}.tokens_per_s", rates, "tokens/s")
        bench.keep(f"gpu.sampling.{shape.name}.{name}.of_bandwidth", [rate / at_most for rate in rates], "share")


def training(bench: Bench) -> None:
    """The recipe as it is, in what is left of the minutes."""
    changes = ["train.steps=1", "train.tasks_per_step=1", "algorithm.k=2", "evaluate.tasks=1"] if bench.tiny else []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        try:
            slices.train("plan-path", changes, run, slices.Clock(began, max(bench.left() - 60, 1)))
        except slices.OutOfTimeError:
            console.print("training: not done in the minutes that were left")
            return
        last = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
    bench.keep("gpu.training.success", [last["success"]], "share")
    bench.keep("gpu.training.minutes", [(time.monotonic() - began) / 60], "minutes")


def largest(bench: Bench) -> None:
    """Up the ladder, until one does not fit: a step of sampling and of learning of two policies."""
    for kind, whole in (("adapters", False), ("models", True)):
        fitted = 0
        for shape in bench.shapes[:1] if bench.tiny else LADDER:
            # Without anything but masters, gradients and moments, or a base of two bytes a weight.
            least = shape.parameters * (32 if whole else 2)
            if least > bench.card.memory or bench.left() < 60 or not fits(bench, shape, whole):
                break
            fitted = shape.parameters
        bench.keep(f"gpu.largest.{kind}", [fitted / 1e9], "billion weights")


def fits(bench: Bench, shape: Shape, whole: bool) -> bool:
    sizes = bench.sizes(4, 256, 4, 64)
    sides: list[TorchLearner] = []
    try:
        with saved(shape, bench.card) as folder:
            for _ in range(2 if whole else 1):
                of = engine(folder, bench.card.device, "bfloat16", whole)
                sides.append(learner(of, gradient_checkpointing=True))
        for side in sides:
            side.engine.memory = min(side.engine.memory, 1 << 30)
            data = drawn(side.engine, prompts(sizes.prompts, sizes.prompt, shape.words["vocab_size"]), sizes)
            asyncio.run(side.update(data))
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        for side in sides:
            side.close()
        sides.clear()
        bench.card.forget_peak()
    return True


PARTS: dict[str, Callable[[Bench], None]] = {
    "parity": parity,
    "learning": learning,
    "sampling": sampling,
    "training": training,
    "largest": largest,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=19.0, help="of the whole call")
    parser.add_argument("--write", action="store_true", help="append to results/gpu.jsonl")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, tiny shapes, all code paths")
    options = parser.parse_args(arguments)
    ends = time.monotonic() + 60 * options.minutes
    bench = Bench(Card.here(options.tiny), options.tiny, options.write and not options.tiny, ends)
    for name in options.parts or PARTS:
        console.print(f"[bold]{name}[/bold], {bench.left() / 60:.1f} minutes left, {bench.card.name}")
        PARTS[name](bench)


if __name__ == "__main__":
    main()
