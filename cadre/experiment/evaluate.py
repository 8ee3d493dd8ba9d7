"""Held-out tasks, no search. What a trained team is worth.

`evaluate` plays every task once at temperature 0; `evaluate_sampled` plays each several times at a temperature, for
pass@k and avg@k as benchmarks report them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cadre import random_keys
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.experiment.report import Report, SampledReport, mean_parts, mean_reward, over_tasks, pass_at_k, summarise
from cadre.rollout import tree_shape, walk
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.rollout.samples import grow_sampled
from cadre.types import Task, Tree


async def evaluate(
    rollout: Rollout, tasks: Sequence[Task], seed: int = 0, progress: Callable[[], None] = lambda: None
) -> tuple[Report, list[Tree]]:
    """Play every task once, whatever the shape of the rollout, at temperature 0. An episode that fails counts as a task
    without success. Raises ContractError where more fail than may."""
    alone = replace(rollout, team=rollout.team.greedy(), shape=tree_shape.independent(1), alpha=1.0)
    trees, failures = await grow_many(tasks, alone, random_keys.key(seed, "evaluate"), progress)
    return summarise(trees, len(tasks), len(failures)), trees


def held_out_tasks(env_spec: EnvSpec, count: int | None, first: int = 0) -> Sequence[Task]:
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
        average=over_tasks([count / samples for count in wins]),
        passing={k: over_tasks([pass_at_k(samples, count, k) for count in wins]) for k in repeats.passing},
        reward=mean_reward(paths),
        tokens=fmean(sum(len(sample.token_ids) for sample in walk.samples(tree.root)) for tree in trees) / samples,
        parts=mean_parts([[branch for _, branch in path] for path in paths]),
    )
    return report, trees
