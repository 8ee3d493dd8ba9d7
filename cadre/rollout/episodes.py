"""The boundary of an episode: the one place where a failure becomes data.

A failed episode is tried again on a fresh environment with the same noise; what its roles said before is said again,
not drawn again, so that an episode that failed by bad luck ends as if it had not. Where it fails each time its branch
of the tree fails (`cadre.rollout.failed_branches`), and a tree all of whose branches fail is dropped. Both are counted,
and past a share of failures the whole call stops with the reason. Only what an episode can be blamed for is taken so:
an engine that cannot sample, or a sandbox that is not as strict as asked, ends the call at once.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cadre import random_keys
from cadre.errors import ContractError, PromptError
from cadre.rollout import failed_branches
from cadre.rollout.failed_branches import REASONS, ends, pay_failures, without_unrewarded
from cadre.rollout.grow import Rollout, grow
from cadre.rollout.rounds import together
from cadre.rollout.watched import Watched
from cadre.team import Sampler, Team, Weights
from cadre.types import BranchFailure, Request, Sample, Task, Tree

T = TypeVar("T")
# A second try meets the same.
REPEATS = PromptError


@dataclass(frozen=True)
class Failure:
    """An episode that failed: its task, why, the error in a line and with its traceback; `dropped` where its tree is.

    `branches` is how many failed so in a tree that is kept. `lost` is the fraction of the task's tree that was lost
    with it: 1 where it is dropped, 0 where it is tried again.
    """

    task: Task
    reason: str
    error: str
    traceback: str
    dropped: bool
    branches: int = 0
    lost: float = 0.0


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
    lost: list[Failure] = []

    def count(failure: Failure) -> None:
        rollout.failed(failure)
        if failure.lost:
            lost.append(failure)
            check_share(lost, len(tasks), rollout.limits.failed_share)

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
    outcome = await tried(task, rollout, lambda last: _tree(task, trying, key, last))
    if isinstance(outcome, Failure):
        return outcome
    tree, branches = outcome
    for failure in branches:
        rollout.failed(failure)
    return tree


async def tried(task: Task, rollout: Rollout, work: Callable[[bool], Awaitable[T]]) -> T | Failure:
    """What comes of the work, tried as often as `rollout` allows, or how the last try failed; each failure is told. The
    work is told whether the try is the last."""
    retries = rollout.limits.retries
    for retry in range(retries + 1):
        last = retry == retries
        try:
            return await work(last)
        except Exception as error:  # noqa: BLE001 - the one boundary that turns a failed episode into data
            last |= isinstance(error, REPEATS)
            failure = failure_of(task, error, dropped=last)
        rollout.failed(failure)
        if last:
            break
    return failure


async def _tree(task: Task, rollout: Rollout, key: int, last: bool) -> tuple[Tree, list[Failure]]:
    """The tree of a task and its failed branches, which it may have where this is the `last` try, or where another
    would meet the same. Raises what failed first where every branch fails."""
    errors: list[tuple[Exception, BranchFailure]] = []

    def contain(error: Exception) -> BranchFailure:
        failure = failed_branches.failure_of(error)
        if not (last or isinstance(error, REPEATS)):
            raise error
        errors.append((error, failure))
        return failure

    if rollout.keeps_failures:
        rollout = replace(rollout, contain=contain)
    with closing(Watched.made(rollout.make, task, tuple(rollout.team.assignment), rollout.limits)) as env:
        root = await (rollout.shape.grower or grow)(env, rollout, key)
    if root is None:
        raise ContractError(f"{task.id}: over before anybody acted; tasks must start with someone to act.")
    endings = list(ends(root))
    failed = [branch.failure for branch in endings if branch.failure is not None]
    if not failed:
        return Tree(task, root), []
    kept = without_unrewarded(root)
    if len(failed) == len(endings) or kept is None:
        raise errors[0][0] if errors else PromptError(failed[0].error)
    failures = []
    for failure in dict.fromkeys(failed):
        error = next((error for error, known in errors if known == failure), None)
        trace = failure.error if error is None else "".join(traceback.format_exception(error))
        number = failed.count(failure)
        lost = number / len(endings)
        failures.append(Failure(task, failure.reason, failure.error, trace, dropped=False, branches=number, lost=lost))
    return Tree(task, pay_failures(kept, rollout.limits.failure_reward, rollout.alpha)), failures


def recalling(team: Team) -> Team:
    """The team with samplers that remember."""
    return replace(team, samplers={policy: Recalled(sampler) for policy, sampler in team.samplers.items()})


def failure_of(task: Task, error: Exception, dropped: bool) -> Failure:
    """The record of an error. Raises the error itself where it is not an episode's."""
    failure, trace = failed_branches.failure_of(error), "".join(traceback.format_exception(error))
    return Failure(task, failure.reason, failure.error, trace, dropped, lost=float(dropped))


def check_share(failures: Sequence[Failure], tasks: int, share: float) -> None:
    """Raises ContractError, with the first failure, where more of the tasks have failed than may, or all of them. A
    tree of which only some branches failed counts by their fraction."""
    lost = sum(failure.lost for failure in failures)
    if not lost or (lost <= share * tasks and lost < tasks):
        return
    parts = {reason: sum(failure.lost for failure in failures if failure.reason == reason) for reason in REASONS}
    why = ", ".join(f"{part:.3g} {reason}" for reason, part in parts.items() if part)
    many = "Every episode failed" if lost == tasks else f"{lost:.3g} of {tasks} episodes failed"
    raise ContractError(
        f"{many} ({why}); expected at most {share:.0%} (episodes.failed_share). The first, of task "
        f"{failures[0].task.id}: {failures[0].error}"
    )
