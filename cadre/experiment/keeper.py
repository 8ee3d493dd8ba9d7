"""When a training is saved: at its start, every few minutes, at its best, at its end, and when it fails."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from cadre.errors import DivergedError
from cadre.experiment import checkpoint
from cadre.experiment.ahead import SamplingAhead
from cadre.experiment.checkpoint import State
from cadre.experiment.config import dump
from cadre.experiment.interrupt import Interrupt
from cadre.experiment.run_directory import Run
from cadre.team import Team


class Keeper:
    """Holds the state of a training and writes its checkpoints; owned by the loop, lives as long as that.

    What is saved is always a state between two steps, with everything of the steps before it logged, and with the next
    steps as far as `ahead` has sampled them.
    """

    def __init__(self, run: Run, team: Team, state: State, ahead: SamplingAhead, interrupt: Interrupt) -> None:
        self.run, self.team, self.state, self.ahead, self._interrupt = run, team, state, ahead, interrupt
        self._folder = run.folder / "checkpoints"
        self._whole = True
        self._saved = time.monotonic()

    @asynccontextmanager
    async def to_the_end(self) -> AsyncIterator[None]:
        """Save whatever ends this, unless a step was just changing the weights, or one that was sampled from earlier
        ones is lost, or what was learned is worth nothing, or the end was forced: then the last checkpoint stands."""
        try:
            yield
        except DivergedError:
            self._whole = False
            raise
        finally:
            again = await self.ahead.close(self.state.step)
            if self._whole and again and not self._interrupt.forced:
                self.save()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A step that changes weights and logs what it did; at its end one more update has been made."""
        self._whole = False
        yield
        self.state = replace(self.state, step=self.state.step + 1)
        self._whole = True

    @property
    def is_changing(self) -> bool:
        """Whether a step is just changing the weights."""
        return not self._whole

    async def save_where_due(self) -> None:
        """By minutes, by steps, or because the evaluation just made is the best so far; once no step is being sampled
        from weights that are gone when this is read."""
        if self._due():
            await self.ahead.settle()
            self.save()

    def _due(self) -> bool:
        goal, step = self.run.config.train, self.state.step
        minutes = (time.monotonic() - self._saved) / 60
        by_time = 0 < goal.checkpoint_minutes <= minutes
        by_step = goal.checkpoint_every > 0 and step % goal.checkpoint_every == 0
        return by_time or by_step or self._best()[0] == step

    def save(self) -> None:
        """Write the state, once the logs of the steps before it are on the disk, and remove what need not be kept."""
        goal = self.run.config.train
        best_step, best = self._best()
        self.state = replace(self.state, best_step=best_step, best=best, in_flight=self.ahead.ready())
        self.run.flush()
        checkpoint.save(self._folder, self.state, self.team, dump(self.run.config))
        checkpoint.prune(self._folder, self.state.step, goal.checkpoints_kept, best_step, goal.checkpoint_every)
        self._saved = time.monotonic()

    def _best(self) -> tuple[int | None, float]:
        """The step of the best evaluation so far, the first of equals, and its share of successes."""
        reports = [(report["success"], -report["step"]) for report in self.run.evaluations()]
        success, step = max(reports, default=(0.0, None))
        return (None if step is None else -step), success
