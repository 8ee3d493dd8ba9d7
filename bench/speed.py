"""Speed against others on this machine, in one process tree, all sides in turn: steps and generation.

    python bench/speed.py [PART ...] [--smollm2 DIR] [--precision DIR] [--vllm VENV] [--venvs DIR] [--write]

e2e       one update over prompts x 8 completions: ours, TRL's GRPOTrainer and CoMLRL's MAGRPOTrainer, same tokens;
          with --before against an earlier commit in their place, and an update of the plan-path recipe
generate  8 prompts x 8: ours and `model.generate`
vllm      the same of SmolLM2 in bfloat16 against vLLM's CPU build, in the environment that --vllm names
precision an update of an adapter of the model that --precision names, 4 prompts x 8: float32 and bfloat16, which
          `dtype: auto` chooses on a processor with AVX512-BF16

`--write` appends the figures to results/speed.jsonl; else they are printed only.
All sides run in float32 where nothing else is said, with the same threads, weights and prompts; loading and the first
two turns do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import material
import venvs
from common import ROOT, checked_out, record
from side import Turn, Worker, ratios, rounds

OURS, K = "ours", 8
LENGTHS = {200: 32, 1024: 64}  # prompt tokens: completion tokens
GENERATED = 8  # prompts of the comparison of generation
# Of a run of which only the updates' times are read.
STEPS = ("train.steps=6", "evaluate.tasks=0")

console = Console(soft_wrap=True)


@dataclass(frozen=True)
class Model:
    """A folder that all sides load, with what its figures' names end in and how many prompts an update of it has."""

    folder: Path
    suffix: str
    prompts: int


class Bench:
    """One call of the benchmark: its options, and where figures go."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work
        self.command = options.command

    def models(self) -> Iterator[Model]:
        """Those that were asked for, SmolLM2 where a folder of it was given."""
        if "small" in self.options.models:
            yield self.small()
        if "smollm2" in self.options.models and (model := self.smollm2()):
            yield model

    def small(self) -> Model:
        return Model(material.small_model(self.work / "small"), "", self.options.prompts)

    def smollm2(self) -> Model | None:
        """SmolLM2, or None, said aloud, where no folder of it was given."""
        if self.options.smollm2 is None:
            console.print("SmolLM2 is left out: name a folder of SmolLM2-135M-Instruct with --smollm2 DIR.")
            return None
        folder = material.endless_copy(self.options.smollm2, self.work / "smollm2")
        return Model(folder, ".smollm2", self.options.smollm2_prompts)

    def job(self, model: Model, count: int, length: int, completion: int, **changes: Any) -> dict[str, Any]:
        """Return the job of a worker; `changes` are for some sides only."""
        return {
            "model": str(model.folder),
            "prompts": material.prompts(model.folder, count, length),
            "k": K,
            "completion": completion,
            "threads": self.options.threads,
            "dtype": "float32",
            # Eight rows of 1,088 tokens of SmolLM2 take TRL 19.5 GB.
            "batch": self.options.trl_batch // (2 if model.suffix and length > 200 else 1),
            "learn": True,
            "continuous": False,
            # What workers of earlier commits read, for --before.
            **{"adapters": False, "agents": 1, "turns": 1},
        } | changes

    def rounds(self, name: str, workers: Sequence[Worker]) -> dict[str, list[Turn]]:
        console.print(f"{name}: {', '.join(worker.name for worker in workers)}", highlight=False)
        return rounds(workers, self.options.repeats, self.work / "logs" / name)

    def keep(self, name: str, values: Sequence[float], unit: str) -> None:
        spread = f"({min(values):.3g} to {max(values):.3g})"
        console.print(f"  {name}: {statistics.median(values):.4g} {unit} {spread}", highlight=False)
        if self.options.write:
            record("speed", name, values, unit, self.command, len(values), [0])

    def keep_side(self, stem: str, side: str, end: str, turns: Sequence[Turn], samples: int) -> None:
        """The absolute figures of one side."""
        self.keep(f"{stem}.{side}.samples_per_s.{end}", [samples / turn["seconds"] for turn in turns], "samples/s")
        for half in ("generating", "learning"):
            self.keep(f"{stem}.{side}.{half}.{end}", [turn[half] for turn in turns], "s")
        self.keep(f"{stem}.{side}.peak.{end}", [max(turn["peak_mb"] for turn in turns)], "MB")


def ours(job: Mapping[str, Any]) -> Worker:
    return Worker(OURS, Path(sys.executable), "run_ours.py", job)


def e2e(bench: Bench) -> None:
    """An update end to end against both trainers, or against a commit."""
    if bench.options.before:
        vs_before(bench)
        return
    pythons = {rival: venvs.interpreter(rival, bench.options.venvs) for rival in bench.options.rivals}
    for model in bench.models():
        for length in bench.options.lengths:
            job, end = bench.job(model, model.prompts, length, LENGTHS[length]), f"p{length}{model.suffix}"
            rivals = [Worker(name, python, f"run_{name}.py", job) for name, python in pythons.items()]
            # Of SmolLM2 each takes 15 GB and more with long prompts, so they are not loaded beside each other.
            for group in [[rival] for rival in rivals] if model.suffix else [rivals]:
                turns_by_side = bench.rounds(f"e2e.{end}", [ours(job), *group])
                for side, turns in turns_by_side.items():
                    bench.keep_side("e2e", side, end, turns, model.prompts * K)
                for rival in group:
                    bench.keep(f"e2e.vs_{rival.name}.{end}", ratios(turns_by_side, OURS, rival.name), "ratio")
                    # Of processor time, which other programs on the machine disturb less.
                    processor = ratios(turns_by_side, OURS, rival.name, "processor")
                    bench.keep(f"e2e.vs_{rival.name}.processor.{end}", processor, "ratio")


def vs_before(bench: Bench) -> None:
    """An update end to end against that of a commit: speed now over then, and of the recipe's updates time now over
    then."""
    with tempfile.TemporaryDirectory() as folder, checked_out(bench.options.before, Path(folder) / "code") as code:
        # From the top of the commit's files, as Python prefers the folder of the script that it is started with.
        script = shutil.copy(code / "bench" / "rivals" / "run_ours.py", code)
        environment = {"PYTHONPATH": str(code / "bench" / "rivals")}
        for model in bench.models():
            for length in bench.options.lengths:
                job, end = bench.job(model, model.prompts, length, LENGTHS[length]), f"p{length}{model.suffix}"
                old = Worker("before", Path(sys.executable), script, job, environment)
                turns_by_side = bench.rounds(f"e2e.before.{end}", [ours(job), old])
                for half in ("generating", "learning"):
                    bench.keep(f"e2e.vs_before.{half}.{end}", ratios(turns_by_side, OURS, "before", half), "ratio")
                bench.keep(f"e2e.vs_before.{end}", ratios(turns_by_side, OURS, "before"), "ratio")
        if "small" in bench.options.models:
            seconds: dict[Path, list[float]] = {code: [], ROOT: []}
            for number in range(bench.options.repeats):
                for checkout, updates in seconds.items():
                    run = train_plan_path(bench, checkout, Path(folder) / f"{checkout.name}-{number}", STEPS)
                    steps = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
                    updates.append(statistics.median(step["time/learn_s"] for step in steps))
            values = [now / then for now, then in zip(seconds[ROOT], seconds[code], strict=True)]
            bench.keep("e2e.vs_before.plan_path_update", values, "ratio")


def train_plan_path(bench: Bench, checkout: Path, run: Path, overrides: Sequence[str] = ()) -> Path:
    """Train the plan-path recipe with the code of a checkout, and return the run's folder."""
    arguments = [sys.executable, "-m", "cadre", "train", "plan-path", "--run", str(run), *overrides]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(bench.options.threads)}
    with (bench.work / "recipe.log").open("a") as log:
        # From there, as -m prefers the folder that it is started in.
        subprocess.run(arguments, check=True, cwd=checkout, env=environment, stdout=log, stderr=log)
    return run


def generate(bench: Bench) -> None:
    """Generation alone, tokens a second."""
    for model in bench.models():
        job = bench.job(model, GENERATED, 200, LENGTHS[200], learn=False)
        rivals = [
            Worker(name, Path(sys.executable), "run_generate.py", job | {"continuous": name != "hf"})
            for name in ("hf", "hf-continuous")[: 1 if model.suffix else 2]
        ]
        turns_by_side = bench.rounds(f"generate.hf{model.suffix}", [ours(job), *rivals])
        keep_generation(bench, turns_by_side, model.suffix)
        for side in rivals:
            bench.keep(f"generate.vs_{side.name}{model.suffix}", ratios(turns_by_side, OURS, side.name), "ratio")
        bench.keep(f"generate.vs_hf.processor{model.suffix}", ratios(turns_by_side, OURS, "hf", "processor"), "ratio")


def keep_generation(bench: Bench, turns_by_side: Mapping[str, Sequence[Turn]], suffix: str) -> dict[str, list[float]]:
    """Record tokens a second by side, a value a round, and give them back."""
    rates = {side: [turn["sampled"] / turn["generating"] for turn in turns] for side, turns in turns_by_side.items()}
    for side, values in rates.items():
        bench.keep(f"generate.{side}.tokens_per_s{suffix}", values, "tokens/s")
    return rates


def vllm(bench: Bench) -> None:
    """Generation of SmolLM2 in bfloat16, ours and vLLM's."""
    if bench.options.vllm is None or (model := bench.smollm2()) is None:
        console.print("vLLM is left out: name --smollm2 DIR, and with --vllm VENV an environment with its CPU build.")
        return
    job = bench.job(model, GENERATED, 200, LENGTHS[200], learn=False, dtype="bfloat16")
    home, threads = bench.options.vllm, bench.options.threads
    libraries = [path for name in ("libtcmalloc*.so*", "libiomp5.so") for path in sorted(home.rglob(name))[:1]]
    environment = {
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "LD_PRELOAD": ":".join(map(str, libraries)),
    }
    rival = Worker("vllm", home / "bin" / "python", "run_vllm.py", job, environment)
    turns_by_side = bench.rounds("generate.vllm", [ours(job), rival])
    keep_generation(bench, turns_by_side, ".smollm2.bfloat16")
    bench.keep("generate.vs_vllm.smollm2", ratios(turns_by_side, OURS, "vllm"), "ratio")


def precision(bench: Bench) -> None:
    """Seconds of an update of an adapter in float32 over those in bfloat16."""
    if bench.options.precision is None:
        console.print("Precision is left out: name the folder of a model with --precision DIR.")
        return
    model = Model(material.endless_copy(bench.options.precision, bench.work / "precision"), "", 4)
    sides = []
    for dtype in ("bfloat16", "float32"):
        job = bench.job(model, model.prompts, 200, LENGTHS[200], dtype=dtype, adapters=True)
        sides.append(Worker(dtype, Path(sys.executable), "run_ours.py", job))
    turns_by_side = bench.rounds("precision", sides)
    for figure in ("seconds", "generating", "learning"):
        ending = "" if figure == "seconds" else f".{figure}"
        values = ratios(turns_by_side, "bfloat16", "float32", figure)
        bench.keep(f"cpu.auto_vs_float32.0.5b{ending}", values, "ratio")


PARTS: dict[str, Callable[[Bench], None]] = {"e2e": e2e, "generate": generate, "vllm": vllm, "precision": precision}


def shown(arguments: Sequence[str]) -> str:
    """The command as anybody would give it: without the folders of this machine, and where it writes."""
    words, remaining = ["python bench/speed.py"], iter(arguments)
    for word in remaining:
        if word in ("--venvs", "--work"):
            next(remaining, None)
        elif word in ("--smollm2", "--precision", "--vllm"):
            words += [word, "DIR"]
            next(remaining, None)
        elif word != "--write":
            words.append(word)
    return " ".join(words)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--smollm2", type=Path, help="a folder of SmolLM2-135M-Instruct")
    parser.add_argument("--precision", type=Path, help="a folder of Qwen2.5-Coder-0.5B-Instruct")
    parser.add_argument("--vllm", type=Path, help="a virtual environment with vLLM's CPU build")
    home = ROOT / "runs" / "bench"
    parser.add_argument("--venvs", type=Path, default=home / "venvs", help="the rivals' environments")
    parser.add_argument("--work", type=Path, default=home, help="models, jobs and logs")
    parser.add_argument("--models", nargs="+", choices=["small", "smollm2"], default=["small", "smollm2"])
    parser.add_argument("--rivals", nargs="+", choices=list(venvs.RIVALS), default=list(venvs.RIVALS))
    parser.add_argument("--lengths", type=int, nargs="+", choices=list(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--prompts", type=int, default=8, help="prompts of an update of the small model")
    parser.add_argument("--smollm2-prompts", type=int, default=2, help="prompts of an update of SmolLM2")
    parser.add_argument(
        "--trl-batch", type=int, default=8, help="rows that TRL learns at once; half with long prompts of SmolLM2"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", help="the commit that e2e is compared with, in place of the rivals")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="append to results/speed.jsonl")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"got {unknown[0]!r}; expected one or more of {', '.join(PARTS)}")
    options.command = shown(arguments)
    options.parts = options.parts or list(PARTS)
    for name in ("smollm2", "precision", "vllm", "venvs", "work"):
        path = getattr(options, name)
        setattr(options, name, path and path.absolute())
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    for part in options.parts:
        PARTS[part](bench)


if __name__ == "__main__":
    main()
