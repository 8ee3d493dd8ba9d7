"""The rule by which `cadre prove` says that a team wins, loses, or that it is undecided.

Tables of held-out outcomes [seeds, tasks], one of the team and one of each single agent, are compared in pairs over
tasks, with intervals over seeds and tasks (`cadre_analysis.compare`). A team

    wins    if it is better than every single agent, each at 95%: all have to be beaten, so none is corrected for
            (an intersection-union test, Berger 1982)
    loses   if one single agent is better than the team, at 1 - 0.05 / m of m agents (Bonferroni), as one is enough

and nothing is decided otherwise. If all are equally good, either is said in 2.5% of experiments at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cadre.statistics import Interval
from cadre_analysis.compare import CONFIDENCE, RESAMPLES, Table, difference_interval, normal_quantile, student_quantile

Word = Literal["wins", "loses", "undecided"]
MAX_SEEDS = 1000
# Of an experiment, with which it should find an effect of its resolution.
POWER = 0.95


@dataclass(frozen=True)
class Spread:
    """The variation of a mean difference: the variance of its seeds' means, that of its tasks' without what seeds add
    to it, and the number of tasks."""

    of_seeds: float
    of_tasks: float
    tasks: int

    def reach(self, seeds: int, student: float, normal: float) -> float:
        """Return so many standard errors, Student's of the seeds and the normal of the tasks, with so many seeds."""
        return math.hypot(student * math.sqrt(self.of_seeds / seeds), normal * math.sqrt(self.of_tasks / self.tasks))

    def half_width(self, seeds: int, confidence: float = CONFIDENCE) -> float:
        """Return about half of the width of the interval that so many seeds would give."""
        normal = normal_quantile(confidence)
        return max(self.reach(seeds, student_quantile(confidence, seeds - 1), normal), self._least(normal))

    def _least(self, normal: float) -> float:
        """Return half of the width of Wilson's interval if all seeds differ by nothing on any task."""
        return normal**2 / (self.tasks + normal**2)

    def resolution(self, seeds: int) -> float:
        """Return the smallest true difference that so many seeds show in 19 of 20 experiments."""
        # A one-sided quantile at 95% is a two-sided one at 90%.
        power = 2.0 * POWER - 1.0
        student = student_quantile(CONFIDENCE, seeds - 1) + student_quantile(power, seeds - 1)
        normal = normal_quantile(CONFIDENCE) + normal_quantile(power)
        return max(self.reach(seeds, student, normal), self._least(normal_quantile(CONFIDENCE)))

    def seeds_for(self, difference: float, confidence: float = CONFIDENCE) -> int | None:
        """Return how many seeds would show this difference; None if no number does with these tasks."""
        # The width falls with every seed.
        low, high = 1, MAX_SEEDS
        if self.half_width(high, confidence) >= abs(difference):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.half_width(middle, confidence) < abs(difference) else (middle, high)
        return high


def measure_spread(difference: Table) -> Spread:
    """Return the spread of a table of differences [seeds, tasks], with two seeds or more."""
    seeds, tasks = difference.shape
    of_seeds, of_tasks = difference.mean(axis=1), difference.mean(axis=0)
    residual = difference - of_seeds[:, None] - of_tasks[None, :] + difference.mean()
    noise = float((residual**2).sum()) / ((seeds - 1) * (tasks - 1))
    return Spread(float(of_seeds.var(ddof=1)), max(0.0, float(of_tasks.var(ddof=1)) - noise / seeds), tasks)


@dataclass(frozen=True)
class Comparison:
    """The team's success minus that of one agent: at 95%, and at the confidence by which one agent may beat the team.

    resolution    the smallest true difference that as many seeds show in 19 of 20 experiments
    seeds_needed  as many would show the difference that was measured, at the confidence that counts for its sign; None
                  if more tasks are needed too
    """

    agent: str
    difference: Interval
    corrected: Interval
    resolution: float
    seeds_needed: int | None


@dataclass(frozen=True)
class Verdict:
    """The word on the team, the comparisons that it rests on, and how many seeds would decide it if it is undecided."""

    word: Word
    comparisons: tuple[Comparison, ...]
    seeds_needed: int | None = None


def decide(team: Table, agents: Mapping[str, Table], seed: int = 0, resamples: int = RESAMPLES) -> Verdict:
    """Return the verdict on a team's outcomes [seeds, tasks] against those of single agents on the same tasks.

    `seed` keys the resampling. Row i of all tables is of the same seed. Raises ValueError for fewer than two seeds or
    tasks, of which nothing is known about others.
    """
    if min(team.shape) < 2:
        raise ValueError(f"a verdict needs two seeds and two tasks or more; got {team.shape[0]} and {team.shape[1]}")
    comparisons, to_lose = [], 1.0 - (1.0 - CONFIDENCE) / len(agents)
    for name, outcomes in agents.items():

        def interval(confidence: float, outcomes: Table = outcomes) -> Interval:
            # The same resamples for every agent and confidence.
            generator = np.random.default_rng(seed)
            return difference_interval(team, outcomes, generator, True, True, resamples, confidence)

        at_95, corrected = interval(CONFIDENCE), interval(to_lose)
        spread, seeds = measure_spread(team - outcomes), len(team)
        enough_seeds = spread.seeds_for(at_95[0], to_lose if at_95[0] < 0.0 else CONFIDENCE)
        is_shown = at_95[1] > 0.0 or corrected[2] < 0.0
        # What these seeds have not shown needs more, whatever an approximation says.
        if enough_seeds is not None and not is_shown:
            enough_seeds = max(enough_seeds, seeds + 1)
        comparisons.append(Comparison(name, at_95, corrected, spread.resolution(seeds), enough_seeds))
    if all(comparison.difference[1] > 0.0 for comparison in comparisons):
        return Verdict("wins", tuple(comparisons))
    if any(comparison.corrected[2] < 0.0 for comparison in comparisons):
        return Verdict("loses", tuple(comparisons))
    # To win, every agent has to be beaten; to lose takes one.
    behind = [comparison.seeds_needed for comparison in comparisons if comparison.difference[0] < 0.0]
    needed = behind or [comparison.seeds_needed for comparison in comparisons]
    numbers = [number for number in needed if number is not None]
    enough = numbers if behind else numbers * (len(numbers) == len(needed))
    return Verdict("undecided", tuple(comparisons), (min if behind else max)(enough) if enough else None)
