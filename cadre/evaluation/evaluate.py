"""Evaluate a team on held-out tasks, without search, and report the results with intervals.

`evaluate` plays every task once at temperature 0; `evaluate_sampled` plays each several times at a temperature, for
pass@k and avg@k as benchmarks report them.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from cadre import random_keys
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.files import to_json
from cadre.notebook_html import shorten, table_html
from cadre.rollout import grow, shapes, walk
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.rollout.walk import TreePath
from cadre.statistics import Interval, rate_interval
from cadre.team import AnswerLister, Team
from cadre.types import Branch, Task, Tree

Outcome = tuple[float, float | None]  # success, and reward if the episode did not fail


@dataclass(frozen=True)
class EvaluationReport:
    """The fields that the reports of evaluations have in common.

    failures           episodes that failed in the environment; each counts as one without success
    reward, tokens     means per episode that did not fail
    parts              by name, the mean over episodes of a reward part's mean over the steps that name it
    outcomes           by task, its success and reward, means over its episodes; the reward is None if all failed
    tasks_sha256       of the tasks' names and contents
    """

    tasks: int
    failures: int
    reward: float
    tokens: float
    parts: dict[str, float]
    outcomes: dict[str, Outcome]
    tasks_sha256: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Report(EvaluationReport):
    """The result of playing each task once at temperature 0; it begins with the fields of `EvaluationReport`.

    success            rate of tasks that were solved; `low` and `high` are its 95% Wilson interval
    decisions          mean per episode
    """

    success: float
    low: float
    high: float
    decisions: float

    def __repr__(self) -> str:
        return f"Report({self._success}, reward {self.reward:+.2f}, failures {self.failures})"

    def _repr_html_(self) -> str:
        numbers = (f"{self.reward:+.2f}", f"{self.tokens:,.1f}", f"{self.decisions:.1f}", str(self.failures))
        names = ("success", "reward", "tokens", "decisions", "failures")
        return table_html([names, (self._success, *numbers)], "mean of an episode at temperature 0")

    @property
    def _success(self) -> str:
        return f"success {self.success:.1%} [{self.low:.1%}, {self.high:.1%}] on {self.tasks:,} tasks"


@dataclass(frozen=True)
class SampledReport(EvaluationReport):
    """The result of playing each task several times; it begins with the fields of `EvaluationReport`.

    Each interval is (value, low, high) at 95%, over tasks.

    samples      episodes per task
    temperature  of sampling
    max_tokens   the most tokens of one answer, by role
    average      avg@samples: the success rate of all episodes
    passing      pass@k by k: the probability that one of k episodes succeeds
    """

    samples: int
    temperature: float
    max_tokens: dict[str, int]
    average: Interval
    passing: dict[int, Interval]

    def __repr__(self) -> str:
        rates = [(f"avg@{self.samples}", self.average), *((f"pass@{k}", rate) for k, rate in self.passing.items())]
        text = ", ".join(f"{name} {value:.1%} [{low:.1%}, {high:.1%}]" for name, (value, low, high) in rates)
        return shorten(f"SampledReport({self.tasks:,} tasks, {text})")


def summarize(trees: Sequence[Tree], tasks: Sequence[Task], samples: int = 1) -> dict[str, Any]:
    """Return the fields of `EvaluationReport`, of trees with one episode each: `samples` of every task, less those that
    failed. Trees are in the order of their tasks."""
    played = group_by_task(trees, tasks, samples)
    paths = [path for of_task in played.values() for path in of_task]
    outcomes: dict[str, Outcome] = {
        name: (sum(path[-1][1].success for path in of_task) / samples, mean_reward(of_task) if of_task else None)
        for name, of_task in played.items()
    }
    return {
        "tasks": len(tasks),
        "failures": len(tasks) * samples - len(trees),
        "reward": mean_reward(paths),
        "tokens": fmean(sum(len(sample.token_ids) for sample in walk.samples(tree.root)) for tree in trees),
        "parts": mean_parts([[branch for _, branch in path] for path in paths]),
        "outcomes": outcomes,
        "tasks_sha256": hash_tasks(tasks),
    }


def group_by_task(trees: Sequence[Tree], tasks: Sequence[Task], samples: int = 1) -> dict[str, list[TreePath]]:
    """Return the episodes of every task by its name; trees are as for `summarize`. Tasks of one name are told apart by
    a number: `maze`, `maze#2`."""
    episodes: dict[str, list[TreePath]] = {}
    remaining, counts = deque(trees), Counter[str]()
    for task in tasks:
        counts[task.id] += 1
        name = task.id if counts[task.id] == 1 else f"{task.id}#{counts[task.id]}"
        episodes[name] = []
        while remaining and len(episodes[name]) < samples and remaining[0].task == task:
            episodes[name].append(next(walk.episodes(remaining.popleft().root)))
    return episodes


def hash_tasks(tasks: Sequence[Task]) -> str:
    """Return the SHA-256 of the tasks' names and contents, in order. Of a value that is not JSON only the type's name
    counts, as its repr may hold an address."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(to_json([task.id, task.data], default=lambda value: type(value).__qualname__).encode())
    return digest.hexdigest()


def mean_reward(paths: Sequence[TreePath]) -> float:
    """Return the mean over episodes of the sum of an episode's rewards."""
    return fmean(sum(grow.score(branch.reward, 1.0) for _, branch in path) for path in paths)


def mean_parts(episodes: Sequence[Sequence[Branch]]) -> dict[str, float]:
    """Return the mean over episodes of each part's mean over the episode's steps that name it. A step that does not
    name a part, such as one of another role or a turn of tool calls, says nothing of it, and neither does an episode
    without such a step."""
    means_of_part: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        values_of_part: dict[str, list[float]] = defaultdict(list)
        for branch in episode:
            for name, value in branch.reward.parts.items():
                values_of_part[name].append(value)
        for name, values in values_of_part.items():
            means_of_part[name].append(fmean(values))
    return {name: fmean(means) for name, means in sorted(means_of_part.items())}


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Return the probability that k of the samples, drawn without replacement, hold a correct one: 1 - C(n - c, k) /
    C(n, k). The unbiased estimator of arXiv 2107.03374, equation 1."""
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def interval_over_tasks(values: Sequence[float]) -> Interval:
    """Return the mean over tasks of a rate with its 95% interval (`cadre.statistics.rate_interval`). Several samples of
    one task give no information about others: its interval is 0 to 1."""
    mean, low, high = rate_interval(values)
    return (mean, min(0.0, low), max(1.0, high)) if len(values) < 2 else (mean, low, high)


# ---- Playing held-out tasks


async def evaluate(
    rollout: Rollout, tasks: Sequence[Task], seed: int = 0, progress: Callable[[], None] = lambda: None
) -> tuple[Report, list[Tree]]:
    """Play every task once at temperature 0, whatever the shape of the rollout. An episode that fails counts as a task
    without success. Raises ContractError if more fail than may."""
    greedy = replace(rollout, team=rollout.team.tempered(0.0), shape=shapes.independent(1), alpha=1.0)
    # The same key for every evaluation of a run, so that reports differ by the weights alone.
    trees, _ = await grow_many(tasks, greedy, random_keys.key(seed, "evaluate"), progress)
    played = summarize(trees, tasks)
    success, low, high = rate_interval([wins for wins, _ in played["outcomes"].values()])
    decisions = fmean(sum(1 for _ in walk.nodes(tree.root)) for tree in trees)
    return Report(**played, success=success, low=low, high=high, decisions=decisions), trees


def select_tasks(split: Sequence[Task], count: int | None, first: int = 0) -> Sequence[Task]:
    """Return `count` tasks of the test split from `first` on, None for all. Raises ConfigError if there are none."""
    if not 0 <= first < len(split) or (count is not None and count < 1):
        got = f"got {'all' if count is None else count} from {first} on, and the test split has {len(split):,}"
        raise ConfigError(f"tasks: {got}; expected one or more, from 0 to {len(split) - 1} on. Ask for others.")
    chosen: Sequence[Task] = split[first : None if count is None else first + count]
    return chosen


@dataclass(frozen=True)
class Repeats:
    """How often a task is played, at which temperature, and for which k of pass@k (by default powers of two up to
    `samples`). `seed` keys the draws. Raises ConfigError if all samples would be equal, or too few for a k."""

    samples: int
    temperature: float
    ks: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples > 1 and self.temperature == 0.0:
            got = f"got {self.samples} at temperature 0, where every sample is the same"
            raise ConfigError(f"--samples: {got}; expected a temperature above 0. Add --temperature 0.6, say.")
        if not all(1 <= k <= self.samples for k in self.ks):
            got = f"got {', '.join(map(str, self.ks))} with {self.samples} samples a task"
            raise ConfigError(f"--k: {got}; expected each from 1 to {self.samples}. Raise --samples or lower --k.")

    @property
    def passing(self) -> tuple[int, ...]:
        """The k of pass@k."""
        return self.ks or tuple(1 << power for power in range(self.samples.bit_length()))


async def evaluate_sampled(
    rollout: Rollout, tasks: Sequence[Task], repeats: Repeats, progress: Callable[[], None] = lambda: None
) -> tuple[SampledReport, list[Tree]]:
    """Play every task as often as `repeats` says, each time as a tree of its own. An episode that fails counts as one
    without success; `progress` is called after every episode."""
    samples, team = repeats.samples, rollout.team.tempered(repeats.temperature)
    playing = replace(rollout, team=team, shape=shapes.independent(1), alpha=1.0)
    key = random_keys.key(repeats.seed, "evaluate", samples, repr(repeats.temperature))
    trees, _ = await grow_many([task for task in tasks for _ in range(samples)], playing, key, progress)
    played = summarize(trees, tasks, samples)
    rates = [success for success, _ in played["outcomes"].values()]
    passing = {k: [pass_at_k(samples, round(rate * samples), k) for rate in rates] for k in repeats.passing}
    report = SampledReport(
        **played,
        samples=samples,
        temperature=repeats.temperature,
        max_tokens={role: sampling.max_tokens for role, sampling in team.sampling.items()},
        average=interval_over_tasks(rates),
        passing={k: interval_over_tasks(values) for k, values in passing.items()},
    )
    return report, trees


# ---- Exact figures of games, which need no play


def exact_game_values(team: Team, env_spec: EnvSpec) -> dict[str, float]:
    """Return the environment's exact figures of the team's policies, from the probabilities of their legal answers.
    Empty if the environment lists no decisions, or if a policy runs elsewhere, so that its probabilities are
    unknown."""
    choices = env_spec.choices()
    if not choices:
        return {}
    probabilities: dict[int, tuple[float, ...]] = {}
    for policy in dict.fromkeys(team.assignment.values()):
        sampler = team.samplers[policy]
        if not isinstance(sampler, AnswerLister):
            return {}
        numbers = [n for n, choice in enumerate(choices) if team.assignment[choice.observation.role] == policy]
        listed = sampler.answer_probabilities(policy, [choices[n] for n in numbers])
        probabilities |= zip(numbers, listed, strict=True)
    return env_spec.figures([probabilities[number] for number in range(len(choices))])


def exact_field(team: Team, env_spec: EnvSpec) -> dict[str, dict[str, float]]:
    """Return the exact figures as the field `exact` of a report, if there are some."""
    values = exact_game_values(team, env_spec)
    return {"exact": values} if values else {}
