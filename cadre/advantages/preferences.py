"""Trees and preferences: pairs of siblings that earned differently, and trees that a reward model pays."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cadre.advantages.credit import NO_STD, Credit
from cadre.advantages.group_relative import valued
from cadre.advantages.samples import ScoredSample, samples_of
from cadre.rewards.preferences import Pair
from cadre.rollout import walk
from cadre.team import RewardModel
from cadre.types import Branch, Node, Reward, Tree


def pairs_of(trees: Sequence[Tree], credit: Credit) -> list[Pair]:
    """All pairs of siblings that earned differently by the returns of `credit`, each pair of texts once a node."""
    siblings: dict[tuple[int, tuple[int, ...], str], list[ScoredSample]] = defaultdict(list)
    for scored in valued(samples_of(trees), credit):
        siblings[scored.decision.tree, scored.decision.path, scored.decision.role].append(scored)
    return [pair for group in siblings.values() for pair in dict.fromkeys(_pairs(group))]


def _pairs(siblings: Sequence[ScoredSample]) -> Iterator[Pair]:
    for first, second in itertools.combinations(siblings, 2):
        best, worst = (first, second) if first.returns > second.returns else (second, first)
        if best.returns - worst.returns >= NO_STD and best.sample.text != worst.sample.text:
            prompt = best.decision.node.observations[best.decision.role].messages
            yield Pair(prompt, best.sample.text, worst.sample.text)


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
