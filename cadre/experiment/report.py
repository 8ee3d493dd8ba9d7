"""What an evaluation comes to: figures with intervals, and how they are made of episodes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from cadre.intervals import Interval, rate_interval
from cadre.rollout import grow, walk
from cadre.rollout.walk import Path
from cadre.types import Branch, Tree


@dataclass(frozen=True)
class Report:
    """What a team is worth, played once a task at temperature 0.

    success            share of the tasks that were solved; `low` and `high` are its 95% Wilson interval
    failures           episodes that failed in the environment; each counts as a task that was not solved
    reward, decisions, tokens   means an episode
    parts              by name, the mean over episodes of a reward part's mean over the steps that say it: `mean_parts`
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

    failures     episodes that failed; each counts as one without success
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
    wins = [float(path[-1][1].success) for path in paths]
    success, low, high = rate_interval(wins + [0.0] * (tasks - len(wins)))
    return Report(
        tasks=tasks,
        failures=failures,
        success=success,
        low=low,
        high=high,
        reward=mean_reward(paths),
        decisions=fmean(len(path) for path in paths),
        tokens=fmean(sum(len(sample.token_ids) for sample in walk.samples(tree.root)) for tree in trees),
        parts=mean_parts([[branch for _, branch in path] for path in paths]),
    )


def mean_reward(paths: Sequence[Path]) -> float:
    """The mean over episodes of all that an episode pays."""
    return fmean(sum(grow.score(branch.reward, 1.0) for _, branch in path) for path in paths)


def mean_parts(episodes: Sequence[Sequence[Branch]]) -> dict[str, float]:
    """The mean over episodes of every part's mean over an episode's steps, for those who are told it at all.

    A step of other roles says nothing of a part, and nor does one that names no part, such as a draft that is not
    judged yet. In any other step of those roles a part that is missing counts as 0.
    """
    told: dict[str, set[frozenset[str]]] = defaultdict(set)
    for branch in (branch for episode in episodes for branch in episode):
        for name in branch.reward.parts:
            told[name].add(frozenset(branch.choice))
    means: dict[str, float] = {}
    for name, actors in sorted(told.items()):
        saying = (
            [branch for branch in episode if branch.reward.parts and frozenset(branch.choice) in actors]
            for episode in episodes
        )
        means[name] = fmean(fmean(branch.reward.parts.get(name, 0.0) for branch in said) for said in saying if said)
    return means


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that k of the samples, drawn without putting back, hold a right one: 1 - C(n - c, k) / C(n, k).

    The unbiased estimator of arXiv 2107.03374, equation 1.
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def over_tasks(values: Sequence[float]) -> Interval:
    """The mean over tasks of a rate with its 95% interval (`cadre.intervals.rate_interval`).

    Several samples of one task alone say nothing about others: its interval is all of 0 to 1.
    """
    mean, low, high = rate_interval(values)
    return (mean, min(0.0, low), max(1.0, high)) if len(values) < 2 else (mean, low, high)
