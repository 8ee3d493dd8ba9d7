"""What a person sees of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from cadre.evaluate import Report


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

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        """One line a step: reward by role, success of what was sampled, tokens a second, time left."""
        rewards = "  ".join(f"{name.split('/')[0]} {value:+.2f}" for name, value in figures.items() if _is_reward(name))
        seconds = figures["time/sample_s"] + figures["time/learn_s"]
        rate = figures["rollout/tokens"] / seconds
        done = step + 1
        self.took(figures["rollout/tokens"], seconds)
        left = self.left(done)
        self.bars.update(self.total, completed=done, note=f"success {figures['rollout/success']:.0%}")
        self.console.print(
            f"step {done}/{self.steps}  reward {rewards}  success {figures['rollout/success']:.0%}  "
            f"{rate:,.0f} tokens/s  {seconds:.1f} s  left {left:.0f} s",
            highlight=False,
        )

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
        self.console.print(
            f"evaluated after {step} steps: success {report.success:.1%} [{report.low:.1%}, {report.high:.1%}] of "
            f"{report.tasks} held-out tasks, reward {report.reward:+.2f}, {report.decisions:.1f} decisions",
            highlight=False,
            markup=False,
        )


def _is_reward(name: str) -> bool:
    return name.endswith("/reward") and not name.startswith("parts/")
