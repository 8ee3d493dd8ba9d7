"""Measure Cadre on one GPU, and against TRL on the same work. A call takes at most 14 minutes, a section at most 5.

    python bench/gpu.py [PART ...] [--only SECTION ...] [--minutes 14] [--out build/gpu] [--write] [--plan] [--tiny]
    python bench/gpu.py --merge FILE

step        `cadre train` on 32 prompts of 512 words with 8 answers of 256 tokens, Qwen3-0.6B and 1.7B whole, 8B with an
            adapter, sampled by vLLM on the same GPU (0.6B by the torch engine, too): seconds by phase, tokens per
            second, MFU of learning, memory
tree        two roles that speak three times each, an adapter per role, with vLLM, with and without the barrier
rivals      TRL's GRPOTrainer with vLLM on the work of each `step`, on as many samples as `tree` has in one turn, and
            with `generate`
parity      log-probabilities and gradients of the same sequences on the CPU and on the GPU, in every form of packing,
            and the sampler's log-probabilities against the learner's; float32 and bfloat16
shapes      an update of that size with the default settings: Qwen3-0.6B and 1.7B whole, 8B with two adapters
sampling    128 completions at once by the torch engine: tokens per second, and the share of the memory bandwidth
learning    updates of 64 sequences of 0.6B with every form of packing
colocation  that update of 0.6B alone, on other prefix trees, colocated with vLLM, and while the GPU is watched: its
            seconds, those of its kernels, and what else it does
blocks      forward and backward pass of FlexAttention on a prefix tree, with several block sizes of its kernels
largest     the largest shape that one GPU holds with two adapters, and with two models, trained
training    Plan-Path with the embedded model

The models have random weights. MFU is the arithmetic of the learning phase over what the GPU could compute in its time:
6 operations per weight and token, 4 if only adapters are trained, for every distinct token of the prefix tree (all
tokens for the padded form); neither attention nor what is computed twice counts. Every step after the second counts in
a median.

A part consists of sections. Without parts and `--only` they come in the order of ORDER: first what results/gpu.jsonl
lacks or has of older code alone. One call of 14 minutes then measures, by the seconds of SECTION_SECONDS,

    parity.bfloat16 parity.float32 tree.vllm.streamed tree.vllm.barrier step.qwen3-0.6b.vllm shapes.qwen3-1.7b
    parity.float32.sampling

and one of 9.8 minutes, for a machine that ends commands after 590 s, the first four and shapes.qwen3-1.7b. The second
call begins with TRL's comparisons. `--plan` prints what a call would measure, without a GPU. `--only` runs the sections
that match a pattern, in the order of the patterns.

Lines go to OUT/gpu.jsonl as they are measured, finished sections to OUT/done.jsonl. A section that is done there at
this commit on this machine is skipped, so the same command continues. One that fails is reported, keeps the lines and
steps that it measured before, and the others go on; one that the time left is too short for is left out. A section of
`rivals` measures Cadre's step first unless that was done since the machine was booted, and has the ratio of both.

`--write` also appends the lines of this call to results/gpu.jsonl; `--merge` does so with a file that was written
elsewhere, and renews the table of docs/one_gpu.md. `--tiny` runs all of it on the CPU on tiny shapes, and measures
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import common
import gpu_runs
import gpu_tables
import gpu_update
import slices
from cadre.engines.torch import TorchEngine, TorchLearner
from cadre.engines.torch.kv_cache import record_graph, run_eagerly
from cadre.engines.vllm.engine import Options
from cadre.engines.vllm.sampler import VllmSampler
from cadre.engines.vllm.weight_sync import ColocatedLearner
from cadre.learn import prefix_tree, tree_attention
from cadre.learn.prefix_tree import PrefixTree
from cadre.learn.token_notes import TokenNotes
from cadre.settings import LearnerConfig, PolicyConfig, VllmConfig
from cadre.training.metrics import Utilisation, UtilisationReader
from cadre.types import TrainingSequence
from gpu_models import (
    LADDER,
    LORA,
    ROLES,
    SHAPES,
    STEP_SIZES,
    TEMPLATE_TOKENS,
    TINY,
    TINY_SIZES,
    Card,
    Shape,
    Sizes,
    make_engine,
    make_learner,
    make_sequences,
    sample_sequences,
    saved,
    scratch_folder,
)
from gpu_runs import TRL_VLLM_MEMORY, Steps

console = Console(soft_wrap=True, highlight=False)
COMMAND = "python bench/gpu.py"
# The learner's settings by the name of the form.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "tree": {"pack": "prefix_tree", "flex_attention": False, "compile": False},
    "flex": {"pack": "prefix_tree", "flex_attention": True, "compile": False},
    "padded": {"pack": "padded"},
}


def backward_options(rows: int, columns: int, stages: int, warps: int) -> dict[str, int]:
    """Return kernel options of FlexAttention's backward pass: the blocks of its two loops mirror each other."""
    sizes = {"bwd_BLOCK_M1": rows, "bwd_BLOCK_N1": columns, "bwd_BLOCK_M2": columns, "bwd_BLOCK_N2": rows}
    return sizes | {"bwd_num_stages": stages, "bwd_num_warps": warps}


# Block sizes, stages and warps of FlexAttention's kernels. Those of `default` are torch's for the GPU; the one that is
# fastest becomes `tree_attention.KERNEL_OPTIONS`.
KERNEL_OPTIONS: Mapping[str, Mapping[str, int]] = {
    "default": {},
    "safe": {"ROWS_GUARANTEED_SAFE": True},  # every node sees itself
    "forward-128x128-3": {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 128, "fwd_num_stages": 3, "fwd_num_warps": 8},
    "forward-128x64-3": {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_stages": 3, "fwd_num_warps": 4},
    "64x64-2": backward_options(64, 64, stages=2, warps=4),
    "64x64-3": backward_options(64, 64, stages=3, warps=4),
    "64x128-2": backward_options(64, 128, stages=2, warps=8),
    "64x128-3": backward_options(64, 128, stages=3, warps=4),
    "32x128-3": backward_options(32, 128, stages=3, warps=4),
    "128x128-2": backward_options(128, 128, stages=2, warps=8),
}
# What a call without parts and `--only` measures, in this order: first what has not been measured at all or by older
# code alone.
ORDER = (
    "parity.bfloat16",
    "parity.float32",
    "tree.*.streamed",
    "tree.*.barrier",
    "step.qwen3-0.6b.vllm",
    "shapes.qwen3-1.7b",
    "parity.*",
    "rivals.qwen3-1.7b.vllm",
    "rivals.qwen3-0.6b.vllm",
    "shapes.*",
    "rivals.tree.vllm",
    "rivals.qwen3-8b.vllm",
    "step.*.vllm",
    "colocation",
    "step.*",
    "sampling.*",
    "learning.*",
    "blocks.*",
    "largest.*",
    "training",
    "*",
)
STEPS = 6
TRL_STEPS = {"qwen3-8b": 4}  # of which two are warm-up; others make STEPS
TREE_SIZES = Sizes(16, 256, 8, 192)
PARITY_SIZES = Sizes(4, 96, 4, 32)
# Metrics of a run on a GPU, and their units.
GPU_METRICS = {
    "gpu/learning_mfu": "share",
    "gpu/learning_tokens_per_s": "tokens/s",
    "gpu/learning_peak_gb": "GB",
    "gpu/sampling_bandwidth_fraction": "share",
    "gpu/sampling_tokens_per_s": "tokens/s",
    "gpu/sampling_peak_gb": "GB",
    "gpu/busy_fraction": "share",
}
# Counters of an update (gpu_update.py), and their units.
COUNTERS = {
    "processor_s": "s",
    "system_s": "s",
    "garbage_s": "s",
    "gpu_allocations": "calls",
    "host_allocations": "calls",
    "switches": "switches",
    "compilations": "graphs",
    "clock_mhz": "MHz",
}
# The seconds that a section takes on an H200, by patterns of which the first counts: with fewer left it is not begun,
# and the next one may be.
SECTION_SECONDS: Mapping[str, float] = {
    "step.qwen3-0.6b.*": 200.0,
    "rivals.qwen3-0.6b.vllm": 190.0,
    "shapes.qwen3-8b": 110.0,
    "shapes.*": 60.0,
    # By estimate: none of these has been measured to its end, parity not in these parts.
    "parity.*.sampling": 40.0,
    "parity.*": 60.0,
    "tree.*": 200.0,
    "step.qwen3-1.7b.*": 230.0,
    "rivals.qwen3-1.7b.*": 230.0,
    "step.qwen3-8b.*": 260.0,
    "rivals.qwen3-8b.*": 250.0,
    "rivals.*": 210.0,
    "colocation": 150.0,
}
LEAST_SECONDS = 45.0
MOST_SECONDS = 290.0
ENOUGH_SECONDS = 90.0


Work = Callable[["Bench"], None]


@dataclass
class Bench:
    """One call: the GPU, where lines go, and when it has to be done. `close` removes the models.

    With `planning` sections are named with their seconds and not measured; vLLM and TRL count as installed.
    """

    card: Card
    tiny: bool
    out: Path
    ends: float
    write: bool
    commit: str
    only: Sequence[str] = ("*",)  # patterns of the sections that are run now
    planning: bool = False
    section: str = ""
    failed: list[str] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    planned: set[str] = field(default_factory=set)
    said: set[str] = field(default_factory=set)
    step_s: dict[str, list[float]] = field(default_factory=dict)  # seconds of the steps that a section measured
    _models: dict[str, Path] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def shapes(self) -> list[Shape]:
        return TINY if self.tiny else SHAPES

    @property
    def on_gpu(self) -> bool:
        return self.card.device.type == "cuda"

    @property
    def dtype(self) -> str:
        """The precision of trainings: bfloat16 on a CPU is slow."""
        return "bfloat16" if self.on_gpu else "float32"

    def sizes(self, sizes: Sizes) -> Sizes:
        return TINY_SIZES if self.tiny else sizes

    def has(self, package: str) -> bool:
        return self.planning or importlib.util.find_spec(package) is not None

    def say_once(self, text: str) -> None:
        if text not in self.said:
            console.print(text)
            self.said.add(text)

    @property
    def sampler(self) -> str:
        """The engine that samples in trainings: vLLM where it is installed."""
        return "vllm" if self.has("vllm") else "torch"

    def left(self) -> float:
        return self.ends - time.monotonic()

    def needed(self, section: str) -> float:
        """The seconds that a section takes."""
        found = (seconds for pattern, seconds in SECTION_SECONDS.items() if fnmatch(section, pattern))
        return LEAST_SECONDS if self.tiny else next(found, LEAST_SECONDS)

    def limit(self) -> float:
        """The seconds that a process of this section may take."""
        return max(10.0, min(self.left(), MOST_SECONDS))

    def model(self, shape: Shape) -> Path:
        """Return the folder of a model of this shape, made once a call."""
        if shape.name not in self._models:
            self._models[shape.name] = self._stack.enter_context(saved(shape, self.card))
        return self._models[shape.name]

    def close(self) -> None:
        self._stack.close()

    def keep(self, name: str, values: Sequence[float], unit: str) -> None:
        """Write a line with the median of the values."""
        middle = statistics.median(values)
        console.print(f"  {name}: {middle:.4g} {unit} ({min(values):.4g} to {max(values):.4g})")
        line = common.measurement(name, values, unit, COMMAND, len(values), [0], self.commit)
        append(self.out / "gpu.jsonl", line | {"section": self.section} | ({"tiny": True} if self.tiny else {}))
        if self.write and not self.tiny:
            append(common.RESULTS / "gpu.jsonl", line)

    def find_done(self, section: str, here: bool = False) -> dict[str, Any] | None:
        """Return what was noted when the section was finished at this commit on this machine, or None if it was not.

        With `here` only what was finished since the machine was booted counts.
        """
        path, wanted = self.out / "done.jsonl", self._mark(section)
        if here:
            wanted["boot"] = self.card.boot
        lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        return next((line for line in lines if wanted.items() <= line.items()), None)

    def note_done(self, section: str) -> None:
        steps = {"step_s": self.step_s[section]} if section in self.step_s else {}
        append(self.out / "done.jsonl", self._mark(section) | {"boot": self.card.boot} | steps)

    def run(self, section: str, work: Work, first: tuple[str, Work] | None = None) -> None:
        """Do the work of a section unless it is done or there is no time left. A failure is printed and noted.

        What it was compared with has to be measured on the same machine without a boot between them: if `first`, a
        section and its work, was not, it is measured before. Neither is begun without the time for both.
        """
        if section in self.begun or not any(fnmatch(section, pattern) for pattern in self.only):
            return
        self.begun.add(section)
        if self.find_done(section):
            console.print(f"{section}: done before")
            return
        needed = self.needed(section)
        if first and (first[0] in self.failed or self._is_measured(first[0])):
            first = None
        needed += self.needed(first[0]) if first else 0.0
        if self.left() < needed:
            console.print(f"{section}: no time left, {self.left():.0f} s of {needed:.0f}")
            return
        if first:
            self.begun.add(first[0])
            self._measure(*first)
        self._measure(section, work)

    def _is_measured(self, section: str) -> bool:
        return section in self.planned or self.find_done(section, here=True) is not None

    def _measure(self, section: str, work: Work) -> None:
        if self.planning:
            console.print(f"{section}: {self.needed(section):.0f} s")
            self.ends -= self.needed(section)
            self.planned.add(section)
            return
        console.print(f"[bold]{section}[/bold], {self.left() / 60:.1f} minutes left")
        self.section, began = section, time.monotonic()
        self.card.reset_peak()
        try:
            work(self)
        except Exception:  # noqa: BLE001 - minutes on a GPU are dear: one section must not cost the others theirs
            console.print(f"{section}: FAILED\n{traceback.format_exc()}", markup=False)
            self.failed.append(section)
        else:
            self.note_done(section)
            console.print(f"  {section} took {time.monotonic() - began:.0f} s")
        self.card.reset_peak()

    def _mark(self, section: str) -> dict[str, Any]:
        mark = {"section": section, "commit": self.commit}
        return mark if self.planning else mark | {"machine": self.card.name}


def append(path: Path, line: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps(line) + "\n")


# ---- Trainings by the command line, and TRL's


def step(bench: Bench) -> None:
    if not bench.has("vllm"):
        bench.say_once("step: vLLM cannot be imported here; the torch engine alone is measured")
    first, *others = bench.shapes
    for shape in (first, *others):
        bench.run(*step_section(shape, bench.sampler))
    bench.run(*step_section(first, "torch"))


def step_section(shape: Shape, engine: str) -> tuple[str, Work]:
    """Return a section, and its work: steps of `cadre train` with this sampler."""
    return f"step.{shape.name}.{engine}", lambda bench: measure_step(bench, shape, engine)


def measure_step(bench: Bench, shape: Shape, engine: str) -> None:
    sizes = bench.sizes(STEP_SIZES)
    lora = None if shape.whole else LORA
    recipe = gpu_runs.words_recipe(bench.model(shape), sizes, shape.vocabulary, bench.dtype, STEPS + 1, lora)
    changes = gpu_runs.sampler_changes(engine, 2 * (sizes.words + sizes.tokens), bench.on_gpu)
    run, name = f"{shape.name}-{engine}", f"gpu.step.{shape.name}.{engine}"
    steps = train(bench, run, shape, recipe, changes)
    if not bench.on_gpu:
        # A run on a CPU computes none of them: the same arithmetic, so that all of this runs there, too.
        distinct = sizes.prompts * sizes.words + sizes.sampled
        learning = [shape.learning_flops(distinct) / each / bench.card.flops for each in steps["time/learn_s"]]
        bench.keep(f"{name}.learning.mfu", learning, "share")
    keep_run(bench, name, run, steps)
    if engine == "vllm" and shape is bench.shapes[0]:
        bench.keep(f"gpu.sampling.{shape.name}.tokens_per_s", sampling_rates(steps), "tokens/s")
        if "time/sync_s" in steps:
            bench.keep("gpu.sync_s", steps["time/sync_s"], "s")
    steps.check()


def train(bench: Bench, name: str, shape: Shape, recipe: gpu_runs.Recipe, changes: Sequence[str]) -> Steps:
    """Train from the start, and return the steps before the last, whose update is profiled; the output and the metrics
    stay in a folder of OUT."""
    folder = bench.out / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    bench.card.reset_peak()
    # The first and the last checkpoint: masters, and masters with moments, in float32.
    with scratch_folder(20 * shape.parameters) as scratch:
        return gpu_runs.train_cadre(recipe, changes, folder, scratch / "run", bench.limit(), profiled=STEPS)


def keep_run(bench: Bench, name: str, run: str, steps: Steps) -> None:
    """Write the seconds of a step and of its phases, the memory, and the counters of the updates.

    A step is what learning waited for samples, and learning with weight sync.
    """
    whole = [sum(pair) for pair in zip(steps["time/wait_s"], steps["time/learn_s"], strict=True)]
    bench.step_s[bench.section] = whole
    bench.keep(f"{name}.step_s", whole, "s")
    for phase in ("wait", "sample", "learn", "update", "sync", "sleep", "wake"):
        if f"time/{phase}_s" in steps:
            bench.keep(f"{name}.{phase}_s", steps[f"time/{phase}_s"], "s")
    for metric, unit in GPU_METRICS.items():
        if metric in steps:
            bench.keep(f"{name}.{metric.removeprefix('gpu/').replace('_', '.', 1)}", steps[metric], unit)
    if not bench.on_gpu:
        bench.keep(f"{name}.sampling.tokens_per_s", sampling_rates(steps), "tokens/s")
    keep_process(bench, name, steps)
    for counter, unit in COUNTERS.items():
        bench.keep(f"{name}.update.{counter}", steps[f"update/{counter}"], unit)
    for line in gpu_runs.read_lines(bench.out / "runs" / run / "updates.jsonl"):
        if "kernel_s" in line:
            bench.keep(f"{name}.update.kernel_s", [line["kernel_s"]], "s")


def keep_process(bench: Bench, name: str, steps: Steps) -> None:
    """Write the memory and the seconds of a whole process; of one that failed they would be too small."""
    if steps.failure:
        return
    if steps.peak:
        bench.keep(f"{name}.peak_gb", [steps.peak / 1e9], "GB")
    bench.keep(f"{name}.process_s", [steps.seconds], "s")


def sampling_rates(steps: Steps) -> list[float]:
    """Return the tokens per second of sampling in each step."""
    pairs = zip(steps["rollout/tokens"], steps["time/sample_s"], strict=True)
    return [tokens / each for tokens, each in pairs]


def rivals(bench: Bench) -> None:
    """TRL on the work of each shape's step, with vLLM; on the tree's samples in one turn; and with `generate`."""
    if not bench.has("trl"):
        bench.say_once("rivals: TRL cannot be imported here; nothing is compared with it")
        return
    first, *others = bench.shapes
    small = Rival("gpu.step.vs_trl", first.name, first, STEP_SIZES, not first.whole, step_section(first, bench.sampler))
    pairs = [(small, "vllm")]
    for shape in others:
        ours = step_section(shape, bench.sampler)
        pairs.append(
            (Rival(f"gpu.step.{shape.name}.vs_trl", shape.name, shape, STEP_SIZES, not shape.whole, ours), "vllm")
        )
    ours = tree_section(first, bench.sampler, streamed=bench.sampler == "vllm")
    pairs += [(Rival("gpu.tree.vs_trl", "tree", first, TREE_SIZES, True, ours), "vllm"), (small, "generate")]
    for rival, sampler in pairs:
        if sampler == "vllm" and not (bench.on_gpu and bench.has("vllm")):
            bench.say_once(f"rivals: TRL samples with vLLM on a GPU only; {rival.name} is left out")
            continue
        section = f"rivals.{rival.name}.{sampler}"
        bench.run(section, partial(measure_trl, rival=rival, sampler=sampler), rival.ours)
        keep_ratio(bench, f"{rival.ratio}_{sampler}", rival.ours[0], section)


@dataclass(frozen=True)
class Rival:
    """What TRL trains, too: the names of the ratio and of TRL's lines, and the section of Cadre's step and its work."""

    ratio: str
    name: str
    shape: Shape
    sizes: Sizes
    lora: bool
    ours: tuple[str, Work]


def measure_trl(bench: Bench, rival: Rival, sampler: str) -> None:
    """Measure steps of TRL's GRPOTrainer."""
    folder, shape = bench.out / "runs" / f"trl-{rival.name}-{sampler}", rival.shape
    shutil.rmtree(folder, ignore_errors=True)
    sizes = bench.sizes(rival.sizes)
    if rival.sizes is TREE_SIZES:
        sizes = gpu_runs.one_turn(sizes)
    batch = trl_batch(shape, sizes, bench.card.memory) if bench.on_gpu else sizes.completions
    options = ["--steps", str(TRL_STEPS.get(rival.name, STEPS)), "--batch", str(batch)]
    options += ["--vllm"] if sampler == "vllm" else []
    options += [] if bench.on_gpu else ["--cpu"]
    options += ["--lora-rank", str(LORA.rank), "--lora-alpha", str(LORA.alpha)] if rival.lora else []
    steps = gpu_runs.train_trl(bench.model(shape), sizes, options, folder, bench.limit())
    name = f"gpu.trl.{rival.name}.{sampler}"
    bench.step_s[bench.section] = list(steps["step_s"])
    for phase in ("step", "sample", "learn"):
        bench.keep(f"{name}.{phase}_s", steps[f"{phase}_s"], "s")
    bench.keep(f"{name}.tokens", steps["tokens"], "tokens")
    bench.keep(f"{name}.learner_peak_gb", [max(steps["learner_peak"]) / 1e9], "GB")
    bench.keep(f"{name}.batch", [batch], "sequences")
    keep_process(bench, name, steps)
    steps.check()


def trl_batch(shape: Shape, sizes: Sizes, memory: int) -> int:
    """Return the sequences that TRL learns at once: the largest power of two up to 32 for which memory suffices.

    An estimate: by the line gpu.trl.qwen3-0.6b.vllm.learner_peak_gb, 32 sequences of 773 tokens take 100.2 GB on an
    H200, less vLLM's part of the memory (45 GB) and 8 bytes a weight 71 bytes per token, layer and unit of width.
    """
    tokens = sizes.words + TEMPLATE_TOKENS + sizes.tokens
    a_sequence = 72 * tokens * shape.config.num_hidden_layers * shape.config.hidden_size
    free = 0.95 * memory - TRL_VLLM_MEMORY * memory - (8 if shape.whole else 2) * shape.parameters
    batch = 32
    while batch > 1 and batch * a_sequence > free:
        batch //= 2
    return batch


def keep_ratio(bench: Bench, name: str, ours: str, theirs: str) -> None:
    """Write TRL's seconds over Cadre's median once both are measured on one machine without a boot between them."""
    pair = [bench.find_done(section, here=True) for section in (ours, theirs)]
    if bench.planning or bench.find_done(name) or None in pair:
        return
    cadre, trl = (line["step_s"] for line in pair if line)
    bench.section = theirs
    bench.keep(name, [each / statistics.median(cadre) for each in trl], "ratio")
    bench.note_done(name)


def tree(bench: Bench) -> None:
    """Two roles in turn, with and without the barrier that starts a generation batch only when all episodes wait."""
    for streamed in (True, False) if bench.sampler == "vllm" else (False,):
        bench.run(*tree_section(bench.shapes[0], bench.sampler, streamed))


def tree_section(shape: Shape, engine: str, streamed: bool) -> tuple[str, Work]:
    """Return a section, and its work: steps of two roles with an adapter each."""
    name = "streamed" if streamed else "barrier"

    def work(bench: Bench) -> None:
        sizes = bench.sizes(TREE_SIZES)
        recipe = gpu_runs.talk_recipe(bench.model(shape), sizes, shape.vocabulary, bench.dtype, STEPS + 1, LORA)
        context = 2 * (sizes.words + 8 * sizes.tokens)
        changes = gpu_runs.sampler_changes(engine, context, bench.on_gpu)
        if engine == "vllm":
            changes.append(f"train.deterministic={json.dumps(not streamed)}")
        run = f"tree-{name}"
        steps = train(bench, run, shape, recipe, changes)
        keep_run(bench, f"gpu.tree.{shape.name}.{engine}.{name}", run, steps)
        steps.check()

    return f"tree.{engine}.{name}", work


def training(bench: Bench) -> None:
    """The recipe as it is, in the minutes that are left."""

    def work(bench: Bench) -> None:
        changes = ["train.steps=1", "train.tasks_per_step=1", "algorithm.k=2", "evaluate.tasks=1"] if bench.tiny else []
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            try:
                slices.train("plan-path", changes, run, slices.Clock(began, bench.limit()))
            except slices.OutOfTimeError:
                raise RuntimeError("not done in the minutes that were left") from None
            last = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
        bench.keep("gpu.training.success", [last["success"]], "share")
        bench.keep("gpu.training.minutes", [(time.monotonic() - began) / 60], "minutes")

    bench.run("training", work)


# ---- The torch engine and its learner in this process


def parity(bench: Bench) -> None:
    for dtype in ("float32", "bfloat16"):
        bench.run(f"parity.{dtype}", lambda bench, dtype=dtype: compare_devices(bench, dtype))
        bench.run(f"parity.{dtype}.sampling", lambda bench, dtype=dtype: compare_sampler(bench, dtype))


def compare_devices(bench: Bench, dtype: str) -> None:
    """Compare the first shape's log-probabilities and gradients on the GPU with those on the CPU; `max` is the largest
    difference between log-probabilities in any form, in nats."""
    shape, sizes = bench.shapes[0], bench.sizes(PARITY_SIZES)
    folder, sequences = bench.model(shape), make_sequences(sizes, ROLES[:1], shape.vocabulary)

    def learn(device: torch.device, form: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the log-probabilities of the trained tokens in an update, and its gradients: an update of fresh
        weights leaves their tenth part in Adam's first moments, as the clipping is off."""
        notes = TokenNotes(sizes.prompts)
        learner = make_learner(
            make_engine(folder, device, dtype, whole=True), notes, max_grad_norm=1e9, **form_settings(form)
        )
        try:
            asyncio.run(learner.update(sequences))
            moments = read_moments(learner) if form == "default" else {}
        finally:
            learner.close()
        return torch.tensor([value for note in notes.drain() for value in note.logprobs]), moments

    reference, reference_gradient = learn(torch.device("cpu"), "default")
    largest = 0.0
    for form in forms(bench.card.device):
        logprobs, gradient = learn(bench.card.device, form)
        diffs = (logprobs - reference).abs()
        largest = max(largest, float(diffs.max()))
        bench.keep(f"gpu.parity.{dtype}.{form}", [float(diffs.max())], "nats")
        bench.keep(f"gpu.parity.{dtype}.{form}.mean", [float(diffs.mean())], "nats")
        if gradient:
            norm = max(float(part.abs().max()) for part in reference_gradient.values())
            far = max(float((part - reference_gradient[name]).abs().max()) for name, part in gradient.items())
            bench.keep(f"gpu.parity.{dtype}.gradient", [far / norm], "of the largest")
        bench.card.reset_peak()
    bench.keep(f"gpu.parity.{dtype}.max", [largest], "nats")


def compare_sampler(bench: Bench, dtype: str) -> None:
    """Compare the sampler's log-probabilities of what it draws with the learner's of the same tokens."""
    shape, sizes = bench.shapes[0], bench.sizes(PARITY_SIZES)
    folder = bench.model(shape)
    notes, drawn = TokenNotes(1_000), dict[str, list[TrainingSequence]]()
    engine = make_engine(folder, bench.card.device, dtype, whole=True)
    learner = make_learner(engine, notes)
    try:
        for index, way in enumerate(decoding_ways(engine)):
            set_way(engine, way)
            drawn[way] = sample_sequences(engine, sizes, shape.vocabulary, index * sizes.prompts)
        asyncio.run(learner.update([one for sequences in drawn.values() for one in sequences]))
    finally:
        learner.close()
    learned = {note.position: note.logprobs for note in notes.drain()}
    for way, sequences in drawn.items():
        pairs = [zip(learned[one.position], trained_logprobs(one), strict=True) for one in sequences if one.position]
        diff = max(abs(ours - theirs) for pair in pairs for ours, theirs in pair)
        bench.keep(f"gpu.parity.{dtype}.sampling.{way}", [diff], "nats")


def read_moments(learner: TorchLearner) -> dict[str, torch.Tensor]:
    """Return Adam's first moments by weight, as a checkpoint has them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        learner.save(Path(folder))
        tensors = load_file(Path(folder) / ROLES[0] / "optimiser" / "optimiser.safetensors")
    return {name: tensor.float() for name, tensor in tensors.items() if name.endswith(".exp_avg")}


def trained_logprobs(sequence: TrainingSequence) -> list[float]:
    """Return the sampler's log-probabilities of the trained tokens."""
    return [value for value, trained in zip(sequence.logprobs, sequence.mask, strict=True) if trained]


def forms(device: torch.device) -> list[str]:
    """Return the forms of packing that the learner has on the device."""
    names = ["default"]
    for name, settings in FORMS.items():
        if settings and settings.keys() <= LearnerConfig.model_fields.keys():
            # FlexAttention has no backward pass on a CPU.
            names += [] if settings.get("flex_attention") and device.type == "cpu" else [name]
    return names


def form_settings(form: str) -> dict[str, Any]:
    return dict(FORMS[form])


def decoding_ways(engine: TorchEngine) -> tuple[str, ...]:
    """Return the engine's ways to decode: kernels started one by one, or replayed as CUDA graphs."""
    return ("steps", "graphs") if hasattr(engine, "record") else ("torch",)


def set_way(engine: TorchEngine, way: str) -> None:
    if hasattr(engine, "record"):
        is_recorded = way == "graphs" and engine.loaded.model.device.type == "cuda"
        engine.record = record_graph if is_recorded else run_eagerly


def repeat(bench: Bench, work: Callable[[], object], times: int = 3) -> list[float]:
    """Return the seconds of `times` calls of `work` after two that compile and fill caches; of fewer calls, but at
    least of one, if the whole takes more than ENOUGH_SECONDS."""
    seconds: list[float] = []
    while len(seconds) < times + 2 and (len(seconds) < 2 or sum(seconds) < ENOUGH_SECONDS):
        bench.card.wait()
        began = time.perf_counter()
        work()
        bench.card.wait()
        seconds.append(time.perf_counter() - began)
    return seconds[2:] or seconds[1:]


def shapes(bench: Bench) -> None:
    for shape in bench.shapes:

        def work(bench: Bench, shape: Shape = shape) -> None:
            rates = learn_with(bench, shape, bench.sizes(STEP_SIZES), "default", f"gpu.learning.{shape.name}")
            bench.keep(f"gpu.learning.{shape.name}.mfu", [rate_mfu(bench, shape, rate) for rate in rates], "share")

        bench.run(f"shapes.{shape.name}", work)


def rate_mfu(bench: Bench, shape: Shape, tokens_per_s: float) -> float:
    return shape.learning_flops(tokens_per_s) / bench.card.flops


def learn_with(bench: Bench, shape: Shape, sizes: Sizes, form: str, label: str) -> list[float]:
    """Measure updates in a form of packing; return the tokens per second that were run in each: distinct tokens, or
    all of them for the padded form."""
    settings = form_settings(form)
    engine = make_engine(bench.model(shape), bench.card.device, "bfloat16", shape.whole)
    learner = make_learner(engine, **settings)
    try:
        sequences = make_sequences(sizes, list(learner.policies), shape.vocabulary)
        bench.card.reset_peak()
        seconds = repeat(bench, lambda: asyncio.run(learner.update(sequences)))
        peak = bench.card.peak()
    finally:
        learner.close()
    tokens = sum(len(one.token_ids) for one in sequences) if form == "padded" else count_distinct(sequences)
    rates = [tokens / each for each in seconds]
    bench.keep(f"{label}.update_s", seconds, "s")
    bench.keep(f"{label}.tokens_per_s", rates, "tokens/s")
    bench.keep(f"{label}.peak_gb", [peak / 1e9], "GB")
    return rates


def count_distinct(sequences: Sequence[TrainingSequence]) -> int:
    """Return the number of tokens in the prefix tree of the sequences."""
    ordered = sorted(sequences, key=lambda one: (one.policy, one.token_ids))
    return len(PrefixTree.of(ordered).token_ids)


def learning(bench: Bench) -> None:
    """Every form of packing on the first shape; `vs_bound` is 1 where the shared tokens' time is saved in full."""
    shape, seconds, ratio_of_tokens = bench.shapes[0], dict[str, list[float]](), list[float]()
    sizes = bench.sizes(Sizes(8, 512, 8, 128))
    for form in forms(bench.card.device):

        def work(bench: Bench, form: str = form) -> None:
            label = f"gpu.learning.{shape.name}.{form}"
            sequences = make_sequences(sizes, ROLES[:1], shape.vocabulary)
            distinct, every = count_distinct(sequences), sum(len(one.token_ids) for one in sequences)
            ratio_of_tokens.append(distinct / every)
            rates = learn_with(bench, shape, sizes, form, label)
            bench.keep(f"{label}.mfu", [rate_mfu(bench, shape, rate) for rate in rates], "share")
            seconds[form] = [(every if form == "padded" else distinct) / rate for rate in rates]

        bench.run(f"learning.{form}", work)
    for form in seconds.keys() - {"padded"} if "padded" in seconds else ():
        pairs = zip(seconds[form], seconds["padded"], strict=True)
        ratios = [ours / padded / ratio_of_tokens[-1] for ours, padded in pairs]
        bench.keep(f"gpu.learning.{shape.name}.{form}.vs_bound", ratios, "ratio")


def colocation(bench: Bench) -> None:
    """What makes an update in a training slower than one alone: the same learner on other sequences, colocated with
    vLLM, and while the GPU is watched.

    alone                  the sequences of `shapes`
    start_once             the lengths of a training, whose prompts begin with the same two tokens; these are run once
    instructions_once      the first half of all prompts is the same, and is run once
    start_repeated, instructions_repeated  the same, as the learner runs them (`prefix_tree.share`)
    sampled                what vLLM sampled, with vLLM idle beside the learner
    in_turn                updates after sampling and before a weight sync, as in a step
    memory_read, utilisation_read  `alone`, while the GPU's memory or its utilisation is read ten times a second
    """

    def work(bench: Bench) -> None:
        shape, sizes, device = bench.shapes[0], bench.sizes(STEP_SIZES), bench.card.device
        label, folder = f"gpu.colocation.{shape.name}", bench.model(shape)
        learner = make_learner(make_engine(folder, device, bench.dtype, shape.whole))
        policies, in_training = list(learner.policies), replace(sizes, words=sizes.words + TEMPLATE_TOKENS)
        alone = make_sequences(sizes, policies, shape.vocabulary)
        starts = {"start": 2, "instructions": sizes.words // 2}
        data = {name: make_sequences(in_training, policies, shape.vocabulary, start) for name, start in starts.items()}

        def measure(what: str, sequences: Sequence[TrainingSequence]) -> None:
            def update() -> object:
                return asyncio.run(learner.update(sequences))

            update()
            keep_counters(bench, f"{label}.{what}", [gpu_update.count(update)[1] for _ in range(3)])
            # In the learner's thread, as the profiler looks at that which starts it.
            profile = learner.engine.work(gpu_update.profiled, partial(learner.rank.update, sequences))[1]
            bench.keep(f"{label}.{what}.kernel_s", [profile.kernel_s], "s")
            (bench.out / f"colocation-{what}.txt").write_text(profile.table)

        try:
            measure("alone", alone)
            for name, sequences in data.items():
                with patch.object(prefix_tree, "LEAST_REPEATED", sys.maxsize):
                    measure(f"{name}_once", sequences)
                measure(f"{name}_repeated", sequences)
            if bench.has("vllm"):
                with_vllm(bench, learner, label, measure)
            if bench.on_gpu:
                with gpu_runs.GpuMemory().watching(milliseconds=100):
                    measure("memory_read", alone)
                reader = UtilisationReader(str(torch.cuda.get_device_properties(device).uuid))
                readings = Utilisation(reader, pause=0.1)
                measure("utilisation_read", alone)
                del readings
        finally:
            learner.close()

    bench.run("colocation", work)


def with_vllm(
    bench: Bench, learner: TorchLearner, label: str, measure: Callable[[str, Sequence[TrainingSequence]], None]
) -> None:
    """Measure updates beside vLLM, first idle and then in turn with it."""
    shape, sizes, role = bench.shapes[0], bench.sizes(STEP_SIZES), ROLES[0]
    config = VllmConfig(
        context=2 * (sizes.words + sizes.tokens), sequences=256, **({"colocated": True} if bench.on_gpu else {})
    )
    folder = bench.model(shape)
    policy = PolicyConfig(model=str(folder), device=bench.card.device.type, dtype=bench.dtype)
    bench.card.reset_peak()  # what the learner has cached is vLLM's to take
    sampler = VllmSampler(folder, {role: policy}, Options(config))
    sharing = ColocatedLearner(learner, sampler, config.sleep) if bench.on_gpu else learner

    async def send_weights() -> None:
        await sampler.load(await learner.publish(role))

    try:
        measure("sampled", sample_sequences(sampler, sizes, shape.vocabulary))
        counted = []
        for turn in range(STEPS):
            drawn = sample_sequences(sampler, sizes, shape.vocabulary, turn * sizes.prompts)
            counted.append(gpu_update.count(partial(asyncio.run, sharing.update(drawn)))[1])
            asyncio.run(send_weights())
        keep_counters(bench, f"{label}.in_turn", counted[gpu_runs.WARM_UP_STEPS :])
    finally:
        sampler.close()


def keep_counters(bench: Bench, label: str, counted: Sequence[Mapping[str, float]]) -> None:
    """Write the seconds of updates and their counters."""
    bench.keep(f"{label}.update_s", [each["seconds"] for each in counted], "s")
    for counter, unit in COUNTERS.items():
        bench.keep(f"{label}.{counter}", [each[counter] for each in counted], unit)


def blocks(bench: Bench) -> None:
    """FlexAttention on the tree of a quarter of a step's sequences, as the first shape attends in one layer."""

    @cache
    def problem() -> tuple[BlockMask, list[Tensor], Tensor]:
        """Return the mask, query, key and value, and the gradient of the result."""
        shape, sizes = bench.shapes[0], bench.sizes(replace(STEP_SIZES, prompts=STEP_SIZES.prompts // 4))
        config, device = shape.config, bench.card.device
        ordered = sorted(make_sequences(sizes, ROLES[:1], shape.vocabulary), key=lambda one: one.token_ids)
        nodes = PrefixTree.of(ordered).padded(tree_attention.FLEX_BLOCK)
        mask = tree_attention.FlexMasks(nodes.depths, nodes.ends, device).mask(None)
        heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        inputs = [
            torch.randn(
                1, count, len(nodes.token_ids), size, device=device, dtype=torch.bfloat16, requires_grad=bench.on_gpu
            )
            for count in (heads, groups, groups)
        ]
        return mask, inputs, torch.randn_like(inputs[0])

    for name, options in (KERNEL_OPTIONS if bench.on_gpu else {"default": {}}).items():

        def work(bench: Bench, name: str = name, options: Mapping[str, int] = options) -> None:
            torch._dynamo.reset()
            mask, inputs, upstream = problem()
            attend = partial(flex_attention, block_mask=mask, enable_gqa=True, kernel_options=dict(options) or None)
            kernel = torch.compile(attend) if bench.on_gpu else attend
            forward = repeat(bench, lambda: kernel(*inputs), times=8)
            bench.keep(f"gpu.blocks.{name}.forward_ms", [1e3 * each for each in forward], "ms")
            if bench.on_gpu:  # a CPU has no backward pass
                result = kernel(*inputs)
                backward = repeat(
                    bench, lambda: torch.autograd.grad(result, inputs, upstream, retain_graph=True), times=8
                )
                bench.keep(f"gpu.blocks.{name}.backward_ms", [1e3 * each for each in backward], "ms")

        bench.run(f"blocks.{name}", work)


def sampling(bench: Bench) -> None:
    for shape in bench.shapes:
        bench.run(f"sampling.{shape.name}", lambda bench, shape=shape: measure_decoding(bench, shape))


def measure_decoding(bench: Bench, shape: Shape) -> None:
    """Measure the tokens per second of decoding with two adapters on a frozen base, which is held in bfloat16. The
    seconds of one token, which are those of the prompts, are taken off."""
    sizes = bench.sizes(Sizes(16, 256, 8, 128))
    count, steps = sizes.prompts * sizes.completions, sizes.tokens - 1
    bound = shape.sampling_bound(bench.card, count, sizes.words, sizes.tokens)
    engine = make_engine(bench.model(shape), bench.card.device, "bfloat16", whole=False)
    try:
        for way in decoding_ways(engine):
            set_way(engine, way)

            def sample(tokens: int) -> list[float]:
                of = replace(sizes, tokens=tokens)
                return repeat(bench, lambda: sample_sequences(engine, of, shape.vocabulary), times=2)

            short, whole = min(sample(1)), sample(sizes.tokens)
            rates = [count * steps / max(each - short, 1e-9) for each in whole]
            label = f"gpu.sampling.{shape.name}.{way}"
            bench.keep(f"{label}.tokens_per_s", rates, "tokens/s")
            bench.keep(f"{label}.of_bandwidth", [rate / bound for rate in rates], "share")
    finally:
        engine.close()


def largest(bench: Bench) -> None:
    """Up the ladder until one does not fit: a step of sampling and learning of two policies."""
    for kind, whole in (("adapters", False), ("models", True)):

        def work(bench: Bench, kind: str = kind, whole: bool = whole) -> None:
            fitted = 0
            for shape in bench.shapes[:1] if bench.tiny else LADDER:
                # At least the base in bfloat16, or masters, gradients and moments in float32 of two models.
                least = shape.parameters * (32 if whole else 2)
                if least > bench.card.memory or bench.left() < LEAST_SECONDS or not fits(bench, shape, whole):
                    break
                fitted = shape.parameters
            bench.keep(f"gpu.largest.{kind}", [fitted / 1e9], "billion weights")

        bench.run(f"largest.{kind}", work)


def fits(bench: Bench, shape: Shape, whole: bool) -> bool:
    sizes = bench.sizes(Sizes(4, 256, 4, 64))
    learners: list[TorchLearner] = []
    try:
        with saved(shape, bench.card) as folder:
            for _ in range(2 if whole else 1):
                engine = make_engine(folder, bench.card.device, "bfloat16", whole, memory=1 << 30)
                learners.append(make_learner(engine, gradient_checkpointing=True))
        for learner in learners:
            asyncio.run(learner.update(sample_sequences(learner.engine, sizes, shape.vocabulary)))
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        for learner in learners:
            learner.close()
        learners.clear()
        bench.card.reset_peak()
    return True


# ---- The command


PARTS: dict[str, Callable[[Bench], None]] = {
    "step": step,
    "tree": tree,
    "rivals": rivals,
    "parity": parity,
    "shapes": shapes,
    "sampling": sampling,
    "learning": learning,
    "colocation": colocation,
    "blocks": blocks,
    "largest": largest,
    "training": training,
}


def merge(path: Path) -> int:
    """Append the lines of a file to results/gpu.jsonl, as they were measured, unless they are there; return how many.

    Raises SystemExit for a line that measures nothing, and ValueError for one of a commit that is not in this history.
    """
    results = common.RESULTS / "gpu.jsonl"
    present = {line for line in results.read_text().splitlines()} if results.exists() else set()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if any(line.get("tiny") for line in lines):
        raise SystemExit(f"bench/gpu.py: {path} has lines of --tiny, which measure nothing; expected lines of a GPU.")
    for line in lines:
        line.pop("section", None)
    fresh = [line for line in lines if json.dumps(line) not in present]
    for line in fresh:
        common.validate_commit(line["commit"])
    for line in fresh:
        append(results, line)
    return len(fresh)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--only", nargs="+", metavar="SECTION", help="patterns of sections to run, in this order")
    parser.add_argument("--plan", action="store_true", help="print the sections that this call would measure, and end")
    parser.add_argument("--minutes", type=float, default=14.0, help="of the whole call")
    parser.add_argument("--out", type=Path, default=common.ROOT / "build" / "gpu", help="folder for lines and logs")
    parser.add_argument("--write", action="store_true", help="append to results/gpu.jsonl, too")
    parser.add_argument("--merge", type=Path, help="append the lines of this file to results/gpu.jsonl, and end")
    parser.add_argument("--commit", default="", help="that is measured, where the checkout has no git")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, tiny shapes, all code paths")
    options = parser.parse_args(arguments)
    if options.merge:
        console.print(f"{merge(options.merge)} lines appended to results/gpu.jsonl")
        gpu_tables.main()
        return
    ends = time.monotonic() + 60 * options.minutes
    commit = options.commit or common.commit()
    card = Card.any() if options.plan else Card.here(options.tiny)
    bench = Bench(card, options.tiny, options.out.absolute(), ends, options.write, commit, planning=options.plan)
    if not (options.tiny or options.plan):
        common.validate_commit(commit)  # before minutes of a GPU are spent
    console.print(f"{bench.card.name}, commit {bench.commit}, lines in {bench.out / 'gpu.jsonl'}")
    try:
        # By pattern first, so that what is named first is measured first.
        for pattern in options.only or (["*"] if options.parts else ORDER):
            bench.only = (pattern,)
            for name in options.parts or PARTS:
                PARTS[name](bench)
    finally:
        bench.close()
    if bench.failed:
        raise SystemExit(f"bench/gpu.py: {', '.join(bench.failed)} failed; see above")


if __name__ == "__main__":
    main()
