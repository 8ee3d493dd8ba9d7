"""Whole episodes first, then more siblings at chosen decisions of them, each played to its end: `branch`.

What is chosen follows from what was sampled before and from the tree's key, so equal seeds give equal trees.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from cadre import random_keys
from cadre.env import Env
from cadre.errors import ConfigError
from cadre.rollout.failed_branches import contained
from cadre.rollout.grow import Past, Rollout, Tried, as_node, attempt
from cadre.rollout.rounds import together
from cadre.rollout.tree_shape import Shape, Siblings
from cadre.types import BranchFailure, Node, Sample

# How much a decision, given what was sampled there, is worth sampling from again: the highest are chosen.
Where = Callable[[Mapping[str, Sequence[Sample]], random.Random], float]


def entropy(samples: Mapping[str, Sequence[Sample]], generator: random.Random) -> float:
    """Nats a token of what was said: the entropy of the policies there, estimated by their own samples."""
    drawn = [sample for siblings in samples.values() for sample in siblings if sample.logprobs]
    return fmean(-fmean(sample.logprobs) for sample in drawn) if drawn else 0.0


def uniform(samples: Mapping[str, Sequence[Sample]], generator: random.Random) -> float:
    """Every decision alike."""
    return generator.random()


WHERE: dict[str, Where] = {"entropy": entropy, "random": uniform}


@dataclass(frozen=True)
class Branching:
    """Where the episodes of a tree branch.

    where     the worth of a decision, of which the highest are chosen
    decisions how many are chosen a round, in each episode that the tree began with and its branches
    siblings  how many more are sampled at each of them
    rounds    how often that is done
    budget    tokens of a tree after which no further round begins; 0 for no bound
    """

    where: Where
    decisions: int = 1
    siblings: int = 1
    rounds: int = 1
    budget: int = 0


@dataclass
class Growing:
    """A decision that may be sampled from again, with those below it by the number of their branch. Lives as long as
    its tree grows."""

    tried: Tried
    children: dict[int, Growing] = field(default_factory=dict)

    def below(self) -> Iterator[Growing]:
        """This decision and all that follow it."""
        yield self
        for child in self.children.values():
            yield from child.below()

    def tokens(self) -> int:
        """How many were sampled here and below."""
        drawn = (siblings for growing in self.below() for siblings in growing.tried.samples.values())
        return sum(len(sample.token_ids) for siblings in drawn for sample in siblings)


def branch(
    k: Siblings,
    where: Where | None = None,
    decisions: int = 1,
    siblings: int = 1,
    rounds: int = 1,
    budget: int = 0,
) -> Shape:
    """`k` whole episodes, and then branches from their decisions: at random (Tree-GRPO, arXiv 2509.21240), or where
    entropy is high (ARPO, 2507.19849), under a budget of tokens. The first decision, which has `k` siblings as it is,
    is never chosen."""
    if not isinstance(k, int):
        raise ConfigError(
            f"algorithm.k: got {k} with shape branch, which begins with whole episodes side by side; expected one "
            "number. Set it, and algorithm.siblings for how many more a chosen decision gets."
        )
    plan = Branching(where or entropy, decisions, siblings, rounds, budget)

    async def grower(env: Env, rollout: Rollout, key: int) -> Node | None:
        return await grow_branches(env, rollout, key, plan)

    return Shape(f"branch({k})", lambda role, turn, depth: k if depth == 0 else 1, _all, grower=grower)


async def grow_branches(env: Env, rollout: Rollout, key: int, plan: Branching) -> Node | None:
    """The tree of `branch`, or None where the episode is over before anybody acts."""
    first = await attempt(env, rollout, key, Past())
    if first is None:
        return None
    root = await played_out(first, range(len(first.choices)), rollout, key)
    for number in range(plan.rounds):
        if 0 < plan.budget <= root.tokens():
            break
        places = chosen(root, plan, random_keys.generator(key, "branch", number))
        await together(*(sample_more(place, plan.siblings, rollout, key) for place in places))
    return shared(finished(root, rollout), 1.0)


async def played_out(tried: Tried, branches: Sequence[int], rollout: Rollout, key: int) -> Growing:
    """The decision with what follows those branches, each to its end with one sample a decision."""
    growing = Growing(tried)
    await play_branches(growing, branches, rollout, key)
    return growing


async def play_branches(growing: Growing, branches: Sequence[int], rollout: Rollout, key: int) -> None:
    """Play those branches of the decision to their end."""

    async def child(index: int) -> Growing | None:
        tried = await attempt(growing.tried.forks[index], rollout, key, growing.tried.below(index, 1.0))
        return None if tried is None else await played_out(tried, range(len(tried.choices)), rollout, key)

    branches = [index for index in branches if index not in growing.tried.failures]
    grown = await together(*(contained(child(index), rollout.contain) for index in branches))
    for index, below in zip(branches, grown, strict=True):
        if isinstance(below, BranchFailure):
            growing.tried = replace(growing.tried, failures={**growing.tried.failures, index: below})
        elif below is not None:
            growing.children[index] = below


def chosen(root: Growing, plan: Branching, generator: random.Random) -> list[Growing]:
    """The decisions that are sampled from again: the highest of each episode that the tree began with."""
    places = []
    for first in root.children.values():
        ranked = [(plan.where(growing.tried.samples, generator), growing) for growing in first.below()]
        ranked.sort(key=lambda pair: -pair[0])
        places += [growing for _, growing in ranked[: plan.decisions]]
    return places


async def sample_more(growing: Growing, siblings: int, rollout: Rollout, key: int) -> None:
    """Add so many siblings to a decision, and play each to its end."""
    before, shape = growing.tried, rollout.shape
    there = len(before.choices)
    wider = replace(rollout, shape=replace(shape, count=lambda role, turn, depth: siblings))
    again = attempt(before.env, wider, random_keys.key(key, "siblings", there), before.past)
    more = await contained(again, rollout.contain)
    if isinstance(more, BranchFailure):
        return
    assert more is not None
    growing.tried = joined(before, more)
    await play_branches(growing, range(there, there + siblings), rollout, key)


def joined(before: Tried, more: Tried) -> Tried:
    """One decision of two that were sampled in the same state."""
    shift = len(before.choices)
    return replace(
        before,
        samples={role: (*siblings, *more.samples[role]) for role, siblings in before.samples.items()},
        choices=[*before.choices, *({role: index + shift for role, index in one.items()} for one in more.choices)],
        forks=[*before.forks, *more.forks],
        rewards=[*before.rewards, *more.rewards],
        picked=range(shift + len(more.choices)),
        drawings=(*before.drawings, *more.drawings[1:]),
        failures={**before.failures, **{index + shift: failure for index, failure in more.failures.items()}},
    )


def finished(growing: Growing, rollout: Rollout) -> Node:
    """The record of a decision and all below it."""
    children = {index: finished(child, rollout) for index, child in growing.children.items()}
    return as_node(growing.tried, children, rollout)


def shared(node: Node, share: float) -> Node:
    """The node with what it and those below it count beside what is played side by side."""
    each = share / len(node.branches)
    branches = tuple(
        replace(branch, child=None if branch.child is None else shared(branch.child, each)) for branch in node.branches
    )
    return replace(node, weight=share, branches=branches)


def _all(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return range(len(scores))
