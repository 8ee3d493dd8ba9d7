"""The trees of one step, with replacement tasks for those that teach nothing (dynamic sampling, arXiv 2503.14476).

Replacement tasks come in an order of the step's own, drawn from the run's seed and the step alone; the tasks of the
step are not among them, and no task replaces two. Which tasks the next steps begin with does not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from cadre import random_keys
from cadre.rollout.episodes import Failure, check_share, grow_any, grow_many
from cadre.rollout.grow import Rollout
from cadre.types import Task, Tree


@dataclass(frozen=True)
class Sampled:
    """All that a step sampled, what taught nothing included; the last `replaced` of the tasks were replacements.
    `retried` episodes failed and were tried again; `diverged` counts those, dropped or tried again, whose program asked
    for something else when it was started again. `failed_branches` counts, by reason, those of the trees, whether they
    were kept with a reward or left out."""

    trees: list[Tree]
    failures: list[Failure]
    replaced: int = 0
    retried: int = 0
    diverged: int = 0
    failed_branches: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Replacements:
    """Where a step's replacement tasks come from, and when they are taken.

    tasks    in the order in which they are taken; `replacement_tasks` makes them
    rounds   how often, at most, as many are taken as there are trees missing
    useful   whether a tree teaches something; one that does not is missing, and so is one that failed
    """

    tasks: Iterator[Task]
    rounds: int
    useful: Callable[[Tree], bool]


async def sample(
    tasks: Sequence[Task],
    replacements: Replacements,
    rollout: Rollout,
    key: int,
    progress: Callable[[int], Callable[[], None]],
) -> Sampled:
    """A tree from every task, then from replacement tasks. `progress` is told the number of tasks of each round."""
    told: list[Failure] = []

    def tell(failure: Failure) -> None:
        told.append(failure)
        rollout.failed(failure)

    counted = replace(rollout, failed=tell)
    trees, failures = await grow_many(tasks, counted, key, progress(len(tasks)))
    missing, replaced = len(tasks), 0
    fresh = trees
    for _ in range(replacements.rounds):
        missing -= sum(replacements.useful(tree) for tree in fresh)
        more = list(islice(replacements.tasks, missing))
        if not more:
            break
        fresh, failed = await grow_any(more, counted, key, progress(len(more)), first=len(tasks) + replaced)
        trees, failures, replaced = trees + fresh, failures + failed, replaced + len(more)
        lost = [failure for failure in told if failure.lost]
        check_share(lost, len(tasks) + replaced, rollout.limits.failed_share)
    retried = sum(not (failure.dropped or failure.branches) for failure in told)
    diverged = sum(failure.reason == "diverged" for failure in told)
    branches: Counter[str] = Counter()
    for failure in told:
        branches[failure.reason] += failure.branches
    return Sampled(trees, failures, replaced, retried, diverged, {reason: n for reason, n in branches.items() if n})


def replacement_tasks(tasks: Sequence[Task], drawn: Sequence[Task], step: int, seed: int) -> Iterator[Task]:
    """The tasks of the split that are not among those `drawn` for the step, in the order of the step."""
    taken = {task.id for task in drawn}
    order = random_keys.generator(seed, "replacements", step).sample(range(len(tasks)), len(tasks))
    yield from (task for index in order if (task := tasks[index]).id not in taken)
