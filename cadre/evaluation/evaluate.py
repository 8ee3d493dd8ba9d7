"""Evaluate a team on held-out tasks, without search, and report the results with intervals.

`evaluate` plays every task once at temperature 0; `evaluate_sampled` plays each several times at a temperature, for
pass@k and avg@k as benchmarks report them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from cadre import random_keys
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.intervals import Interval, rate_interval
from cadre.rollout import grow, shapes, walk
from cadre.rollout.episodes import grow_many, grow_sampled
from cadre.rollout.grow import Rollout
from cadre.rollout.walk import TreePath
from cadre.team import Team
from cadre.types import Branch, Choice, Task, Tree


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


def summarize(trees: Sequence[Tree], tasks: int, failures: int) -> Report:
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


def mean_reward(paths: Sequence[TreePath]) -> float:
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


def interval_over_tasks(values: Sequence[float]) -> Interval:
    """The mean over tasks of a rate with its 95% interval (`cadre.intervals.rate_interval`).

    Several samples of one task alone say nothing about others: its interval is all of 0 to 1.
    """
    mean, low, high = rate_interval(values)
    return (mean, min(0.0, low), max(1.0, high)) if len(values) < 2 else (mean, low, high)


async def evaluate(
    rollout: Rollout, tasks: Sequence[Task], seed: int = 0, progress: Callable[[], None] = lambda: None
) -> tuple[Report, list[Tree]]:
    """Play every task once, whatever the shape of the rollout, at temperature 0. An episode that fails counts as a task
    without success. Raises ContractError where more fail than may."""
    alone = replace(rollout, team=rollout.team.greedy(), shape=shapes.independent(1), alpha=1.0)
    trees, failures = await grow_many(tasks, alone, random_keys.key(seed, "evaluate"), progress)
    return summarize(trees, len(tasks), len(failures)), trees


def select_tasks(env_spec: EnvSpec, count: int | None, first: int = 0) -> Sequence[Task]:
    """`count` tasks of the test split from `first` on, None for all. Raises ConfigError where there are none."""
    split = env_spec.tasks("test")
    if not 0 <= first < len(split) or (count is not None and count < 1):
        raise ConfigError(
            f"tasks: got {'all' if count is None else count} from {first} on, and the test split has {len(split):,}; "
            f"expected one or more, from 0 to {len(split) - 1} on. Ask for others."
        )
    chosen: Sequence[Task] = split[first : None if count is None else first + count]
    return chosen


@dataclass(frozen=True)
class Repeats:
    """How often a task is played, at which temperature, and for which k of pass@k (by default powers of two up to
    `samples`). `seed` names the draws. Raises ConfigError where all samples would be the same, or too few for a k."""

    samples: int
    temperature: float
    ks: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples > 1 and self.temperature == 0.0:
            raise ConfigError(
                f"--samples: got {self.samples} at temperature 0, where every sample is the same; expected a "
                "temperature above 0. Add --temperature 0.6, say."
            )
        if not all(1 <= k <= self.samples for k in self.ks):
            raise ConfigError(
                f"--k: got {', '.join(map(str, self.ks))} with {self.samples} samples a task; expected each from 1 to "
                f"{self.samples}. Raise --samples or lower --k."
            )

    @property
    def passing(self) -> tuple[int, ...]:
        """The k of pass@k."""
        return self.ks or tuple(1 << power for power in range(self.samples.bit_length()))


async def evaluate_sampled(
    rollout: Rollout,
    tasks: Sequence[Task],
    repeats: Repeats,
    progress: Callable[[], None] = lambda: None,
) -> tuple[SampledReport, list[Tree]]:
    """Play every task as often as `repeats` says. An episode that fails counts as one without success; the report's
    failures are episodes."""
    samples, warm = repeats.samples, rollout.team.tempered(repeats.temperature)
    key = random_keys.key(repeats.seed, "evaluate", samples, repr(repeats.temperature))
    trees, failures = await grow_sampled(tasks, replace(rollout, team=warm, alpha=1.0), key, samples, progress)
    episodes = [list(walk.episodes(tree.root)) for tree in trees]
    wins = [sum(path[-1][1].success for path in paths) for paths in episodes] + [0] * (len(tasks) - len(trees))
    paths = [path for of_task in episodes for path in of_task]
    report = SampledReport(
        tasks=len(tasks),
        failures=len(failures),
        samples=samples,
        temperature=repeats.temperature,
        max_tokens={role: sampling.max_tokens for role, sampling in warm.sampling.items()},
        average=interval_over_tasks([count / samples for count in wins]),
        passing={k: interval_over_tasks([pass_at_k(samples, count, k) for count in wins]) for k in repeats.passing},
        reward=mean_reward(paths),
        tokens=fmean(sum(len(sample.token_ids) for sample in walk.samples(tree.root)) for tree in trees) / samples,
        parts=mean_parts([[branch for _, branch in path] for path in paths]),
    )
    return report, trees


def exact_game_values(team: Team, env_spec: EnvSpec) -> dict[str, float]:
    """What the environment says of the team's policies, by name; nothing where it lists no decisions, or where a policy
    runs elsewhere, so that nobody here knows its probabilities."""
    choices = env_spec.choices()
    if not choices:
        return {}
    from cadre.engines.torch import TorchEngine

    if not all(isinstance(team.samplers[policy], TorchEngine) for policy in team.assignment.values()):
        return {}
    return env_spec.figures(_choice_probabilities(team, choices))


def exact_field(team: Team, env_spec: EnvSpec) -> dict[str, dict[str, float]]:
    """The figures as the field `exact` of a report, where there are some."""
    found = exact_game_values(team, env_spec)
    return {"exact": found} if found else {}


def _choice_probabilities(team: Team, choices: Sequence[Choice]) -> list[tuple[float, ...]]:
    """Those of every choice, asked for policy by policy."""
    from cadre.engines.torch import TorchEngine
    from cadre.engines.torch.learner import answer_probabilities

    found: dict[int, tuple[float, ...]] = {}
    for policy in dict.fromkeys(team.assignment.values()):
        engine = team.samplers[policy]
        assert isinstance(engine, TorchEngine)
        mine = [n for n, choice in enumerate(choices) if team.assignment[choice.observation.role] == policy]
        found |= zip(mine, answer_probabilities(engine, policy, [choices[n] for n in mine]), strict=True)
    return [found[number] for number in range(len(choices))]
