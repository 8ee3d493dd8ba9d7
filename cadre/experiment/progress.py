"""What a person sees of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from cadre.experiment.report import Report

WIDTH, GAP, INDENT = 80, "  ", "    "
# With more roles the rate makes room for them.
MOST_WITH_RATE = 2


class Progress:
    """One run's display. It begins at `start` and ends at `steps`, or sooner at `most` tokens, of which it has `spent`
    some already; 0 is no limit."""

    def __init__(self, console: Console, steps: int, start: int = 0, most: int = 0, spent: float = 0.0) -> None:
        self.console, self.steps, self.most, self.spent = console, steps, most, spent
        self.made, self.seconds, self.tokens = 0, 0.0, 0.0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bars = Bars(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.total = self.bars.add_task("steps", total=steps, completed=start, note="")
        self.inner = self.bars.add_task("tasks", total=1, note="")

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def sampling(self, step: int, tasks: int) -> Callable[[], None]:
        """A callback a finished tree."""
        self.bars.reset(self.inner, total=tasks, description="sampling")
        return lambda: self.bars.advance(self.inner)

    def evaluating(self, step: int, tasks: int) -> Callable[[], None]:
        """A callback a finished episode."""
        self.bars.reset(self.inner, total=tasks, description="evaluating")
        return lambda: self.bars.advance(self.inner)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A line a step: reward by role, success of what was sampled, tokens a second, time left."""
        tokens, seconds = metrics["rollout/tokens"], metrics["time/wait_s"] + metrics["time/learn_s"]
        self.took(tokens, seconds)
        success = f"success {metrics['rollout/success']:.0%}"
        self.bars.update(self.total, completed=step + 1, note=success)
        failed = [f"failed {metrics['rollout/failed']:.1%}"] if metrics.get("rollout/failed") else []
        branches = metrics.get("rollout/failed_branches")
        failed += [f"{branches:,.0f} branches failed"] if branches else []
        rate = metrics.get("rollout/divergence_rate")
        failed += [f"diverged {rate:.1%}"] if rate else []
        failed += ["no update"] if _unmoved(metrics) else []
        rewards = rewards_of(metrics)
        speed = [f"{tokens / seconds:,.0f} tok/s"] if len(rewards) <= MOST_WITH_RATE else []
        rest = [success, *failed, *speed, f"{duration(self.left(step + 1))} left"]
        self._print(step_lines(f"step {step + 1}/{self.steps}", rewards, rest))

    def took(self, tokens: float, seconds: float) -> None:
        """Count a step."""
        self.made, self.seconds, self.tokens = self.made + 1, self.seconds + seconds, self.tokens + tokens

    def left(self, done: int) -> float:
        """Seconds to the end after `done` steps, by the mean of those seen; evaluations are not foreseen."""
        steps = float(self.steps - done)
        if self.most and self.tokens:
            steps = min(steps, max(0.0, self.most - self.spent - self.tokens) / (self.tokens / self.made))
        return steps * self.seconds / self.made

    def evaluated(self, step: int, report: Report) -> None:
        """A line an evaluation: the share of success, its 95% interval, and the share of tasks that failed to run."""
        failed = f", {report.failures / report.tasks:.1%} failed to run" if report.failures else ""
        line = (
            f"after {step} steps: success {report.success:.1%} [{report.low:.1%}, {report.high:.1%}] on "
            f"{report.tasks} held-out tasks{failed}"
        )
        self._print(textwrap.wrap(line, WIDTH, subsequent_indent=INDENT))

    def say(self, paragraph: str) -> None:
        """Something that seldom happens."""
        self._print([paragraph])

    def _print(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.console.print(line, markup=False, highlight=False)


class EvaluationProgress:
    """How far an evaluation of its own is: a bar on a terminal, elsewhere a line every tenth of its tasks. Lives as
    long as the evaluation."""

    def __init__(self, console: Console) -> None:
        self._console, self._done, self._total = console, 0, 0
        columns = (TextColumn("evaluating"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, TimeRemainingColumn(), console=console, transient=True, disable=self._plain)

    @property
    def _plain(self) -> bool:
        return not self._console.is_terminal

    def __enter__(self) -> EvaluationProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, tasks: int) -> Callable[[], None]:
        """Begin with so many tasks; returns what to call when one has been played."""
        self._total = tasks
        self._bars.start()
        bar = self._bars.add_task("tasks", total=tasks)

        def played() -> None:
            self._done += 1
            self._bars.advance(bar)
            if self._plain and self._done * 10 // self._total > (self._done - 1) * 10 // self._total:
                self._console.print(f"evaluated {self._done}/{self._total} tasks", markup=False, highlight=False)

        return played


def _unmoved(metrics: Mapping[str, float]) -> bool:
    """Whether no policy made an optimiser step, as where all samples of every group were paid alike."""
    updates = [value for name, value in metrics.items() if name.endswith("/updates")]
    return bool(updates) and not any(updates)


def rewards_of(metrics: Mapping[str, float]) -> list[str]:
    """`planner +0.11` for every role."""
    rewards = {name: value for name, value in metrics.items() if name.endswith("/reward")}
    return [f"{name.split('/')[0]} {value:+.2f}" for name, value in rewards.items() if not name.startswith("parts/")]


def step_lines(head: str, rewards: Sequence[str], rest: Sequence[str]) -> list[str]:
    """One line of at most `WIDTH` columns; where that is too short, the rewards follow on lines of their own."""
    line = GAP.join([head, *rewards, *rest])
    if len(line) <= WIDTH:
        return [line]
    lines = [GAP.join([head, *rest])]
    for reward in rewards:
        if lines[1:] and len(lines[-1] + GAP + reward) <= WIDTH:
            lines[-1] += GAP + reward
        else:
            lines.append(INDENT + reward)
    return lines


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
