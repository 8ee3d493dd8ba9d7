"""What an evaluation comes to: figures with intervals, and how they are made of episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from cadre.rollout import grow, walk
from cadre.rollout.walk import Path
from cadre.types import Tree

Interval = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True)
class Report:
    """What a team is worth, played once a task at temperature 0.

    success            share of the tasks that were solved; `low` and `high` are its 95% Wilson interval
    failures           episodes that failed in the environment; each counts as a task that was not solved
    reward, decisions, tokens   means an episode
    parts              by name, the mean over episodes of a reward part's mean over the episode's steps; a step that
                       does not have the part counts as 0
    """

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


@dataclass(frozen=True)
class SampledReport:
    """What a team is worth, played several times a task. Each interval is (value, low, high) at 95%, over tasks.

    samples      episodes a task
    temperature  they were sampled at
    max_tokens   the most tokens of one answer, by role
    average      avg@samples: the share of all episodes that succeeded
    passing      pass@k by k: the chance that one of k episodes succeeds
    reward, tokens, parts   as in `Report`
    """

    tasks: int
    failures: int
    samples: int
    temperature: float
    max_tokens: dict[str, int]
    average: Interval
    passing: dict[int, Interval]
    reward: float
    tokens: float
    parts: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(trees: Sequence[Tree], tasks: int, failures: int) -> Report:
    """The report of trees that hold one episode each."""
    paths = [next(walk.episodes(tree.root)) for tree in trees]
    wins = sum(path[-1][1].success for path in paths)
    low, high = wilson(wins, tasks)
    return Report(
        tasks=tasks,
        failures=failures,
        success=wins / tasks,
        low=low,
        high=high,
        reward=mean_reward(paths),
        decisions=fmean(len(path) for path in paths),
        tokens=fmean(sum(len(sample.token_ids) for sample in walk.samples(tree.root)) for tree in trees),
        parts=mean_parts([parts_of_steps(path) for path in paths]),
    )


def mean_reward(paths: Sequence[Path]) -> float:
    """The mean over episodes of all that an episode pays."""
    return fmean(sum(grow.score(branch.reward, 1.0) for _, branch in path) for path in paths)


def parts_of_steps(path: Path) -> dict[str, float]:
    """The mean of every reward part over the steps of one episode."""
    return mean_parts([branch.reward.parts for _, branch in path])


def mean_parts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every part over all of `parts`; where it is missing it counts as 0."""
    names = sorted({name for part in parts for name in part})
    return {name: fmean(part.get(name, 0.0) for part in parts) for name in names}


def wilson(wins: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927)."""
    share, square = wins / n, z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that k of the samples, drawn without putting back, hold a right one: 1 - C(n - c, k) / C(n, k).

    The unbiased estimator of arXiv 2107.03374, equation 1.
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def over_tasks(values: Sequence[float], z: float = 1.96) -> Interval:
    """The mean over tasks with its 95% interval by the standard error, samples of one task not being independent.

    One task alone says nothing about others: its interval is all of 0 to 1.
    """
    mean = fmean(values)
    if len(values) < 2:
        return mean, 0.0, 1.0
    half = z * stdev(values) / math.sqrt(len(values))
    return mean, max(0.0, mean - half), min(1.0, mean + half)
