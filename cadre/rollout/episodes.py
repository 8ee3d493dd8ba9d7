"""The boundary of an episode: retries, failed episodes, and the trees of a step or of an evaluation.

A failed episode is tried again on a fresh environment with the same noise and the same samples, so that an episode
that failed by bad luck ends as if it had not. If it fails every time its branch of the tree fails
(`cadre.rollout.failures`), and a tree all of whose branches fail is dropped. Both are counted, and above a fraction of
failures the whole call stops with the reason. Errors that are not an episode's (an engine that cannot sample, a sandbox
that is not as strict as required) end the call at once.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypeVar

from cadre import random_keys
from cadre.errors import ContractError, PromptError
from cadre.rollout.batching import gather
from cadre.rollout.deadlines import TimedEnv
from cadre.rollout.failures import REASONS, Contain, failure_of, final_branches, set_failure_rewards, without_unrewarded
from cadre.rollout.grow import Rollout, grow
from cadre.team import Sampler, Team, Weights
from cadre.types import BranchFailure, Request, Sample, Task, Tree

T = TypeVar("T")
playing = ContextVar[tuple[Team, asyncio.AbstractEventLoop] | None]("playing", default=None)  # of the growing tree
# Errors that a second try would meet again.
PERMANENT = PromptError
# So many failed branches, and no other, are no chance.
MANY_BRANCHES = 16


@dataclass(frozen=True)
class Failure:
    """A failed episode: its task, the reason, the error in one line and with its traceback.

    `dropped` is True if its tree is dropped. `branches` is the number of branches that failed so in a tree that is
    kept. `lost` is the fraction of the task's tree that was lost: 1 if it is dropped, 0 if it is tried again. `kept` is
    that of the branches' failure.
    """

    task: Task
    reason: str
    error: str
    traceback: str
    dropped: bool
    branches: int = 0
    lost: float = 0.0
    kept: bool = False


@dataclass
class CachingSampler:
    """Return the stored samples of a repeated request. Used while the episodes of one task are retried."""

    sampler: Sampler
    answers: dict[int, tuple[Request, list[Sample]]] = field(default_factory=dict)

    async def sample(self, request: Request) -> list[Sample]:
        stored_request, samples = self.answers.get(request.key, (None, []))
        if stored_request != request:
            samples = await self.sampler.sample(request)
            self.answers[request.key] = request, samples
        return samples

    async def load(self, weights: Weights) -> None:
        await self.sampler.load(weights)

    def close(self) -> None:
        self.sampler.close()


# The trees of several tasks.


async def grow_many(
    tasks: Sequence[Task],
    rollout: Rollout,
    key: int,
    progress: Callable[[], None] = lambda: None,
    first: int = 0,
    stop_early: bool = True,
) -> tuple[list[Tree], list[Failure]]:
    """Return one tree a task, all grown at once, and the failures that dropped one.

    Noise is keyed by a task's position in the step, counted from `first`: a task that is drawn twice is played twice.
    With `stop_early` raises ContractError as soon as more than `rollout.limits.failed_fraction` of the tasks have
    failed, or once all have.
    """
    lost: list[Failure] = []

    def count(failure: Failure) -> None:
        rollout.failed(failure)
        if failure.lost and stop_early:
            lost.append(failure)
            check_failures(lost, len(tasks), rollout.limits.failed_fraction)

    async def play(position: int, task: Task) -> Tree | Failure:
        try:
            team = rollout.team.assigned(rollout.team.seats(position))
            counting = replace(rollout, team=team, failed=count, drawings=rollout.drawings - position)
            return await grow_tree(task, counting, random_keys.key(key, position))
        finally:
            progress()

    outcomes = await gather(*(play(position, task) for position, task in enumerate(tasks, first)))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    return [outcome for outcome in outcomes if isinstance(outcome, Tree)], failures


def check_failures(failures: Sequence[Failure], tasks: int, limit: float) -> None:
    """Raise ContractError, with the first failure, if more than the fraction `limit` of the tasks have failed, or all.

    A tree of which only some branches failed counts by their fraction. Failures that are kept as episodes without
    success (`BranchFailure.kept`) count only if there are many of them and nothing else.
    """
    lost = round(sum(failure.lost for failure in failures), 9)  # a tree's parts add up to a whole
    counted = sum(failure.lost for failure in failures if not failure.kept)
    is_certain = counted > 0 or sum(failure.branches for failure in failures) >= MANY_BRANCHES
    if not lost or (counted <= limit * tasks and not (lost >= tasks and is_certain)):
        return
    by_reason = {reason: sum(failure.lost for failure in failures if failure.reason == reason) for reason in REASONS}
    reasons = ", ".join(f"{count:.3g} {reason}" for reason, count in by_reason.items() if count)
    many = "Every episode failed" if lost >= tasks else f"{lost:.3g} of {tasks} episodes failed"
    raise ContractError(
        f"{many} ({reasons}); expected at most {limit:.0%} (episodes.failed_fraction). The first, of task "
        f"{failures[0].task.id}: {failures[0].error}"
    )


# The tree of one task.


async def retried(task: Task, rollout: Rollout, play: Callable[[Contain], Awaitable[T]]) -> T | Failure:
    """Return what `play` returns, or how its last try failed. Every failed try is reported to `rollout.failed`.

    An error of the episode is met by as many further tries as `rollout` allows, one that another try would meet again
    by none. `play` is given a function that contains such an error in a branch: it returns the branch's failure in the
    last try, and raises the error before that. Errors that are not an episode's pass through.
    """
    for retry in range(rollout.limits.retries + 1):
        is_last = retry == rollout.limits.retries
        try:
            return await play(partial(_contain, is_last))
        except Exception as error:  # noqa: BLE001 - `failure_of` raises what is not an episode's
            reason = failure_of(error)
            is_last |= isinstance(error, PERMANENT)
            lines = "".join(traceback.format_exception(error))
            failure = Failure(task, reason.reason, reason.error, lines, is_last, lost=float(is_last))
        rollout.failed(failure)
        if is_last:
            break
    return failure


def _contain(is_last: bool, error: Exception) -> BranchFailure:
    failure = failure_of(error)
    if not (failure.kept or is_last or isinstance(error, PERMANENT)):
        raise error
    return failure


async def grow_tree(task: Task, rollout: Rollout, key: int) -> Tree | Failure:
    """Return the tree of a task, or how the last try failed. A tree keeps branches that failed if not all have."""
    # The cache lives as long as the retries: a retried episode gets the samples of the first try again.
    samplers = {policy: CachingSampler(sampler) for policy, sampler in rollout.team.samplers.items()}
    caching, reports = replace(rollout, team=replace(rollout.team, samplers=samplers)), list[Failure]()

    async def play(contain: Contain) -> Tree:
        errors: list[tuple[Exception, BranchFailure]] = []

        def noting(error: Exception) -> BranchFailure:
            errors.append((error, contain(error)))
            return errors[-1][1]

        playing.set((caching.team, asyncio.get_running_loop()))
        with closing(TimedEnv.made(rollout.make, task, tuple(rollout.team.assignment), rollout.limits)) as env:
            root = await grow(env, replace(caching, contain=noting), key)
        if root is None:
            raise ContractError(f"{task.id}: over before anybody acted; tasks must start with someone to act.")
        branches = list(final_branches(root))
        failed = [branch.failure for branch in branches if branch.failure is not None]
        if not failed:
            return Tree(task, root)

        # Some branches failed: leave out those that the machine is to blame for, and give the others their reward.
        complete = without_unrewarded(root)
        all_kept = all(failure.kept for failure in failed)
        if (len(failed) == len(branches) and not all_kept) or complete is None:
            raise errors[0][0] if errors else PromptError(failed[0].error)
        for failure in dict.fromkeys(failed):
            error = next((error for error, reason in errors if reason == failure), None)
            trace = failure.error if error is None else "".join(traceback.format_exception(error))
            count, part = failed.count(failure), failed.count(failure) / len(branches)
            reports.append(Failure(task, failure.reason, failure.error, trace, False, count, part, failure.kept))
        return Tree(task, set_failure_rewards(complete, rollout.limits.failure_reward, rollout.alpha, rollout.parts))

    tree = await retried(task, rollout, play)
    for report in reports:
        rollout.failed(report)  # raises if too many have failed
    return tree


# The trees of a training step, with dynamic sampling (arXiv 2503.14476).


@dataclass(frozen=True)
class SampledTrees:
    """All that a step sampled, trees without an advantage included.

    replaced         how many of the tasks, the last ones, were replacements
    retried          how many episodes failed and were tried again
    diverged         how many trees were lost, dropped or tried again, because a program acted differently when
                     restarted; a tree that keeps other branches counts by the fraction of its branches
    failed_branches  how many branches of the trees failed, kept with a reward or left out, by reason
    """

    trees: list[Tree]
    failures: list[Failure]
    replaced: int = 0
    retried: int = 0
    diverged: float = 0.0
    failed_branches: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Replacements:
    """The source of a step's replacement tasks, and the rule by which they are taken.

    tasks    in the order in which they are taken; `replacement_tasks` makes them
    rounds   how often, at most, as many are taken as trees are missing
    useful   returns False for a tree without an advantage: it counts as missing, as a failed one does
    """

    tasks: Iterator[Task]
    rounds: int
    useful: Callable[[Tree], bool]


async def sample_step(
    tasks: Sequence[Task],
    replacements: Replacements,
    rollout: Rollout,
    key: int,
    progress: Callable[[int], Callable[[], None]],
) -> SampledTrees:
    """Return a tree from every task, then from replacement tasks. `progress` is called with each round's task count."""
    reported: list[Failure] = []

    def report(failure: Failure) -> None:
        reported.append(failure)
        rollout.failed(failure)

    reporting = replace(rollout, failed=report)
    trees, failures = await grow_many(tasks, reporting, key, progress(len(tasks)))
    missing, replaced, new_trees = len(tasks), 0, trees
    for _ in range(replacements.rounds):
        missing -= sum(replacements.useful(tree) for tree in new_trees)
        more = list(islice(replacements.tasks, missing))
        if not more:
            break
        position = len(tasks) + replaced
        new_trees, failed = await grow_many(more, reporting, key, progress(len(more)), position, stop_early=False)
        trees, failures, replaced = trees + new_trees, failures + failed, replaced + len(more)
        lost = [failure for failure in reported if failure.lost]
        check_failures(lost, len(tasks) + replaced, rollout.limits.failed_fraction)

    branches: Counter[str] = Counter()
    for failure in reported:
        branches[failure.reason] += failure.branches
    return SampledTrees(
        trees,
        failures,
        replaced,
        retried=sum(not (failure.dropped or failure.branches) for failure in reported),
        diverged=sum(failure.lost or 1.0 for failure in reported if failure.reason == "diverged"),
        failed_branches={reason: count for reason, count in branches.items() if count},
    )


def replacement_tasks(tasks: Sequence[Task], excluded: Sequence[Task], step: int, seed: int) -> Iterator[Task]:
    """Yield the tasks of the split that are not among the step's own, in an order drawn from the seed and the step. No
    task replaces two. The tasks that the next steps begin with do not change."""
    excluded_ids = {task.id for task in excluded}
    order = random_keys.generator(seed, "replacements", step).sample(range(len(tasks)), len(tasks))
    yield from (task for index in order if (task := tasks[index]).id not in excluded_ids)
