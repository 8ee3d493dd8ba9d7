"""Shapes that sample whole episodes first: some of their decisions are then sampled again, or one of several is played.

They are made of the steps of `cadre.rollout.grow`: expand a decision, select branches, recurse.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from cadre import random_keys
from cadre.env import Env
from cadre.rollout.batching import gather
from cadre.rollout.failures import contained
from cadre.rollout.grow import (
    Expansion,
    Path,
    Rollout,
    Shape,
    close_unselected,
    expand,
    grow,
    make_node,
)
from cadre.types import BranchFailure, Node, Sample

# Returns a priority of a decision, given the samples drawn there: the highest are sampled again.
Priority = Callable[[Mapping[str, Sequence[Sample]], random.Random], float]


def entropy(samples: Mapping[str, Sequence[Sample]], generator: random.Random) -> float:
    """Return the mean negative log-probability per completion token, in nats: the policies' entropy, estimated."""
    completions = [sample for siblings in samples.values() for sample in siblings if sample.logprobs]
    return fmean(-fmean(sample.logprobs) for sample in completions) if completions else 0.0


def uniform(samples: Mapping[str, Sequence[Sample]], generator: random.Random) -> float:
    """Return a random priority, so that all decisions are equally likely."""
    return generator.random()


WHERE: dict[str, Priority] = {"entropy": entropy, "random": uniform}


@dataclass
class Subtree:
    """A decision that may be sampled again, with the decisions after its branches. Used while its tree grows."""

    expansion: Expansion
    children: dict[int, Subtree] = field(default_factory=dict)

    def decisions(self) -> Iterator[Subtree]:
        """Yield this decision and all that follow it."""
        yield self
        for child in self.children.values():
            yield from child.decisions()

    def count_tokens(self) -> int:
        """Return the number of tokens sampled here and below."""
        completions = (samples for subtree in self.decisions() for samples in subtree.expansion.samples.values())
        return sum(len(sample.token_ids) for samples in completions for sample in samples)


def branching_grower(
    priority: Priority, decisions: int, siblings: int, rounds: int, budget: int
) -> Callable[[Env, Rollout, int], Awaitable[Node | None]]:
    """Return a grower of whole episodes that branch afterwards, for `cadre.rollout.shapes.branch`.

    priority   ranks the decisions of an episode
    decisions  how many are sampled again a round, in each episode that the tree began with and its branches
    siblings   how many more completions each of them gets
    rounds     how often that is done
    budget     tokens of a tree after which no further round begins; 0 for no bound

    The choice depends on the samples and the tree's key alone, so equal seeds give equal trees.
    """

    async def grow_branching(env: Env, rollout: Rollout, key: int) -> Node | None:
        expansion = await expand_all(env, rollout, key, Path())
        if expansion is None:
            return None
        root = Subtree(expansion)
        await play_branches(root, range(len(expansion.joint_actions)), rollout, key)
        for number in range(rounds):
            if 0 < budget <= root.count_tokens():
                break
            generator, chosen = random_keys.generator(key, "branch", number), []
            # The first decision has its completions already and is never chosen.
            for episode in root.children.values():
                ranked = [(priority(subtree.expansion.samples, generator), subtree) for subtree in episode.decisions()]
                # The sort is stable: of equal priorities the earlier decision comes first.
                ranked.sort(key=lambda pair: -pair[0])
                chosen += [subtree for _, subtree in ranked[:decisions]]
            await gather(*(sample_more(subtree, siblings, rollout, key) for subtree in chosen))
        return set_weights(make_tree(root, rollout), 1.0)

    return grow_branching


async def expand_all(env: Env, rollout: Rollout, key: int, path: Path) -> Expansion | None:
    """Return the expansion of a decision of which every branch continues."""
    expansion = await expand(env, rollout, key, path)
    if expansion is not None:
        expansion = replace(expansion, selected=range(len(expansion.joint_actions)))
        close_unselected(expansion)
    return expansion


async def play_branches(subtree: Subtree, indices: Sequence[int], rollout: Rollout, key: int) -> None:
    """Play these branches of the decision to the end, with one completion a decision."""

    async def play(index: int) -> Subtree | None:
        expansion = subtree.expansion
        following = await expand_all(expansion.forks[index], rollout, key, expansion.path_below(index, 1.0))
        if following is None:
            return None
        child = Subtree(following)
        await play_branches(child, range(len(following.joint_actions)), rollout, key)
        return child

    indices = [index for index in indices if index not in subtree.expansion.failures]
    results = await gather(*(contained(play(index), rollout.contain) for index in indices))
    for index, result in zip(indices, results, strict=True):
        if isinstance(result, BranchFailure):
            failures = {**subtree.expansion.failures, index: result}
            subtree.expansion = replace(subtree.expansion, failures=failures)
        elif result is not None:
            subtree.children[index] = result


async def sample_more(subtree: Subtree, siblings: int, rollout: Rollout, key: int) -> None:
    """Add completions to a decision, and play each to the end."""
    expansion, shift = subtree.expansion, len(subtree.expansion.joint_actions)
    wider = replace(rollout, shape=replace(rollout.shape, count=lambda role, turn, depth: siblings))
    siblings_key = random_keys.key(key, "siblings", shift)
    more = await contained(expand_all(expansion.env, wider, siblings_key, expansion.path), rollout.contain)
    if isinstance(more, BranchFailure):
        return
    assert more is not None
    new_actions = [{role: index + shift for role, index in action.items()} for action in more.joint_actions]
    subtree.expansion = replace(
        expansion,
        samples={role: (*samples, *more.samples[role]) for role, samples in expansion.samples.items()},
        joint_actions=[*expansion.joint_actions, *new_actions],
        forks=[*expansion.forks, *more.forks],
        rewards=[*expansion.rewards, *more.rewards],
        failures={**expansion.failures, **{index + shift: failure for index, failure in more.failures.items()}},
        selected=range(shift + len(new_actions)),
        drawings=(*expansion.drawings, *more.drawings[1:]),
        ablated=(*expansion.ablated, *more.ablated),
    )
    await play_branches(subtree, range(shift, shift + siblings), rollout, key)


def make_tree(subtree: Subtree, rollout: Rollout) -> Node:
    """Return the record of a decision and all below it."""
    children = {index: make_tree(child, rollout) for index, child in subtree.children.items()}
    return make_node(subtree.expansion, children, rollout)


def set_weights(node: Node, weight: float) -> Node:
    """Return the tree with the weight of each decision, 1/n of what is above it where n branches lie side by side."""
    weight_each = weight / len(node.branches)
    branches = tuple(
        replace(branch, child=None if branch.child is None else set_weights(branch.child, weight_each))
        for branch in node.branches
    )
    return replace(node, weight=weight, branches=branches)


# Playing one of several samples.


@dataclass(frozen=True)
class OneSampleShape(Shape):
    """A shape that draws all completions of the first decision and tries only those of one number."""

    number: int = 0

    def joint_actions(self, counts: Mapping[str, int]) -> list[dict[str, int]]:
        return [dict.fromkeys(counts, self.number)]


def one_sample(shape: Shape, samples: int, number: int) -> Shape:
    """Return a shape that plays episode `number` of `independent(samples)`, which is `shape`, on its own.

    Its random numbers are those of that episode, so it is played as it would have been beside the others.
    """
    first = OneSampleShape(shape.name, shape.count, shape.select, number=number)

    async def grower(env: Env, rollout: Rollout, key: int) -> Node | None:
        expansion = await expand_all(env, replace(rollout, shape=first), key, Path())
        if expansion is None:
            return None
        path = replace(expansion.path_below(0, 1 / samples), branches=(number,))
        child = await grow(expansion.forks[0], replace(rollout, shape=shape), key, path)
        return make_node(expansion, {0: child}, rollout)

    return replace(shape, grower=grower)
