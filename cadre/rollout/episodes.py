"""The boundary of an episode: the one place where a failure becomes data.

A failed episode is tried again on a fresh environment with the same noise; what its roles said before is said again,
not drawn again, so that an episode that failed by bad luck ends as if it had not. One that fails each time is dropped
and counted, and past a share of failures the whole call stops with the reason. Only what an episode can be blamed for
is taken so: an engine that cannot sample, or a sandbox that is not as strict as asked, ends the call at once.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, get_args

from cadre import random_keys
from cadre.envs.adapters.failures import Diverged
from cadre.envs.user_errors import told
from cadre.errors import CadreError, ContractError, DeadlineError, PromptError, SandboxUnavailable
from cadre.rollout.grow import Rollout, grow
from cadre.rollout.rounds import together
from cadre.rollout.watched import Watched
from cadre.team import Sampler, Team, Weights
from cadre.types import Request, Sample, Task, Tree

T = TypeVar("T")
Reason = Literal["raised", "contract", "deadline", "prompt", "sandbox", "diverged"]
REASONS: tuple[Reason, ...] = get_args(Reason)
# The errors that are an episode's and are told apart, the more special first; Cadre's other ones end the call.
BLAMED: tuple[tuple[type[Exception], Reason], ...] = (
    (DeadlineError, "deadline"),
    (ContractError, "contract"),
    (PromptError, "prompt"),
    (SandboxUnavailable, "sandbox"),
    (Diverged, "diverged"),
)


@dataclass(frozen=True)
class Failure:
    """An episode that failed: its task, why, the error in a line and with its traceback; `dropped` where it will not be
    tried again."""

    task: Task
    reason: Reason
    error: str
    traceback: str
    dropped: bool


@dataclass
class Recalled:
    """A sampler that says again what it has said to the same request. Lives as long as one task's episodes."""

    sampler: Sampler
    said: dict[int, tuple[Request, list[Sample]]] = field(default_factory=dict)

    async def sample(self, request: Request) -> list[Sample]:
        asked, samples = self.said.get(request.key, (None, []))
        if asked != request:
            samples = await self.sampler.sample(request)
            self.said[request.key] = request, samples
        return samples

    async def load(self, weights: Weights) -> None:
        await self.sampler.load(weights)

    def close(self) -> None:
        self.sampler.close()


async def grow_many(
    tasks: Sequence[Task], rollout: Rollout, key: int, progress: Callable[[], None] = lambda: None
) -> tuple[list[Tree], list[Failure]]:
    """One tree a task, all at once, and what was dropped. Raises ContractError as soon as more than
    `rollout.limits.failed_share` of them have failed, or once all have."""
    dropped: list[Failure] = []

    def count(failure: Failure) -> None:
        rollout.failed(failure)
        if failure.dropped:
            dropped.append(failure)
            check_share(dropped, len(tasks), rollout.limits.failed_share)

    return await grow_any(tasks, replace(rollout, failed=count), key, progress)


async def grow_any(
    tasks: Sequence[Task],
    rollout: Rollout,
    key: int,
    progress: Callable[[], None] = lambda: None,
    first: int = 0,
) -> tuple[list[Tree], list[Failure]]:
    """`grow_many`, however many fail.

    Noise is keyed by a task's position in the step, counted from `first`: a task that is drawn twice is played twice.
    """

    async def play(position: int, task: Task) -> Tree | Failure:
        try:
            mine = replace(rollout, drawn=rollout.drawn - position)
            return await played(task, mine, random_keys.key(key, position))
        finally:
            progress()

    grown = await together(*(play(position, task) for position, task in enumerate(tasks, first)))
    failures = [outcome for outcome in grown if isinstance(outcome, Failure)]
    return [outcome for outcome in grown if isinstance(outcome, Tree)], failures


async def played(task: Task, rollout: Rollout, key: int) -> Tree | Failure:
    """The tree of a task, or how the last try failed."""
    trying = replace(rollout, team=recalling(rollout.team))
    return await tried(task, rollout, lambda: _tree(task, trying, key))


async def tried(task: Task, rollout: Rollout, work: Callable[[], Awaitable[T]]) -> T | Failure:
    """What comes of the work, tried as often as `rollout` allows, or how the last try failed; each failure is told."""
    retries = rollout.limits.retries
    for retry in range(retries + 1):
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 - the one boundary that turns a failed episode into data
            failure = failure_of(task, error, dropped=retry == retries)
        rollout.failed(failure)
    return failure


async def _tree(task: Task, rollout: Rollout, key: int) -> Tree:
    with closing(Watched.made(rollout.make, task, tuple(rollout.team.assignment), rollout.limits)) as env:
        root = await (rollout.shape.grower or grow)(env, rollout, key)
    if root is None:
        raise ContractError(f"{task.id}: over before anybody acted; tasks must start with someone to act.")
    return Tree(task, root)


def recalling(team: Team) -> Team:
    """The team with samplers that remember."""
    return replace(team, samplers={policy: Recalled(sampler) for policy, sampler in team.samplers.items()})


def failure_of(task: Task, error: Exception, dropped: bool) -> Failure:
    """The record of an error. Raises the error itself where it is not an episode's."""
    ours = isinstance(error, CadreError)
    reason = next((reason for kind, reason in BLAMED if isinstance(error, kind)), None if ours else "raised")
    if reason is None:
        raise error
    line = str(error) if ours else told(error)
    return Failure(task, reason, line, "".join(traceback.format_exception(error)), dropped)


def check_share(failures: Sequence[Failure], tasks: int, share: float) -> None:
    """Raises ContractError, with the first failure, where more of the tasks have failed than may, or all of them."""
    if not failures or (len(failures) <= share * tasks and len(failures) < tasks):
        return
    counts = Counter(failure.reason for failure in failures)
    why = ", ".join(f"{counts[reason]} {reason}" for reason in REASONS if counts[reason])
    many = "Every episode failed" if len(failures) == tasks else f"{len(failures)} of {tasks} episodes failed"
    raise ContractError(
        f"{many} ({why}); expected at most {share:.0%} (episodes.failed_share). The first, of task "
        f"{failures[0].task.id}: {failures[0].error}"
    )
