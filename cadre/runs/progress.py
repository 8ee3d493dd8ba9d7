"""What a person sees of a run: lines on the console, and `status.json` in the run folder.

`status.json` is rewritten every few seconds, and renamed into place. It holds the present only; the run's other files
hold the past.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from cadre.errors import RunError
from cadre.evaluation.evaluate import Report
from cadre.files import Count, OpenRecord, open_plain, path_exists, read_record, to_json
from cadre.runs import jsonl
from cadre.runs.notebook import NotebookConsole
from cadre.runs.records import EvaluationLine, Number, Step
from cadre.team import Metrics, SamplingActivity
from cadre.training.asynchronous import StepQueue
from cadre.training.checkpoint import Checkpointer

WIDTH, GAP, INDENT = 80, "  ", "    "


def format_seconds(seconds: float) -> str:
    """Return `40 s`, `12 min`, `3.5 h` or `4,300 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.{1 if seconds < 360_000 else 0}f} h"


# ---- On the console


class LiveDisplay:
    """The present phase of long work: how many of its parts are done, the tokens sampled in it, and their rate.

    On a terminal and in a notebook it is a bar. Elsewhere it is a line every `LINE_SECONDS` in which nothing else was
    printed, as a step of a real model takes minutes on a CPU.
    """

    LINE_SECONDS = 30.0

    def __init__(self, console: Console) -> None:
        self.console, self.activity = console, SamplingActivity()
        phase, bar, note = TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[note]}")
        columns = (phase, bar, MofNCompleteColumn(), note, TimeElapsedColumn(), TimeRemainingColumn())
        self.bars = Bars(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.phase, self.done, self.count = "", 0, 0
        self._began = self._printed = time.monotonic()
        self._before = (0, 0)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.bars.start()
        if isinstance(self.console, NotebookConsole):
            self.console.bars, self.console.is_live = self.bars, True
        threading.Thread(target=self._tick, name="progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.bars.stop()
        if isinstance(self.console, NotebookConsole):
            self.console.is_live = False
            self.console.refresh()

    def begin(self, phase: str, count: int) -> Callable[[], None]:
        """Show a new phase of so many parts; return a callback for each finished one."""
        self.phase, self.done, self.count, self._began = phase, 0, count, time.monotonic()
        self._before = (self.activity.decisions, self.activity.tokens)
        if not self.bars.task_ids or self.bars.tasks[-1].description == "steps":
            self.bars.add_task(phase, total=count, note="")
        self.bars.reset(self.bars.task_ids[-1], total=count, description=phase, note="")
        return self.advance

    def advance(self) -> None:
        self.done += 1
        self.bars.advance(self.bars.task_ids[-1])

    def describe(self) -> str:
        """Return the phase in a line: `sampling 3/16, 40 decisions, 1,200 tokens, 240 tok/s`."""
        decisions, tokens = self.activity.decisions - self._before[0], self.activity.tokens - self._before[1]
        rate = f", {tokens / max(time.monotonic() - self._began, 1e-9):,.0f} tok/s" if tokens else ""
        sampled = f", {decisions:,} decisions, {tokens:,} tokens{rate}" if self.phase != "learning" else ""
        return f"{self.phase} {self.done}/{self.count}{sampled}"

    def _tick(self) -> None:
        in_notebook = isinstance(self.console, NotebookConsole)
        while not self._ended.wait(1.0 if in_notebook else 0.5):
            if (self.console.is_terminal or in_notebook) and self.bars.task_ids and self.phase:
                _, _, note = self.describe().partition(", ")
                self.bars.update(self.bars.task_ids[-1], note=note)
                if isinstance(self.console, NotebookConsole):
                    self.console.refresh()
            elif self.phase and time.monotonic() - self._printed >= self.LINE_SECONDS:
                self.print([self.describe()])

    def print(self, lines: Sequence[str]) -> None:
        self._printed = time.monotonic()
        for line in lines:
            self.console.print(line, markup=False, highlight=False)


class Progress(LiveDisplay):
    """One run's display. It begins at step `start` and ends at `steps`, or sooner at `max_tokens` tokens, of which
    `spent` are used already; 0 is no limit. `success_label` names the success of a training step, such as "best-of-8"
    (`cadre.rollout.shapes.success_label`), `environments` are those of a mixture."""

    def __init__(
        self,
        console: Console,
        steps: int,
        start: int = 0,
        max_tokens: int = 0,
        spent: float = 0.0,
        success_label: str = "success",
        environments: Sequence[str] = (),
    ) -> None:
        super().__init__(console)
        self.steps, self.max_tokens, self.spent = steps, max_tokens, spent
        self.success_label, self.environments = success_label, environments
        self.made, self.seconds, self.tokens = 0, 0.0, 0.0
        self.total = self.bars.add_task("steps", total=steps, completed=start, note="")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a line for a step: reward by role, success in training, failures, time left."""
        tokens, seconds = metrics["rollout/tokens"], metrics["time/wait_s"] + metrics["time/learn_s"]
        self.took(tokens, seconds)
        success, speed = f"{self.success_label} {metrics['rollout/success']:.0%}", f"{tokens / seconds:,.0f} tok/s"
        self.bars.update(self.total, completed=step + 1, note=f"{success}, {speed}")
        failed = [f"failed {metrics['rollout/failed']:.1%}"] if metrics.get("rollout/failed") else []
        failed += [f"{count:,.0f} branches failed"] if (count := metrics.get("rollout/failed_branches")) else []
        failed += [f"diverged {rate:.1%}"] if (rate := metrics.get("rollout/divergence_rate")) else []
        updates = [value for name, value in metrics.items() if name.endswith("/updates")]
        # No policy made an optimiser step, as when every group has zero variance, or every completion is left out.
        failed += ["no update"] if (updates or metrics.get("rollout/dropped")) and not any(updates) else []
        rewards = {name: value for name, value in metrics.items() if name.endswith("/reward")}
        roles = [f"{name.split('/')[0]} {value:+.2f}" for name, value in rewards.items() if name[:6] != "parts/"]
        head = [f"step {step + 1}/{self.steps}", *([f"reward {', '.join(roles)}"] if roles else [])]
        solved = {name: metrics[key] for name in self.environments if (key := f"parts/{name}/success") in metrics}
        rates = ", ".join(f"{name} {rate:.0%}" for name, rate in solved.items())
        by_env = [f"branches solved {rates}"] if solved else []
        by_env += [f"level {metrics['curriculum/level']:.0f}"] if "curriculum/level" in metrics else []
        line = [*head, success, *by_env, *failed, f"{format_seconds(self.left(step + 1))} left"]
        self.print([*wrap_parts(line), *format_gpu(metrics)])

    def took(self, tokens: float, seconds: float) -> None:
        """Count a step."""
        self.made, self.seconds, self.tokens = self.made + 1, self.seconds + seconds, self.tokens + tokens

    def left(self, done_steps: int) -> float:
        """Return the seconds to the end after so many steps, by the mean of those seen, without evaluations."""
        steps = float(self.steps - done_steps)
        # A limit of tokens may come before that of steps: at the mean number of tokens per step so far.
        if self.max_tokens and self.tokens:
            steps = min(steps, max(0.0, self.max_tokens - self.spent - self.tokens) / (self.tokens / self.made))
        return steps * self.seconds / self.made

    def evaluated(self, step: int, report: Report) -> None:
        """Print a line for an evaluation: success rate, its 95% interval, and the rate of tasks that failed to run."""
        failed = f", {report.failures / report.tasks:.1%} failed to run" if report.failures else ""
        success = f"success {report.success:.1%} [{report.low:.1%}, {report.high:.1%}]"
        line = f"after {step} steps: {success} on {report.tasks} held-out tasks{failed}"
        self.print(textwrap.wrap(line, WIDTH, subsequent_indent=INDENT))

    def say(self, paragraph: str) -> None:
        """Print a paragraph about a rare event."""
        self.print([paragraph])


class EvaluationProgress(LiveDisplay):
    """The progress of `cadre eval`. Without a terminal there is also a line every tenth of the episodes."""

    def watch(self, episodes: int, activity: SamplingActivity) -> Callable[[], None]:
        """Begin with so many episodes; return a callback for each finished one."""
        self.activity = activity
        self.begin("evaluated", episodes)
        self._before = (0, 0)

        def played() -> None:
            self.advance()
            if not self.console.is_terminal and self.done * 10 // episodes > (self.done - 1) * 10 // episodes:
                self.print([self.describe()])

        return played


def wrap_parts(parts: Sequence[str], first_indent: str = "") -> list[str]:
    """Return parts beside each other in lines of at most `WIDTH` columns, broken between parts and after commas, so
    that a number stays with its name."""
    line = GAP.join(part.replace(" ", "\u00a0").replace(",\u00a0", ", ") for part in parts)
    lines = textwrap.wrap(line, WIDTH, initial_indent=first_indent, subsequent_indent=INDENT, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def format_gpu(metrics: Mapping[str, float]) -> list[str]:
    """Return lines about the GPUs, of at most `WIDTH` columns: of sampling and learning the seconds, tokens per second,
    fraction of the peak bandwidth or MFU, and peak memory; and the seconds of other phases. None for a run on CPUs;
    without what is not known, as the peak rates of an unknown GPU."""
    if "gpu/learning_peak_gb" not in metrics:
        return []

    def describe(phase: str, seconds: str, fraction: str, unit: str) -> str:
        name = f"gpu/{phase}"
        parts = [f"{metrics[rate]:,.0f} tok/s" for rate in [f"{name}_tokens_per_s"] if rate in metrics]
        parts += [f"{metrics[fraction]:.0%} {unit}"] if fraction in metrics else []
        parts += [f"peak {metrics[f'{name}_peak_gb']:.1f} GB"]
        return f"{phase} {metrics[seconds]:.1f} s ({', '.join(parts)})"

    items = [
        describe("sampling", "time/sample_s", "gpu/sampling_bandwidth_fraction", "of bandwidth"),
        describe("learning", "time/update_s", "gpu/learning_mfu", "MFU"),
        *(f"{name} {metrics[key]:.1f} s" for name in ("sync", "sleep", "wake") if (key := f"time/{name}_s") in metrics),
    ]
    return wrap_parts([f"GPU: {', '.join(items)}"], INDENT)


# ---- In `status.json`

STATUS = "status.json"
STATUS_SECONDS = 2.0


class StatusRecord(OpenRecord):
    """`status.json`."""

    written: Number
    step: Step
    steps: Count
    learning: bool
    sampling: list[Step]
    ready: list[Step]
    max_staleness: Count
    staleness: dict[str, Number]
    tokens_per_s: Number | None
    gpu: dict[str, Number] = {}


class StatusWriter:
    """Writes `status.json` for as long as a training goes on; owned by the loop. `metrics` are those of the last
    step."""

    def __init__(self, checkpointer: Checkpointer, queue: StepQueue) -> None:
        self.metrics: Metrics = {}
        self._checkpointer, self._queue = checkpointer, queue

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write the file every few seconds while the block runs, and once more at its end."""

        async def write_forever() -> None:
            while True:
                self.write()
                await asyncio.sleep(STATUS_SECONDS)

        task = asyncio.create_task(write_forever())
        try:
            yield
        finally:
            task.cancel()
            self.write()

    def write(self) -> None:
        """Write the file now. If the disk is full it stays as it was: a run does not end for its status."""
        run, state = self._checkpointer.run, self._checkpointer.state
        seconds = self.metrics.get("time/wait_s", 0.0) + self.metrics.get("time/learn_s", 0.0)
        status = {
            "written": time.time(),
            "process": os.getpid(),
            "step": state.step,
            "steps": run.train.steps,
            "learning": self._checkpointer.is_updating,
            "sampling": self._queue.sampling(),
            "ready": [sampled.step for sampled in self._queue.sampled()],
            "max_staleness": run.train.max_staleness,
            "staleness": {name: value for name, value in self.metrics.items() if "/staleness" in name},
            "tokens_per_s": self.metrics["rollout/tokens"] / seconds if seconds else None,
        }
        if any(name.startswith("gpu/") for name in self.metrics):
            named = self.metrics.items()
            status["gpu"] = {name: value for name, value in named if name.startswith(("gpu/", "time/"))}
        path = run.folder / STATUS
        fresh = path.with_suffix(".new")
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
            fresh.write_text(to_json(status, indent=1) + "\n")
            fresh.replace(path)


def read_status(folder: Path) -> dict[str, Any]:
    """Return what the run in `folder` was doing when it last wrote its status, whether it still `runs`, and its last
    `evaluation`. Raises RunError if no run ever trained there."""
    path = folder / STATUS
    if not path_exists(path):
        raise RunError(f"status: {folder} holds no {STATUS}; expected the folder of a run that has begun to train.")
    status, evaluation = read_record(path, StatusRecord).model_dump(), None
    for report in jsonl.records(folder / "evaluations.jsonl", EvaluationLine):
        evaluation = report
    return {**status, "runs": _is_locked(folder / ".lock"), "evaluation": evaluation}


def _is_locked(path: Path) -> bool:
    if not path_exists(path):
        return False
    with open_plain(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks: the owner empties the file at its end
            return file.read(1) != b""
    return False
