"""Preferences: multi-agent DPO, and trees scored by a reward model.

Multi-agent DPO compares the joint actions of one decision (DPO, arXiv 2305.18290, equation 7):

    L = -log sigmoid(m)
    m = beta * sum over agents of [diff(preferred) - diff(other)],   diff = log pi - log reference

An agent's own gradient of L, the other agents' diffs held fixed, is `-beta * sigmoid(-m)` times that of
`log pi(preferred) - log pi(other)`. As the policies that sampled are those that learn, it is a policy gradient whose
advantages are `+beta * sigmoid(-m)` for the preferred action and the opposite for the other.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from cadre.advantages.returns import Comparison, Reduce, ScoredSample, branch_return
from cadre.envs.wrappers import joint_prompt, joint_text
from cadre.rollout import walk
from cadre.rollout.grow import score
from cadre.statistics import is_rounding
from cadre.team import Metrics, RewardModel
from cadre.types import Branch, Message, Node, Reward, SamplePosition, Tree

# Multi-agent DPO.


def preference_advantages(
    samples: Sequence[ScoredSample], comparison: Comparison, beta: float
) -> tuple[list[ScoredSample], Metrics]:
    """Return the samples with the advantages that make a policy gradient that of the loss above, and metrics. The pairs
    of a decision share the weight of one. A sample without `reference` has no diff: nobody trains it."""
    diffs = {scored.tree_sample.position: beta * sum(scored.logprob_diffs) for scored in samples}
    nodes = {(scored.tree_sample.tree, scored.tree_sample.path): scored.tree_sample.node for scored in samples}
    advantages: dict[SamplePosition, float] = defaultdict(float)
    margins = []
    for decision, node in nodes.items():
        pairs = []
        for branches in unequal_branches(node, comparison):
            better, worse = ([(*decision, role, index) for role, index in branch.choice.items()] for branch in branches)
            margin = sum(diffs[position] for position in better)
            margin -= sum(diffs[position] for position in worse)
            pairs.append((better, worse, margin))
            margins.append(margin)
        for better, worse, margin in pairs:
            # Beyond 709 exp overflows.
            push = beta / (1.0 + math.exp(min(margin, 700.0))) / len(pairs)
            for position in better:
                advantages[position] += push
            for position in worse:
                advantages[position] -= push
    judged = [replace(scored, advantages=(advantages[scored.tree_sample.position],)) for scored in samples]
    if not margins:
        return judged, {}
    losses = (math.log1p(math.exp(-m)) if m >= 0 else -m + math.log1p(math.exp(m)) for m in margins)
    return judged, {
        "preference/loss": fmean(losses),
        "preference/accuracy": fmean(m > 0.0 for m in margins),
        "preference/pairs": len(margins),
    }


def team_return(branch: Branch, round_number: int, comparison: Comparison) -> float:
    """Return the team's return from a branch on: its score, and of what follows the mean, discounted once a round. With
    returns that take the best of what follows it is the best in place of the mean."""
    reduce: Reduce = max if comparison.returns.takes_best else fmean
    return branch_return(
        branch, round_number, comparison.gamma, lambda below: score(below.reward, comparison.alpha), reduce
    )


def unequal_branches(node: Node, comparison: Comparison) -> Iterator[tuple[Branch, Branch]]:
    """Yield all pairs of branches of a decision whose returns differ by more than rounding, the better one first."""

    def absolute(branch: Branch) -> float:
        return abs(comparison.alpha * branch.reward.team) + sum(map(abs, branch.reward.local.values()))

    returns = [team_return(branch, node.round, comparison) for branch in node.branches]
    sizes = [branch_return(branch, node.round, comparison.gamma, absolute, max) for branch in node.branches]
    for i, j in itertools.combinations(range(len(returns)), 2):
        if not is_rounding(returns[i] - returns[j], max(sizes[i], sizes[j])):
            better, worse = (i, j) if returns[i] > returns[j] else (j, i)
            yield node.branches[better], node.branches[worse]


# Trees scored by a reward model.


def joint_answer(node: Node, branch: Branch) -> str:
    """Return a joint action as one text."""
    return joint_text({role: node.samples[role][index].text for role, index in branch.choice.items()})


def score_by_model(trees: Sequence[Tree], model: RewardModel, joint: bool) -> list[Tree]:
    """Return the trees with the model's scores as rewards: of each answer, the local reward of the role that gave it,
    or with `joint` of each joint action, the team's reward. The environment's own reward is gone, so that nothing but
    the model is learned from; its parts, and what it says of success, stay."""
    nodes = [node for tree in trees for node in walk.nodes(tree.root)]
    queries: list[tuple[tuple[Message, ...], str]] = []
    for node in nodes:
        if joint:
            queries += [(joint_prompt(node.observations), joint_answer(node, branch)) for branch in node.branches]
        else:
            answers = ((role, sample) for role, siblings in node.samples.items() for sample in siblings)
            queries += [(node.observations[role].messages, sample.text) for role, sample in answers]
    scores = iter(model.score([prompt for prompt, _ in queries], [text for _, text in queries]))

    rewards: dict[int, list[Reward]] = {}
    for node in nodes:
        parts = [branch.reward.parts for branch in node.branches]
        if joint:
            rewards[id(node)] = [Reward(next(scores), {}, of_branch) for of_branch in parts]
            continue
        numbers = {role: [next(scores) for _ in siblings] for role, siblings in node.samples.items()}
        local = [{role: numbers[role][index] for role, index in branch.choice.items()} for branch in node.branches]
        rewards[id(node)] = [Reward(0.0, by_role, of_branch) for by_role, of_branch in zip(local, parts, strict=True)]

    def rewarded(node: Node) -> Node:
        branches = (
            replace(branch, reward=reward, child=None if branch.child is None else rewarded(branch.child))
            for branch, reward in zip(node.branches, rewards[id(node)], strict=True)
        )
        return replace(node, branches=tuple(branches))

    return [replace(tree, root=rewarded(tree.root)) for tree in trees]
