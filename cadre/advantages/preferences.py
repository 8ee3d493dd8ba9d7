"""Trees and preferences: pairs of siblings that earned differently, and trees that a reward model pays."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cadre.advantages.by_preference import unequal_branches
from cadre.advantages.credit import Credit
from cadre.advantages.group_relative import valued
from cadre.advantages.samples import ScoredSample, samples_of
from cadre.data.preferences import Pair
from cadre.envs.joint_policy import joint_prompt, joint_text
from cadre.rollout import walk
from cadre.rounding import is_rounding
from cadre.team import RewardModel
from cadre.types import Branch, Node, Reward, Tree


def pairs_of(trees: Sequence[Tree], credit: Credit) -> list[Pair]:
    """All pairs of siblings that earned differently by the returns of `credit`, each pair of texts once a node."""
    siblings: dict[tuple[int, tuple[int, ...], str], list[ScoredSample]] = defaultdict(list)
    for scored in valued(samples_of(trees), credit):
        siblings[scored.tree_sample.tree, scored.tree_sample.path, scored.tree_sample.role].append(scored)
    return [pair for group in siblings.values() for pair in dict.fromkeys(_pairs(group))]


def _pairs(siblings: Sequence[ScoredSample]) -> Iterator[Pair]:
    for first, second in itertools.combinations(siblings, 2):
        best, worst = (first, second) if first.returns > second.returns else (second, first)
        size = max(abs(best.returns), abs(worst.returns), best.size, worst.size)
        if not is_rounding(best.returns - worst.returns, size) and best.sample.text != worst.sample.text:
            prompt = best.tree_sample.node.observations[best.tree_sample.role].messages
            yield Pair(prompt, best.sample.text, worst.sample.text)


def joint_pairs_of(trees: Sequence[Tree], credit: Credit) -> list[Pair]:
    """All pairs of joint actions of one decision after which the team earned differently (MAGRPO's joint reward model,
    arXiv 2508.04652): what all who act see, in one prompt, and what they say, each below a mark of its name."""
    return [
        pair for tree in trees for node in walk.nodes(tree.root) for pair in dict.fromkeys(_joint_pairs(node, credit))
    ]


def _joint_pairs(node: Node, credit: Credit) -> Iterator[Pair]:
    prompt = joint_prompt(node.observations)
    for branches in unequal_branches(node, credit):
        better, worse = (said_together(node, branch) for branch in branches)
        if better != worse:
            yield Pair(prompt, better, worse)


def said_together(node: Node, branch: Branch) -> str:
    """A joint action as one text."""
    return joint_text({role: node.samples[role][index].text for role, index in branch.choice.items()})


def jointly_scored_by(trees: Sequence[Tree], model: RewardModel) -> list[Tree]:
    """The trees with the model's score of each joint action as the team's reward, in place of the environment's."""
    asked = [
        (joint_prompt(node.observations), said_together(node, branch))
        for tree in trees
        for node in walk.nodes(tree.root)
        for branch in node.branches
    ]
    scores = iter(model.score([prompt for prompt, _ in asked], [text for _, text in asked]))
    return [replace(tree, root=_paid_together(tree.root, scores)) for tree in trees]


def _paid_together(node: Node, scores: Iterator[float]) -> Node:
    """The node and what is below it with the scores as the team's rewards, taken in the order of `walk.nodes`."""
    paid = [next(scores) for _ in node.branches]
    branches = tuple(
        replace(
            branch,
            reward=Reward(score, {}, branch.reward.parts),
            child=None if branch.child is None else _paid_together(branch.child, scores),
        )
        for score, branch in zip(paid, node.branches, strict=True)
    )
    return replace(node, branches=branches)


def scored_by(trees: Sequence[Tree], model: RewardModel) -> list[Tree]:
    """The trees with the model's score of each answer as the local reward of the role that gave it.

    The environment's own reward, the team's too, is gone, so that nothing but the model is learned from; what it says
    of success, and its parts, stay.
    """
    answers = [
        (node.observations[role].messages, sample.text)
        for tree in trees
        for node in walk.nodes(tree.root)
        for role, siblings in node.samples.items()
        for sample in siblings
    ]
    scores = iter(model.score([messages for messages, _ in answers], [text for _, text in answers]))
    return [replace(tree, root=_scored(tree.root, scores)) for tree in trees]


def _scored(node: Node, scores: Iterator[float]) -> Node:
    """The node and what is below it with the scores as local rewards, taken in the order of `walk.nodes`."""
    table = {role: [next(scores) for _ in siblings] for role, siblings in node.samples.items()}

    def paid(branch: Branch) -> Branch:
        local: Mapping[str, float] = {role: table[role][index] for role, index in branch.choice.items()}
        child = None if branch.child is None else _scored(branch.child, scores)
        return replace(branch, reward=Reward(0.0, local, branch.reward.parts), child=child)

    return replace(node, branches=tuple(paid(branch) for branch in node.branches))
