"""Trainings that lab/gpu.py measures, each in a process of its own: by `cadre train`, and by TRL's GRPOTrainer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.common import CADRE, ROOT
from cadre.settings import LoraConfig
from lab.gpu_models import Sizes

HERE = Path(__file__).parent
# Nothing is fetched or reported while times are measured.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
# The first steps compile, capture graphs and fill caches.
WARM_UP_STEPS = 2
TALK_TURNS = 6  # of both roles
TRL_VLLM_MEMORY = 0.3  # part of the GPU's memory that TRL gives to vLLM


class GpuMemory:
    """The most memory in use on the first GPU, of all processes together, while a block runs; 0 without nvidia-smi."""

    def __init__(self) -> None:
        self.peak = 0.0

    @contextmanager
    def watching(self) -> Iterator[GpuMemory]:
        """Read the memory in use every second until the block ends."""
        command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        command += ["-lms", "1000"]
        if shutil.which(command[0]) is None:
            yield self
            return
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def read() -> None:
            for line in process.stdout or ():
                if line.strip().isdigit():
                    self.peak = max(self.peak, int(line) * (1 << 20))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield self
        finally:
            process.terminate()
            process.wait()
            reader.join()


@dataclass(frozen=True)
class Steps:
    """A training's numbers by name, a value for each step after the warm-up; the most memory in use, in bytes; how many
    seconds the whole process took; and what ended it before its last step, if anything did."""

    values: Mapping[str, Sequence[float]]
    peak: float = 0.0
    seconds: float = 0.0
    failure: RuntimeError | None = None

    @staticmethod
    def of(
        lines: Sequence[Mapping[str, Any]],
        peak: float = 0.0,
        seconds: float = 0.0,
        failure: RuntimeError | None = None,
    ) -> Steps:
        """Return the numbers of these steps without the warm-up. Raises RuntimeError, or the failure, if no step is
        left."""
        measured = lines[WARM_UP_STEPS:]
        if not measured:
            few = f"got {len(lines)} steps; expected more than {WARM_UP_STEPS}, which are the warm-up"
            raise failure or RuntimeError(few)
        names = [name for name, value in measured[0].items() if isinstance(value, int | float)]
        values = {name: [float(line[name]) for line in measured if line.get(name) is not None] for name in names}
        return Steps(values, peak, seconds, failure)

    def check(self) -> None:
        """Raise what ended the process early."""
        if self.failure:
            raise self.failure

    def __getitem__(self, name: str) -> Sequence[float]:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values


@dataclass(frozen=True)
class Recipe:
    """A training of one of the environments in gpu_words.py: its sections, as they are written to a file."""

    sections: Mapping[str, Any]
    changes: Sequence[str] = field(default=())


def words_recipe(model: Path, sizes: Sizes, vocabulary: int, dtype: str, steps: int, lora: LoraConfig | None) -> Recipe:
    """Return GRPO on one answer per prompt, by a model that is trained whole, or by an adapter."""
    policy = _policy(model, dtype, lora)
    return Recipe(
        {
            "env": f"{HERE / 'gpu_words.py'}:Words",
            "settings": {"length": sizes.words, "vocabulary": vocabulary},
            "team": {"policies": {"shared": policy}, "roles": {"writer": "shared"}},
            "algorithm": {"name": "grpo", "k": sizes.completions},
            "sampling": {"max_tokens": sizes.tokens},
            "learner": {"learning_rate": 1e-6},
            "train": {"steps": steps, "tasks_per_step": sizes.prompts, "checkpoint_minutes": 0},
            "evaluate": {"tasks": 0},
        }
    )


def _policy(model: Path, dtype: str, lora: LoraConfig | None) -> dict[str, Any]:
    adapter = {"lora": {"rank": lora.rank, "alpha": lora.alpha}} if lora else {}
    return {"model": str(model), "dtype": dtype, **adapter}


def talk_recipe(model: Path, sizes: Sizes, vocabulary: int, dtype: str, steps: int, lora: LoraConfig) -> Recipe:
    """Return AT-GRPO on two roles that speak three times each, an adapter per role on one base."""
    policy = _policy(model, dtype, lora)
    return Recipe(
        {
            "env": f"{HERE / 'gpu_words.py'}:Talk",
            "settings": {"length": sizes.words, "vocabulary": vocabulary, "longest": sizes.tokens},
            "team": {
                "policies": {"first": policy, "second": policy},
                "roles": {"planner": "first", "tool": "second"},
            },
            "algorithm": {"name": "at_grpo", "k": sizes.completions, "lookahead": 0},
            "sampling": {"max_tokens": sizes.tokens},
            "learner": {"learning_rate": 1e-6},
            "train": {"steps": steps, "tasks_per_step": sizes.prompts, "checkpoint_minutes": 0},
            "evaluate": {"tasks": 0},
        }
    )


def one_turn(sizes: Sizes, turns: int = TALK_TURNS) -> Sizes:
    """Return what has as many samples and sampled tokens as so many turns of `talk_recipe`, in one turn: a prompt for
    every turn, and the mean length of an answer. The prompts are the tasks' own; those of later turns are longer."""
    return Sizes(turns * sizes.prompts, sizes.words, sizes.completions, (max(1, sizes.tokens // 4) + sizes.tokens) // 2)


def sampler_changes(engine: str, context: int, on_gpu: bool) -> list[str]:
    """Return the settings of a run's sampler: vLLM that shares the GPU with the learner, or the torch engine."""
    changes = [f"sampling.engine={engine}"]
    if engine == "vllm":
        changes += [f"vllm.context={context}", "vllm.sequences=256"]
        changes += ["vllm.colocated=true"] if on_gpu else []
    return changes


def train_cadre(recipe: Recipe, changes: Sequence[str], folder: Path, run: Path, seconds: float) -> Steps:
    """Train by the command line in `run`, and return the metrics of its steps; `folder` gets the recipe, the output and
    the metrics, without checkpoints, which are several times as large as the model.

    If the process fails or takes longer than `seconds`, the steps until then hold the failure, or it is raised if there
    are none: a RuntimeError with the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(dict(recipe.sections), sort_keys=False))
    began, memory, failure = time.monotonic(), GpuMemory(), None
    try:
        with memory.watching():
            run_logged([*CADRE, "train", str(file), *changes, "--run", str(run)], folder / "train.log", seconds)
    except RuntimeError as error:
        failure = error
    finally:
        with suppress(FileNotFoundError):
            shutil.copy(run / "metrics.jsonl", folder)
    lines = read_lines(run / "metrics.jsonl")
    return Steps.of(lines, memory.peak, time.monotonic() - began, failure)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines, none if there is no file. A last line without its end is left out."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def train_trl(model: Path, sizes: Sizes, options: Sequence[str], folder: Path, seconds: float) -> Steps:
    """Train the same work by gpu_trl.py, and return the seconds of its steps; failures as above."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "steps.jsonl"
    command = [sys.executable, "-m", "lab.gpu_trl", str(model), str(out), *options]
    command += ["--memory", str(TRL_VLLM_MEMORY)]
    for name in ("prompts", "words", "completions", "tokens"):
        command += [f"--{name}", str(getattr(sizes, name))]
    began, memory, failure = time.monotonic(), GpuMemory(), None
    try:
        with memory.watching():
            run_logged(command, folder / "trl.log", seconds)
    except RuntimeError as error:
        failure = error
    return Steps.of(read_lines(out), memory.peak, time.monotonic() - began, failure)


def run_logged(command: Sequence[str], log: Path, seconds: float) -> None:
    """Run a command with its output in `log`. Raises RuntimeError with the end of that if it fails or takes too long.

    A process that is late is ended with all that it has started.
    """
    environment = {**ENVIRONMENT, **os.environ}
    paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_session(process)
    if code:
        raise RuntimeError(f"{command[1:5]} ended with {code}; its last lines:\n{tail(log)}")
    if code is None:
        raise RuntimeError(f"{command[1:5]} was not done after {seconds:.0f} s; its last lines:\n{tail(log)}")


def end_session(process: subprocess.Popen[Any]) -> None:
    """Kill the process and all others of its session, such as vLLM's, which would hold the GPU's memory: these are in
    process groups of their own."""
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)
    process.wait()


def tail(log: Path, lines: int = 40) -> str:
    return "\n".join(line[:300] for line in log.read_text(errors="replace").splitlines()[-lines:])
