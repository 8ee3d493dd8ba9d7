"""Measure Cadre on one GPU, and against TRL on the same work. A call takes at most 14 minutes, a section at most 5.

    python -m lab.gpu [PART ...] [--only SECTION ...] [--minutes 14] [--out build/gpu] [--write] [--tiny]
    python -m lab.gpu --merge FILE

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

The models have random weights. MFU is the arithmetic of the learning phase over what the GPU could compute in its time:
6 operations per weight and token, 4 if only adapters are trained, for every distinct token of the prefix tree (all
tokens for the padded form); neither attention nor what is computed twice counts. Every step after the second counts in
a median.

A part consists of sections; `--only` runs those that match a pattern, in the order of the patterns. Lines go to
OUT/gpu.jsonl as they are measured. A section that fails is reported, keeps the lines that it measured before, and the
others go on; none is begun in the last minute. A section of `rivals` measures Cadre's step first unless this call has
done so, and has the ratio of both.

`--write` also appends the lines of this call to results/gpu.jsonl; `--merge` does so with a file that was written
elsewhere. `--tiny` runs all of it on the CPU on tiny shapes, and measures
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file

from bench import common
from cadre.engines.torch import TorchEngine, TorchLearner
from cadre.engines.torch.kv_cache import record_graph, run_eagerly
from cadre.learn.prefix_tree import PrefixTree
from cadre.learn.token_notes import TokenNotes
from cadre.types import TrainingSequence
from lab import gpu_runs
from lab.gpu_models import (
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
from lab.gpu_runs import TRL_VLLM_MEMORY, Steps

console = Console(soft_wrap=True, highlight=False)
COMMAND = "python -m lab.gpu"
# The learner's settings by the name of the form.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "tree": {"pack": "prefix_tree", "flex_attention": False, "compile": False},
    "flex": {"pack": "prefix_tree", "flex_attention": True, "compile": False},
    "padded": {"pack": "padded"},
}


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
}
LEAST_SECONDS = 60.0
ENOUGH_SECONDS = 90.0
MOST_SECONDS = 290.0


Work = Callable[["Bench"], None]


@dataclass
class Bench:
    """One call: the GPU, where lines go, and when it has to be done. `close` removes the models."""

    card: Card
    tiny: bool
    out: Path
    ends: float
    write: bool
    commit: str
    only: Sequence[str] = ("*",)  # patterns of the sections that are run now
    section: str = ""
    failed: list[str] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    announced: set[str] = field(default_factory=set)
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
        return importlib.util.find_spec(package) is not None

    def say_once(self, text: str) -> None:
        if text not in self.announced:
            console.print(text)
            self.announced.add(text)

    @property
    def sampler(self) -> str:
        """The engine that samples in trainings: vLLM where it is installed."""
        return "vllm" if self.has("vllm") else "torch"

    def left(self) -> float:
        return self.ends - time.monotonic()

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

    def run(self, section: str, work: Work, first: tuple[str, Work] | None = None) -> None:
        """Do the work of a section unless it was done or there is no time left. A failure is printed and noted.

        What it is compared with has to be measured by the same call: `first`, a section and its work, is done before.
        """
        if section in self.begun or not any(fnmatch(section, pattern) for pattern in self.only):
            return
        if self.left() < LEAST_SECONDS:
            console.print(f"{section}: no time left")
            return
        if first and first[0] not in self.begun:
            self._measure(*first)
        self._measure(section, work)

    def _measure(self, section: str, work: Work) -> None:
        self.begun.add(section)
        console.print(f"[bold]{section}[/bold], {self.left() / 60:.1f} minutes left")
        self.section, began = section, time.monotonic()
        self.card.reset_peak()
        try:
            work(self)
        except Exception:  # noqa: BLE001 - minutes on a GPU are dear: one section must not cost the others theirs
            console.print(f"{section}: FAILED\n{traceback.format_exc()}", markup=False)
            self.failed.append(section)
        else:
            console.print(f"  {section} took {time.monotonic() - began:.0f} s")
        self.card.reset_peak()


def append(path: Path, line: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps(line) + "\n")


# ---- Trainings by the command line, and TRL's


def step(bench: Bench) -> None:
    if not bench.has("vllm"):
        bench.say_once("step: vLLM cannot be imported here; the torch engine alone is measured")
    first, *larger = bench.shapes
    for shape in (first, *larger):
        bench.run(*step_section(shape, bench.sampler))
    bench.run(*step_section(first, "torch"))


def step_section(shape: Shape, engine: str) -> tuple[str, Work]:
    """Return a section, and its work: steps of `cadre train` with this sampler."""
    return f"step.{shape.name}.{engine}", lambda bench: measure_step(bench, shape, engine)


def measure_step(bench: Bench, shape: Shape, engine: str) -> None:
    sizes = bench.sizes(STEP_SIZES)
    lora = None if shape.full else LORA
    recipe = gpu_runs.words_recipe(bench.model(shape), sizes, shape.vocabulary, bench.dtype, STEPS, lora)
    changes = gpu_runs.sampler_changes(engine, 2 * (sizes.words + sizes.tokens), bench.on_gpu)
    run, name = f"{shape.name}-{engine}", f"gpu.step.{shape.name}.{engine}"
    steps = train(bench, run, shape, recipe, changes)
    if not bench.on_gpu:
        # A run on a CPU computes none of them: the same arithmetic, so that all of this runs there, too.
        distinct = sizes.prompts * sizes.words + sizes.sampled
        learning = [shape.learning_flops(distinct) / seconds / bench.card.flops for seconds in steps["time/learn_s"]]
        bench.keep(f"{name}.learning.mfu", learning, "share")
    keep_run(bench, name, steps)
    if engine == "vllm" and shape is bench.shapes[0]:
        bench.keep(f"gpu.sampling.{shape.name}.tokens_per_s", sampling_rates(steps), "tokens/s")
        if "time/sync_s" in steps:
            bench.keep("gpu.sync_s", steps["time/sync_s"], "s")
    steps.check()


def train(bench: Bench, name: str, shape: Shape, recipe: gpu_runs.Recipe, changes: Sequence[str]) -> Steps:
    """Train from the start, and return its steps; the output and the metrics stay in a folder of OUT."""
    folder = bench.out / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    bench.card.reset_peak()
    # The first and the last checkpoint: masters, and masters with moments, in float32.
    with scratch_folder(20 * shape.parameters) as scratch:
        return gpu_runs.train_cadre(recipe, changes, folder, scratch / "run", bench.limit())


def keep_run(bench: Bench, name: str, steps: Steps) -> None:
    """Write the seconds of a step and of its phases, and the memory.

    A step is what learning waited for samples, and learning with weight sync.
    """
    step_seconds = [sum(pair) for pair in zip(steps["time/wait_s"], steps["time/learn_s"], strict=True)]
    bench.step_s[bench.section] = step_seconds
    bench.keep(f"{name}.step_s", step_seconds, "s")
    for phase in ("wait", "sample", "learn", "update", "sync", "sleep", "wake"):
        if f"time/{phase}_s" in steps:
            bench.keep(f"{name}.{phase}_s", steps[f"time/{phase}_s"], "s")
    for metric, unit in GPU_METRICS.items():
        if metric in steps:
            bench.keep(f"{name}.{metric.removeprefix('gpu/').replace('_', '.', 1)}", steps[metric], unit)
    if not bench.on_gpu:
        bench.keep(f"{name}.sampling.tokens_per_s", sampling_rates(steps), "tokens/s")
    keep_process(bench, name, steps)


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
    return [tokens / seconds for tokens, seconds in pairs]


def rivals(bench: Bench) -> None:
    """TRL on the work of each shape's step, with vLLM; on the tree's samples in one turn; and with `generate`."""
    if not bench.has("trl"):
        bench.say_once("rivals: TRL cannot be imported here; nothing is compared with it")
        return
    first, *larger = bench.shapes
    small = Rival("gpu.step.vs_trl", first.name, first, STEP_SIZES, not first.full, step_section(first, bench.sampler))
    pairs = [(small, "vllm")]
    for shape in larger:
        cadre_section = step_section(shape, bench.sampler)
        pairs.append(
            (
                Rival(f"gpu.step.{shape.name}.vs_trl", shape.name, shape, STEP_SIZES, not shape.full, cadre_section),
                "vllm",
            )
        )
    cadre_section = tree_section(first, bench.sampler, streamed=bench.sampler == "vllm")
    pairs += [(Rival("gpu.tree.vs_trl", "tree", first, TREE_SIZES, True, cadre_section), "vllm"), (small, "generate")]
    for rival, sampler in pairs:
        if sampler == "vllm" and not (bench.on_gpu and bench.has("vllm")):
            bench.say_once(f"rivals: TRL samples with vLLM on a GPU only; {rival.name} is left out")
            continue
        section = f"rivals.{rival.name}.{sampler}"
        bench.run(section, partial(measure_trl, rival=rival, sampler=sampler), rival.cadre_section)
        keep_ratio(bench, f"{rival.ratio}_{sampler}", rival.cadre_section[0], section)


@dataclass(frozen=True)
class Rival:
    """A comparison with TRL: the names of the ratio and of TRL's lines, and the section and work of Cadre's step."""

    ratio: str
    name: str
    shape: Shape
    sizes: Sizes
    lora: bool
    cadre_section: tuple[str, Work]


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
    free = 0.95 * memory - TRL_VLLM_MEMORY * memory - (8 if shape.full else 2) * shape.parameters
    batch = 32
    while batch > 1 and batch * a_sequence > free:
        batch //= 2
    return batch


def keep_ratio(bench: Bench, name: str, cadre_section: str, rival_section: str) -> None:
    """Write TRL's seconds over Cadre's median if this call has measured both."""
    if cadre_section in bench.step_s and rival_section in bench.step_s:
        bench.section = rival_section
        middle = statistics.median(bench.step_s[cadre_section])
        bench.keep(name, [seconds / middle for seconds in bench.step_s[rival_section]], "ratio")


def tree(bench: Bench) -> None:
    """Two roles in turn, with and without the barrier that starts a generation batch only when all episodes wait."""
    for streamed in (True, False) if bench.sampler == "vllm" else (False,):
        bench.run(*tree_section(bench.shapes[0], bench.sampler, streamed))


def tree_section(shape: Shape, engine: str, streamed: bool) -> tuple[str, Work]:
    """Return a section, and its work: steps of two roles with an adapter each."""
    name = "streamed" if streamed else "barrier"

    def work(bench: Bench) -> None:
        sizes = bench.sizes(TREE_SIZES)
        recipe = gpu_runs.talk_recipe(bench.model(shape), sizes, shape.vocabulary, bench.dtype, STEPS, LORA)
        context = 2 * (sizes.words + 8 * sizes.tokens)
        changes = gpu_runs.sampler_changes(engine, context, bench.on_gpu)
        if engine == "vllm":
            changes.append(f"train.deterministic={json.dumps(not streamed)}")
        run = f"tree-{name}"
        steps = train(bench, run, shape, recipe, changes)
        keep_run(bench, f"gpu.tree.{shape.name}.{engine}.{name}", steps)
        steps.check()

    return f"tree.{engine}.{name}", work


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
            make_engine(folder, device, dtype, full=True), notes, max_grad_norm=1e9, **form_settings(form)
        )
        try:
            asyncio.run(learner.update(sequences))
            moments = read_moments(learner) if form == "default" else {}
        finally:
            learner.close()
        return torch.tensor([value for note in notes.drain() for value in note.logprobs]), moments

    reference, reference_gradient = learn(torch.device("cpu"), "default")
    largest = 0.0
    for form in FORMS:
        if form == "flex" and not bench.on_gpu:
            continue  # FlexAttention has no backward pass on a CPU
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
    notes, sequences_by_sampler = TokenNotes(1_000), dict[str, list[TrainingSequence]]()
    engine = make_engine(folder, bench.card.device, dtype, full=True)
    learner = make_learner(engine, notes)
    try:
        for index, way in enumerate(decoding_ways(engine)):
            set_way(engine, way)
            sequences_by_sampler[way] = sample_sequences(engine, sizes, shape.vocabulary, index * sizes.prompts)
        asyncio.run(learner.update([sequence for sequences in sequences_by_sampler.values() for sequence in sequences]))
    finally:
        learner.close()
    learned = {note.position: note.logprobs for note in notes.drain()}
    for way, sequences in sequences_by_sampler.items():
        pairs = [
            zip(learned[sequence.position], trained_logprobs(sequence), strict=True)
            for sequence in sequences
            if sequence.position
        ]
        diff = max(
            abs(learned_logprob - sampled_logprob) for pair in pairs for learned_logprob, sampled_logprob in pair
        )
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
    engine = make_engine(bench.model(shape), bench.card.device, "bfloat16", shape.full)
    learner = make_learner(engine, **settings)
    try:
        sequences = make_sequences(sizes, list(learner.policies), shape.vocabulary)
        bench.card.reset_peak()
        seconds = repeat(bench, lambda: asyncio.run(learner.update(sequences)))
        peak = bench.card.peak()
    finally:
        learner.close()
    tokens = (
        sum(len(sequence.token_ids) for sequence in sequences)
        if form == "padded"
        else len(PrefixTree.of(sorted(sequences, key=lambda sequence: (sequence.policy, sequence.token_ids))).token_ids)
    )
    rates = [tokens / duration for duration in seconds]
    bench.keep(f"{label}.update_s", seconds, "s")
    bench.keep(f"{label}.tokens_per_s", rates, "tokens/s")
    bench.keep(f"{label}.peak_gb", [peak / 1e9], "GB")
    return rates


def sampling(bench: Bench) -> None:
    for shape in bench.shapes:
        bench.run(f"sampling.{shape.name}", lambda bench, shape=shape: measure_decoding(bench, shape))


def measure_decoding(bench: Bench, shape: Shape) -> None:
    """Measure the tokens per second of decoding with two adapters on a frozen base, which is held in bfloat16. The
    seconds of one token, which are those of the prompts, are taken off."""
    sizes = bench.sizes(Sizes(16, 256, 8, 128))
    count, steps = sizes.prompts * sizes.completions, sizes.tokens - 1
    bound = shape.sampling_bound(bench.card, count, sizes.words, sizes.tokens)
    engine = make_engine(bench.model(shape), bench.card.device, "bfloat16", full=False)
    try:
        for way in decoding_ways(engine):
            set_way(engine, way)

            def sample(tokens: int) -> list[float]:
                of = replace(sizes, tokens=tokens)
                return repeat(bench, lambda: sample_sequences(engine, of, shape.vocabulary), times=2)

            short, full = min(sample(1)), sample(sizes.tokens)
            rates = [count * steps / max(duration - short, 1e-9) for duration in full]
            label = f"gpu.sampling.{shape.name}.{way}"
            bench.keep(f"{label}.tokens_per_s", rates, "tokens/s")
            bench.keep(f"{label}.of_bandwidth", [rate / bound for rate in rates], "share")
    finally:
        engine.close()


# ---- The command


PARTS: dict[str, Callable[[Bench], None]] = {
    "step": step,
    "tree": tree,
    "rivals": rivals,
    "parity": parity,
    "shapes": shapes,
    "sampling": sampling,
}


def merge(path: Path) -> int:
    """Append the lines of a file to results/gpu.jsonl, as they were measured, unless they are there; return how many.

    Raises SystemExit for a line that measures nothing, and ValueError for one of a commit that is not in this history.
    """
    results = common.RESULTS / "gpu.jsonl"
    present = {line for line in results.read_text().splitlines()} if results.exists() else set()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if any(line.get("tiny") for line in lines):
        raise SystemExit(f"lab/gpu.py: {path} has lines of --tiny, which measure nothing; expected lines of a GPU.")
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
    parser.add_argument("--minutes", type=float, default=14.0, help="of the whole call")
    parser.add_argument("--out", type=Path, default=common.ROOT / "build" / "gpu", help="folder for lines and logs")
    parser.add_argument("--write", action="store_true", help="append to results/gpu.jsonl, too")
    parser.add_argument("--merge", type=Path, help="append the lines of this file to results/gpu.jsonl, and end")
    parser.add_argument("--commit", default="", help="that is measured, where the checkout has no git")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, tiny shapes, all code paths")
    options = parser.parse_args(arguments)
    if options.merge:
        console.print(f"{merge(options.merge)} lines appended to results/gpu.jsonl")
        return
    ends = time.monotonic() + 60 * options.minutes
    commit = options.commit or common.commit()
    card = Card.here(options.tiny)
    bench = Bench(card, options.tiny, options.out.absolute(), ends, options.write, commit)
    if not options.tiny:
        common.validate_commit(commit)  # before minutes of a GPU are spent
    console.print(f"{bench.card.name}, commit {bench.commit}, lines in {bench.out / 'gpu.jsonl'}")
    try:
        # By pattern first, so that what is named first is measured first.
        for pattern in options.only or ["*"]:
            bench.only = (pattern,)
            for name in options.parts or PARTS:
                PARTS[name](bench)
    finally:
        bench.close()
    if bench.failed:
        raise SystemExit(f"lab/gpu.py: {', '.join(bench.failed)} failed; see above")


if __name__ == "__main__":
    main()
