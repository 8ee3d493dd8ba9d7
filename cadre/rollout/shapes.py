"""The tree shapes: how many completions a role samples, which joint actions are tried, which branches continue.

`SHAPES` is the table of names. Each function takes the completions a decision `k` and, by keyword, the options that
mean something to it; a file of the user's makes a `Shape` in the same way. `branch` brings a grower of its own, made of
the steps of `cadre.rollout.grow`: expand a decision, select branches, recurse.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from cadre import random_keys
from cadre.declare import declared
from cadre.env import Env
from cadre.errors import ConfigError
from cadre.rollout.batching import gather
from cadre.rollout.failures import contained
from cadre.rollout.grow import Expansion, Path, Rollout, close_unselected, expand, make_node
from cadre.rollout.grow import Joint as Joint
from cadre.rollout.grow import Select as Select
from cadre.rollout.grow import Shape as Shape
from cadre.statistics import is_constant, is_rounding
from cadre.types import BranchFailure, Node, Sample

# Completions a decision: one number, one a turn (the last repeats), or either by role.
PerTurn = int | tuple[int, ...]
Siblings = PerTurn | Mapping[str, PerTurn]
# Returns a priority of a decision, given the samples drawn there: the highest are sampled again.
Priority = Callable[[Mapping[str, Sequence[Sample]], random.Random], float]


def every_decision(k: Siblings) -> Callable[[str, int, int], int]:
    """Return a shape's `count` that samples at every decision: `k` for all, by turn (the last repeats), or by role."""

    def count(role: str, turn: int, depth: int) -> int:
        numbers = k[role] if isinstance(k, Mapping) else k
        return numbers if isinstance(numbers, int) else numbers[min(turn, len(numbers) - 1)]

    return count


def independent(k: Siblings) -> Shape:
    """Return the shape of `k` whole episodes side by side: they part at the first decision and never branch again."""
    if not isinstance(k, int):
        raise ConfigError(
            f"algorithm.k: got {k} with shape independent, where whole episodes are played side by side; expected one "
            "number. Set it, or a shape that samples siblings at every decision."
        )
    return Shape(
        f"independent({k})",
        lambda role, turn, depth: k if depth == 0 else 1,
        _all,
        selects="all",
        tree_weight="by_sample",
    )


def greedy(k: Siblings, select: Select | None = None, lookahead: int = 0) -> Shape:
    """Return the shape that tries `k` completions at every decision and continues one (AT-GRPO, arXiv 2510.11062).

    `select` chooses it, by default the best; one that continues several declares so (`cadre.declare`). With `lookahead`
    what follows is tried too where a decision itself rewards nobody (`grow.select`).
    """
    select = select or _argmax
    return Shape(
        f"greedy({k})",
        every_decision(k),
        select,
        lookahead=lookahead,
        selects=declared(select, "selects"),
        tree_weight="by_decision",
    )


def full(k: Siblings, joint: Joint = "aligned", stop_at: float | None = None) -> Shape:
    """Return the shape that continues every joint action (MAGRPO, arXiv 2508.04652, section 4).

    There are k^T leaves aligned and k^(nT) crossed, for T decisions of n roles. Below a node whose
    branches' mean score passes `stop_at` the tree grows no further.
    """

    def select(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
        if stop_at is None:
            return range(len(scores))
        mean = fmean(scores)
        passes = mean > stop_at and not is_rounding(mean - stop_at, max(abs(mean), abs(stop_at)))
        return () if passes else range(len(scores))

    return Shape(f"full({k}, {joint})", every_decision(k), select, joint, selects="all" if stop_at is None else None)


def branch(
    k: Siblings, where: Priority | None = None, decisions: int = 1, siblings: int = 1, rounds: int = 1, budget: int = 0
) -> Shape:
    """Return the shape of `k` whole episodes that branch afterwards.

    They do so at random (Tree-GRPO, arXiv 2509.21240), or where entropy is high (ARPO, 2507.19849), under a budget of
    tokens.

    where      ranks the decisions of an episode, by default by `entropy`; the first one, which has `k` completions
               already, is never chosen
    decisions  how many are sampled again a round, in each episode that the tree began with and its branches
    siblings   how many more completions each of them gets
    rounds     how often that is done
    budget     tokens of a tree after which no further round begins; 0 for no bound

    The choice depends on the samples and the tree's key alone, so equal seeds give equal trees.
    """
    if not isinstance(k, int):
        raise ConfigError(
            f"algorithm.k: got {k} with shape branch, which begins with whole episodes side by side; expected one "
            "number. Set it, and algorithm.siblings for how many more a chosen decision gets."
        )
    priority = where or entropy

    async def grower(env: Env, rollout: Rollout, key: int) -> Node | None:
        expansion = await expand_all(env, rollout, key, Path())
        if expansion is None:
            return None
        root = Subtree(expansion)
        await play_branches(root, range(len(expansion.joint_actions)), rollout, key)
        for number in range(rounds):
            if 0 < budget <= root.count_tokens():
                break
            generator, chosen = random_keys.generator(key, "branch", number), []
            for episode in root.children.values():
                ranked = [(priority(subtree.expansion.samples, generator), subtree) for subtree in episode.decisions()]
                # The sort is stable: of equal priorities the earlier decision comes first.
                ranked.sort(key=lambda pair: -pair[0])
                chosen += [subtree for _, subtree in ranked[:decisions]]
            await gather(*(sample_more(subtree, siblings, rollout, key) for subtree in chosen))
        return set_weights(make_tree(root, rollout), 1.0)

    return Shape(f"branch({k})", lambda role, turn, depth: k if depth == 0 else 1, _all, grower=grower, selects="all")


SHAPES: dict[str, Callable[..., Shape]] = {"independent": independent, "greedy": greedy, "full": full, "branch": branch}


def _all(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return range(len(scores))


def _argmax(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    """Return the best branch. Ties go to a random one of them: the first would favour no skill, only an index."""
    best = max(scores)
    ties = [n for n, score in enumerate(scores) if is_rounding(best - score, max(abs(best), abs(score)))]
    return [generator.choice(ties)]


def _sample(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    """Return a branch drawn in proportion to its score above the worst, uniformly if all are equal."""
    worst = min(scores)
    weights = None if is_constant(scores) else [score - worst for score in scores]
    return generator.choices(range(len(scores)), weights)


def _random(scores: Sequence[float], generator: random.Random) -> Sequence[int]:
    return [generator.randrange(len(scores))]


def success_label(shape: Shape, roles: Collection[str]) -> str:
    """Return "best-of-8" where every decision selects the best of 8 branches: the success of a training step is then
    that of the selected path, and higher than the policy's. Return "success" for other shapes, and for one branch."""
    if shape.select is not _argmax:
        return "success"
    # A list of numbers a turn is rarely longer; a range says that turns or roles differ.
    counts = {shape.count(role, turn, turn) for role in roles for turn in range(8)}
    fewest, largest = min(counts, default=1), max(counts, default=1)
    if largest == 1:
        return "success"
    return f"best-of-{largest}" if fewest == largest else f"best-of-{fewest}-to-{largest}"


# The rules by which a greedy shape selects the branch to continue: the setting `algorithm.select`.
SELECTIONS: dict[str, Select] = {"argmax": _argmax, "sample": _sample, "random": _random}


def count_leaves(shape: Shape, acting: Sequence[Sequence[str]], unrewarded: Collection[int] = ()) -> int:
    """Return the widest that a tree can grow, given the roles that act at each decision of an episode.

    A shape that does not declare how many branches it continues counts as one that continues all. `unrewarded` are the
    numbers of the decisions that reward nobody, so that the shape looks ahead.
    """
    widest, selected, width, fans = 1, 1, 1, 0
    turns: Counter[str] = Counter()
    for depth, roles in enumerate(acting):
        branches = len(shape.joint_actions({role: shape.count(role, turns[role], depth) for role in roles}))
        widest = max(widest, width * branches)
        selected *= min(shape.selects, branches) if isinstance(shape.selects, int) else branches
        if not shape.lookahead or depth not in unrewarded:
            width, fans = selected, 0
        elif fans < shape.lookahead:
            width, fans = width * branches, fans + 1
        turns.update(roles)
    return widest


# ---- Branching: the decisions of whole episodes are sampled again


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
    children = [branch.child and set_weights(branch.child, weight / len(node.branches)) for branch in node.branches]
    branches = tuple(replace(branch, child=child) for branch, child in zip(node.branches, children, strict=True))
    return replace(node, weight=weight, branches=branches)
