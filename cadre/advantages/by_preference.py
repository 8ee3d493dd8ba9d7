"""Multi-agent DPO: joint actions of one decision against those that earned less (DPO, arXiv 2305.18290, equation 7).

    L = -log sigmoid(m),   m = beta * sum over agents of [gap(preferred) - gap(other)],   gap = log pi - log reference

An agent's own gradient of L, the other agents' gaps held fixed, is `-beta * sigmoid(-m)` times that of
`log pi(preferred) - log pi(other)`. As the policies that sampled are those that learn, it is a policy gradient whose
advantages are `+beta * sigmoid(-m)` for what was preferred and the opposite for the other.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cadre.advantages.credit import Credit
from cadre.advantages.penalties import gaps
from cadre.advantages.returns import OfChildren, played_out
from cadre.advantages.samples import ScoredSample
from cadre.rollout.grow import score
from cadre.rounding import is_rounding
from cadre.team import Metrics
from cadre.types import Branch, Node

# The number of a tree, the path to a decision, a role, the index of its sample.
SamplePosition = tuple[int, tuple[int, ...], str, int]


@dataclass(frozen=True)
class Preference:
    """Two joint actions of a decision, the better paid first: their samples by role, and the margin m between them."""

    better: Mapping[str, SamplePosition]
    worse: Mapping[str, SamplePosition]
    margin: float


def preferred_samples(
    samples: Sequence[ScoredSample], credit: Credit, beta: float
) -> tuple[list[ScoredSample], Metrics]:
    """The samples with the advantages that make a policy gradient that of the loss above.

    The pairs of a decision weigh as one has between them. A sample without `reference` has no gap: nobody trains it.
    """
    distances = {scored.tree_sample.position: beta * sum(gaps(scored)) for scored in samples}
    advantages: dict[SamplePosition, float] = defaultdict(float)
    margins = []
    for tree, path, node in _decisions(samples):
        pairs = list(_preferences(node, (tree, path), distances, credit))
        for pair in pairs:
            push = beta * _sigmoid(-pair.margin) / len(pairs)
            for place in pair.better.values():
                advantages[place] += push
            for place in pair.worse.values():
                advantages[place] -= push
        margins += [pair.margin for pair in pairs]
    judged = [replace(scored, advantages=(advantages[scored.tree_sample.position],)) for scored in samples]
    return judged, _metrics(margins)


def value(branch: Branch, turn: int, credit: Credit) -> float:
    """What the team earns from a branch on: its score, and of what follows the mean, or the best where the returns say
    so, discounted once a turn."""
    of_children: OfChildren = max if credit.returns == "best_to_go" else fmean
    return played_out(branch, turn, credit.gamma, lambda on: score(on.reward, credit.alpha), of_children)


def unequal_branches(node: Node, credit: Credit) -> Iterator[tuple[Branch, Branch]]:
    """Yield all pairs of branches of a decision after which the team earned differently by more than rounding, the
    better one first."""

    def absolute(branch: Branch) -> float:
        return abs(credit.alpha * branch.reward.team) + sum(map(abs, branch.reward.local.values()))

    values = [value(branch, node.round, credit) for branch in node.branches]
    sizes = [played_out(branch, node.round, credit.gamma, absolute, max) for branch in node.branches]
    for left, right in itertools.combinations(range(len(values)), 2):
        if not is_rounding(values[left] - values[right], max(sizes[left], sizes[right])):
            better, worse = (left, right) if values[left] > values[right] else (right, left)
            yield node.branches[better], node.branches[worse]


def _decisions(samples: Sequence[ScoredSample]) -> Iterator[tuple[int, tuple[int, ...], Node]]:
    """Every decision of the samples once."""
    found = {(scored.tree_sample.tree, scored.tree_sample.path): scored.tree_sample.node for scored in samples}
    yield from ((tree, path, node) for (tree, path), node in found.items())


def _preferences(
    node: Node, at: tuple[int, tuple[int, ...]], distances: Mapping[SamplePosition, float], credit: Credit
) -> Iterator[Preference]:
    """All pairs of branches that earned differently."""
    for better, worse in unequal_branches(node, credit):
        of_better, of_worse = (
            {role: (*at, role, index) for role, index in branch.choice.items()} for branch in (better, worse)
        )
        margin = sum(distances[place] for place in of_better.values())
        yield Preference(of_better, of_worse, margin - sum(distances[place] for place in of_worse.values()))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def _metrics(margins: Sequence[float]) -> Metrics:
    if not margins:
        return {}
    return {
        "preference/loss": fmean(math.log1p(math.exp(-m)) if m >= 0 else -m + math.log1p(math.exp(m)) for m in margins),
        "preference/accuracy": fmean(m > 0.0 for m in margins),
        "preference/pairs": len(margins),
    }
