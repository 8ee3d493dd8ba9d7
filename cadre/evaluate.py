"""Held-out tasks, one sample a decision, no search. What a trained team is worth.

`evaluate` plays every task once at temperature 0; `evaluate_sampled` plays each several times at a temperature, for
pass@k and avg@k as benchmarks report them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from cadre import noise, rollout, shape, walk
from cadre.assemble import Game
from cadre.errors import ConfigError
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


Interval = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True)
class SampledReport:
    """Figures of several episodes a task. Each interval is (value, low, high) at 95%, over tasks.

    samples      episodes a task
    temperature  they were sampled at
    max_tokens   the most tokens of one answer, by role
    average      avg@samples: the share of all episodes that succeeded
    passing      pass@k by k: the chance that one of k episodes succeeds
    reward, tokens, parts   means an episode, as in `Report`
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


async def evaluate_sampled(
    team: Team,
    game: Game,
    tasks: Sequence[Task],
    samples: int,
    temperature: float,
    ks: Sequence[int] = (),
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> tuple[SampledReport, list[Tree]]:
    """Play every task `samples` times. `ks` are those of pass@k, by default the powers of two up to `samples`."""
    ks = ks or [1 << power for power in range(samples.bit_length())]
    check_sampling(samples, temperature, ks)
    warm = team.tempered(temperature)
    key = noise.key(seed, "evaluate", samples, repr(temperature))
    trees, failures = await rollout.grow_many(tasks, game.make, warm, shape.independent(samples), 1.0, key, progress)
    wins = [sum(path[-1][1].success for path in walk.episodes(tree.root)) for tree in trees] + [0] * len(failures)
    paths = [path for tree in trees for path in walk.episodes(tree.root)]
    report = SampledReport(
        tasks=len(tasks),
        failures=len(failures),
        samples=samples,
        temperature=temperature,
        max_tokens={role: sampling.max_tokens for role, sampling in warm.sampling.items()},
        average=over_tasks([count / samples for count in wins]),
        passing={k: over_tasks([pass_at_k(samples, count, k) for count in wins]) for k in ks},
        reward=fmean(sum(rollout.score(branch.reward, 1.0) for _, branch in path) for path in paths),
        tokens=fmean(sum(len(s.token_ids) for s in walk.samples(tree.root)) for tree in trees) / samples,
        parts=mean_parts([branch.reward.parts for path in paths for _, branch in path]),
    )
    return report, trees


def check_sampling(samples: int, temperature: float, ks: Sequence[int]) -> None:
    """Refuse samples that would all be the same, and a k that there are too few samples for."""
    if samples > 1 and temperature == 0.0:
        raise ConfigError(
            f"--samples: got {samples} at temperature 0, where every sample is the same; expected a temperature above "
            "0. Add --temperature 0.6, say."
        )
    if not all(1 <= k <= samples for k in ks):
        raise ConfigError(
            f"--k: got {', '.join(map(str, ks))} with {samples} samples a task; expected each from 1 to {samples}. "
            "Raise --samples or lower --k."
        )


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
