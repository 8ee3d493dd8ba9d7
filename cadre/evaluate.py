"""Held-out tasks, one sample a decision, no search. What a trained team is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from cadre import noise, rollout, shape, walk
from cadre.assemble import Game
from cadre.team import Team
from cadre.types import Task, Tree


@dataclass(frozen=True)
class Report:
    """Figures of one evaluation. `success` is a share with its 95% Wilson interval; the rest are means an episode."""

    tasks: int
    failures: int
    success: float
    low: float
    high: float
    reward: float
    decisions: float
    tokens: float
    parts: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def evaluate(
    team: Team, game: Game, tasks: Sequence[Task], seed: int = 0, progress: Callable[[], None] = lambda: None
) -> tuple[Report, list[Tree]]:
    """Play every task once. An episode that fails in the environment counts as a task without success."""
    key = noise.key(seed, "evaluate")
    trees, failures = await rollout.grow_many(tasks, game.make, team, shape.independent(1), 1.0, key, progress)
    return summarise(trees, len(tasks), len(failures)), trees


def summarise(trees: Sequence[Tree], tasks: int, failures: int) -> Report:
    """The report of trees that hold one episode each."""
    paths = [next(walk.episodes(tree.root)) for tree in trees]
    wins = sum(path[-1][1].success for path in paths)
    low, high = wilson(wins, tasks)
    rewards = [sum(rollout.score(branch.reward, 1.0) for _, branch in path) for path in paths]
    tokens = [sum(len(sample.token_ids) for sample in walk.samples(tree.root)) for tree in trees]
    return Report(
        tasks=tasks,
        failures=failures,
        success=wins / tasks,
        low=low,
        high=high,
        reward=fmean(rewards),
        decisions=fmean(len(path) for path in paths),
        tokens=fmean(tokens),
        parts=mean_parts([branch.reward.parts for path in paths for _, branch in path]),
    )


def mean_parts(parts: Sequence[Any]) -> dict[str, float]:
    """The mean of every reward part over the steps that have it."""
    names = sorted({name for part in parts for name in part})
    return {name: fmean(part[name] for part in parts if name in part) for name in names}


def wilson(wins: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927)."""
    share, square = wins / n, z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
