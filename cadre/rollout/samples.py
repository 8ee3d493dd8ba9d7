"""Several episodes of a task side by side, of which one that fails takes no other with it: for evaluations.

They are one tree while nothing fails. Where that fails each is played on its own, as it would have been beside the
others: from the siblings of the same request, with the same noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cadre import random_keys
from cadre.env import Env
from cadre.rollout.episodes import Failure, check_share, played, recalling
from cadre.rollout.grow import Past, Rollout, as_node, attempt, grow
from cadre.rollout.rounds import together
from cadre.rollout.tree_shape import Shape, independent
from cadre.types import Node, Task, Tree


async def grow_sampled(
    tasks: Sequence[Task], rollout: Rollout, key: int, samples: int, progress: Callable[[], None] = lambda: None
) -> tuple[list[Tree], list[Failure]]:
    """A tree a task with the episodes that did not fail, up to `samples`, and every failure. Raises ContractError as
    soon as more than `rollout.limits.failed_share` of the episodes have failed, or once all have."""
    dropped: list[Failure] = []

    def count(failure: Failure) -> None:
        rollout.failed(failure)
        if failure.dropped:
            dropped.append(failure)
            check_share(dropped, len(tasks) * samples, rollout.limits.failed_share)

    async def play(position: int, task: Task) -> Tree | None:
        mine = replace(rollout, shape=independent(samples), failed=count, drawn=rollout.drawn - position)
        mine = replace(mine, keeps_failures=False)  # an episode that failed is none here: it is counted apart
        try:
            return await of_task(task, mine, random_keys.key(key, position), samples)
        finally:
            progress()

    grown = await together(*(play(position, task) for position, task in enumerate(tasks)))
    return [tree for tree in grown if tree is not None], dropped


async def of_task(task: Task, rollout: Rollout, key: int, samples: int) -> Tree | None:
    """The tree of a task, None where every episode fails."""
    again = replace(rollout, failed=lambda failure: rollout.failed(replace(failure, dropped=False)))
    tree = await played(task, again, key)
    if isinstance(tree, Tree):
        return tree
    recalled = replace(rollout, team=recalling(rollout.team))  # the first to ask is answered for all

    async def alone(number: int) -> Tree | Failure:
        return await played(task, replace(recalled, shape=one_of(samples, number)), key)

    found = [await alone(0), *await together(*(alone(number) for number in range(1, samples)))]
    roots = [one.root for one in found if isinstance(one, Tree)]
    branches = tuple(branch for root in roots for branch in root.branches)
    return Tree(task, replace(roots[0], branches=branches)) if roots else None


@dataclass(frozen=True)
class One(Shape):
    """A shape that tries one sibling alone."""

    number: int = 0

    def choices(self, counts: Mapping[str, int]) -> list[dict[str, int]]:
        return [dict.fromkeys(counts, self.number)]


def one_of(samples: int, number: int) -> Shape:
    """Of `independent(samples)` the episode of that number."""
    beside = independent(samples)
    first = One(beside.name, beside.count, beside.expand, number=number)

    async def grower(env: Env, rollout: Rollout, key: int) -> Node | None:
        tried = await attempt(env, replace(rollout, shape=first), key, Past())
        if tried is None:
            return None
        past = replace(tried.below(0, 1 / samples), path=(number,))
        return as_node(tried, {0: await grow(tried.forks[0], replace(rollout, shape=beside), key, past)}, rollout)

    return replace(beside, grower=grower)
