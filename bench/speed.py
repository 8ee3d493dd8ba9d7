"""Speed against others on this machine, in one process tree, all sides in turn: steps, generation, growth, a profile.

    python bench/speed.py [PART ...] [--smollm2 DIR] [--vllm VENV] [--venvs DIR] [--write]

e2e       one update over prompts x 8 completions: ours, TRL's GRPOTrainer and CoMLRL's MAGRPOTrainer, same tokens;
          with --before against an earlier commit in their place, and an update of the plan-path recipe
generate  8 prompts x 8: ours and `model.generate`
vllm      the same on SmolLM2 against vLLM's CPU build, where --vllm names an environment that has it
growth    how our time grows with siblings, prompt length, agents and turns
profile   where one step of the plan-path recipe spends its time, as text
recipe    `cadre train plan-path` as it is against an earlier commit (--before)

`--write` appends the figures to results/speed.jsonl; else they are printed only.
All sides run in float32 with the same threads, weights and prompts; loading and the first two turns do not count.
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
import time
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
PROFILE = "plan-path-profile.txt"
RECIPE_BEFORE = "08c82e9"
# Of a run of which only the updates' times are read.
STEPS = ("train.steps=6", "evaluate.tasks=0")
GROWTH: Mapping[str, Sequence[dict[str, int]]] = {
    "k": [{"k": k} for k in (2, 4, 8, 16)],
    "prompt": [{"length": length} for length in (100, 200, 400, 800, 1600)],
    "agents": [{"agents": agents} for agents in (1, 2, 4)],
    "turns": [{"turns": turns} for turns in (1, 2, 4)],
}

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
        """What a worker is told; `changes` are for some sides only."""
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
            "adapters": False,
            "agents": 1,
            "turns": 1,
            "continuous": False,
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
            for beside in [[rival] for rival in rivals] if model.suffix else [rivals]:
                found = bench.rounds(f"e2e.{end}", [ours(job), *beside])
                for side, turns in found.items():
                    bench.keep_side("e2e", side, end, turns, model.prompts * K)
                for rival in beside:
                    bench.keep(f"e2e.vs_{rival.name}.{end}", ratios(found, OURS, rival.name), "ratio")
                    # Of processor time, which other programs on the machine disturb less.
                    processor = ratios(found, OURS, rival.name, "processor")
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
                before = Worker("before", Path(sys.executable), script, job, environment)
                found = bench.rounds(f"e2e.before.{end}", [ours(job), before])
                for half in ("generating", "learning"):
                    bench.keep(f"e2e.vs_before.{half}.{end}", ratios(found, OURS, "before", half), "ratio")
                bench.keep(f"e2e.vs_before.{end}", ratios(found, OURS, "before"), "ratio")
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
        theirs = [
            Worker(name, Path(sys.executable), "run_generate.py", job | {"continuous": name != "hf"})
            for name in ("hf", "hf-continuous")[: 1 if model.suffix else 2]
        ]
        found = bench.rounds(f"generate.hf{model.suffix}", [ours(job), *theirs])
        keep_generation(bench, found, model.suffix)
        for side in theirs:
            bench.keep(f"generate.vs_{side.name}{model.suffix}", ratios(found, OURS, side.name), "ratio")
        bench.keep(f"generate.vs_hf.processor{model.suffix}", ratios(found, OURS, "hf", "processor"), "ratio")


def vllm(bench: Bench) -> None:
    """vLLM in the precision that is faster here, of float32 and its own choice for SmolLM2, against ours in float32."""
    if bench.options.vllm is None:
        console.print("vLLM is left out: name a virtual environment that has its CPU build with --vllm VENV.")
        return
    model = bench.smollm2()
    if model is None:
        return
    job = bench.job(model, GENERATED, 200, LENGTHS[200], learn=False)
    python = bench.options.vllm / "bin" / "python"
    environment = vllm_environment(bench.options.vllm, bench.options.threads)
    theirs = [
        Worker(f"vllm-{dtype}", python, "run_vllm.py", job | {"dtype": dtype}, environment)
        for dtype in ("float32", "bfloat16")
    ]
    found = bench.rounds("generate.vllm", [ours(job), *theirs])
    rates = keep_generation(bench, found, model.suffix)
    faster = max(theirs, key=lambda side: statistics.median(rates[side.name]))
    bench.keep("generate.vs_vllm", ratios(found, OURS, faster.name), "ratio")


def vllm_environment(home: Path, threads: int) -> dict[str, str]:
    """All cores for its workers, and the allocator and OpenMP that it is fastest with where they are installed."""
    libraries = [path for name in ("libtcmalloc*.so*", "libiomp5.so") for path in sorted(home.rglob(name))[:1]]
    return {
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "LD_PRELOAD": ":".join(map(str, libraries)),
    }


def keep_generation(bench: Bench, found: Mapping[str, Sequence[Turn]], suffix: str) -> dict[str, list[float]]:
    """Record tokens a second by side, a value a round, and give them back."""
    rates = {side: [turn["sampled"] / turn["generating"] for turn in turns] for side, turns in found.items()}
    for side, values in rates.items():
        bench.keep(f"generate.{side}.tokens_per_s{suffix}", values, "tokens/s")
    return rates


def growth(bench: Bench) -> None:
    """Seconds of our two halves along one axis at a time, from 4 prompts of 200 tokens, 8 siblings, 32 tokens each."""
    model = bench.small()
    for axis, points in GROWTH.items():
        for point in points:
            changes = {name: value for name, value in point.items() if name != "length"}
            length = point.get("length", 200)
            # Agents have an adapter each; the first point is one agent with one.
            job = bench.job(model, 4, length, LENGTHS[200], adapters=axis == "agents", **changes)
            name = f"growth.{axis}{next(iter(point.values()))}"
            turns = bench.rounds(name, [ours(job)])[OURS]
            for half in ("generating", "learning"):
                bench.keep(f"{name}.{half}", [turn[half] for turn in turns], "s")


def profile(bench: Bench) -> None:
    """A flame profile of one step of the plan-path recipe."""
    path = bench.work / PROFILE
    arguments = [sys.executable, str(Path(__file__).parent / "stacks.py"), str(path)]
    subprocess.run(arguments, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    console.print("\n".join(path.read_text().splitlines()[:24]), highlight=False)
    console.print(f"The whole profile is in {path}.", highlight=False)


def recipe(bench: Bench) -> None:
    """Minutes of the plan-path recipe, evaluations included, before and now, in turn."""
    minutes: dict[str, list[float]] = {"before": [], "now": []}
    success: dict[str, list[float]] = {"before": [], "now": []}
    commit = bench.options.before or RECIPE_BEFORE
    with tempfile.TemporaryDirectory() as folder, checked_out(commit, Path(folder) / "code") as before:
        for number in range(bench.options.repeats):
            for side, checkout in (("before", before), ("now", ROOT)):
                began = time.perf_counter()
                run = train_plan_path(bench, checkout, Path(folder) / f"{side}-{number}")
                minutes[side].append((time.perf_counter() - began) / 60)
                evaluations = (run / "evaluations.jsonl").read_text().splitlines()
                success[side].append(json.loads(evaluations[-1])["success"])
    for side in minutes:
        bench.keep(f"recipe.{side}.minutes", minutes[side], "min")
        bench.keep(f"recipe.{side}.success", success[side], "share")
    bench.keep("recipe.vs_before", [b / n for b, n in zip(minutes["before"], minutes["now"], strict=True)], "ratio")


PARTS: dict[str, Callable[[Bench], None]] = {
    "e2e": e2e,
    "generate": generate,
    "vllm": vllm,
    "growth": growth,
    "profile": profile,
    "recipe": recipe,
}


def shown(arguments: Sequence[str]) -> str:
    """The command as anybody would give it: without the folders of this machine, and where it writes."""
    words, given = ["python bench/speed.py"], iter(arguments)
    for word in given:
        if word in ("--venvs", "--work"):
            next(given, None)
        elif word in ("--smollm2", "--vllm"):
            words += [word, "DIR"]
            next(given, None)
        elif word != "--write":
            words.append(word)
    return " ".join(words)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--smollm2", type=Path, help="a folder of SmolLM2-135M-Instruct")
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
    parser.add_argument(
        "--before",
        help=f"the commit that e2e and the recipe are compared with; the recipe's default is {RECIPE_BEFORE}",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="append to results/speed.jsonl")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"got {unknown[0]!r}; expected one or more of {', '.join(PARTS)}")
    options.command = shown(arguments)
    options.parts = options.parts or list(PARTS)
    for name in ("smollm2", "vllm", "venvs", "work"):
        given = getattr(options, name)
        setattr(options, name, given and given.absolute())
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    for part in options.parts:
        PARTS[part](bench)


if __name__ == "__main__":
    main()
