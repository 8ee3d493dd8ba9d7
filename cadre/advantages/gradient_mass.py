"""Whose samples an update is made of: what each role's sequences may move, before any ratio is clipped.

A sequence's mass is the sum over its trained tokens of |advantage| times what the loss makes a token of it weigh, that
is, what it would move if the gradients of all log-probabilities were equally long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cadre.learn.aggregation import AGGREGATES, Denominators
from cadre.settings import LossConfig
from cadre.settings.user_code import load_function
from cadre.team import Metrics
from cadre.types import TrainingSequence


def by_role(data: Sequence[TrainingSequence], loss: LossConfig) -> Metrics:
    """By role: `gradient_share`, its part of the mass in the update of its policy, and `effective_samples`,
    (sum m)^2 / sum m^2 over its masses m (Kish 1965): as many samples of equal mass would say as much."""
    masses = _masses(data, loss)
    wholes: dict[str, float] = defaultdict(float)
    for (policy, _), parts in masses.items():
        wholes[policy] += sum(parts)
    metrics: Metrics = {}
    for (policy, role), parts in masses.items():
        total, squares = sum(parts), sum(part * part for part in parts)
        metrics[f"{role}/gradient_share"] = total / wholes[policy] if wholes[policy] else 0.0
        metrics[f"{role}/effective_samples"] = total * total / squares if squares else 0.0
    return metrics


def _masses(data: Sequence[TrainingSequence], loss: LossConfig) -> dict[tuple[str, str], list[float]]:
    """By policy and role: the mass of each sequence that is trained."""
    aggregate = load_function("loss.aggregate", loss.aggregate, AGGREGATES)
    trained = [datum for datum in data if any(datum.mask)]
    parts = {policy: [datum for datum in trained if datum.policy == policy] for policy in {d.policy for d in trained}}
    wholes = {policy: Denominators.of(part, loss.divisor) for policy, part in parts.items()}
    masses: dict[tuple[str, str], list[float]] = defaultdict(list)
    for datum in trained:
        size = sum(abs(advantage) for advantage, kept in zip(datum.advantages, datum.mask, strict=True) if kept)
        masses[datum.policy, datum.role].append(size * aggregate(sum(datum.mask), wholes[datum.policy]))
    return masses
