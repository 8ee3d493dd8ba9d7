"""Refusals of trees that nobody could sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from cadre.errors import ConfigError, nearest
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.experiment import Experiment
from cadre.rollout import tree_shape
from cadre.rollout.grow import pays

MAX_LEAVES = 10_000
MAX_DECISIONS = 100


def algorithm_k(experiment: Experiment) -> None:
    """Where siblings are counted by role, every role of the environment and no other has a number."""
    k, roles = experiment.config.algorithm.k, experiment.env_spec.roles
    if not isinstance(k, Mapping):
        return
    for role in k:
        if role not in roles:
            raise ConfigError(
                f"algorithm.k.{role}: {experiment.env_spec.env_class.__name__} has no such role; expected "
                f"{', '.join(roles)}. Remove it.{nearest(role, roles)}"
            )
    for role in roles:
        if role not in k:
            raise ConfigError(
                f"algorithm.k: role {role!r} has no number of siblings; expected one for each of "
                f"{', '.join(roles)}. Add `{role}: {next(iter(k.values()))}`."
            )


def algorithm_k_size(experiment: Experiment) -> None:
    """No decision has more siblings than a tree may have leaves, before anything is made for each of them."""
    k = experiment.config.algorithm.k
    numbers = k.values() if isinstance(k, Mapping) else [k]
    most = max(max(number) if isinstance(number, tuple) else number for number in numbers)
    if most > MAX_LEAVES:
        raise ConfigError(f"algorithm.k: got {most:,}; expected at most {MAX_LEAVES:,} siblings a decision. Lower it.")


def algorithm_k_leaves(experiment: Experiment) -> None:
    """Refuse a tree that nobody could sample, or whose joint actions do not fit."""
    config, shape, first = experiment.config, experiment.plan.shape, experiment.env_spec.roles[0]
    longest = [[first]] * MAX_DECISIONS
    if isinstance(config.algorithm.k, int) and tree_shape.leaves(shape, longest, range(MAX_DECISIONS)) <= MAX_LEAVES:
        return
    acting, unpaid = run_to_end(_decisions(experiment))
    algorithm_k_at_once(experiment, acting)
    leaves = tree_shape.leaves(shape, acting, unpaid)
    if leaves > MAX_LEAVES:
        ahead = f", {len(unpaid)} of which pay nobody," if shape.lookahead and unpaid else ""
        raise ConfigError(
            f"algorithm: {shape.name} over {len(acting)} decisions{ahead} of {config.env} needs {leaves:,} leaves "
            f"a task; expected at most {MAX_LEAVES:,}. Lower algorithm.k{', algorithm.lookahead' if ahead else ''} or "
            "the environment's turns, or use greedy."
        )


def algorithm_k_at_once(experiment: Experiment, acting: Sequence[Sequence[str]]) -> None:
    """Crossed joint actions, as many as the product of the siblings of those who act at once, are not too many."""
    shape = experiment.plan.shape
    if shape.joint != "cross":
        return
    for depth, roles in enumerate(acting):
        count = prod(max(shape.count(role, turn, depth) for turn in (0, depth)) for role in roles)
        if count > MAX_LEAVES:
            raise ConfigError(
                f"algorithm: {shape.name} has {count:,} joint actions where {', '.join(roles)} act at once; expected "
                f"at most {MAX_LEAVES:,}. Lower algorithm.k, or use algorithm.joint=aligned."
            )


async def _decisions(experiment: Experiment) -> tuple[list[list[str]], list[int]]:
    """The roles that act at each decision of an episode of empty answers, and the decisions that pay nobody."""
    env = experiment.env_spec.make(experiment.env_spec.tasks("train")[0])
    acting: list[list[str]] = []
    unpaid: list[int] = []
    while (asked := env.observe()) and len(acting) < MAX_DECISIONS:
        reward = await env.step(dict.fromkeys(asked, ""))
        if not any(pays(reward, role, experiment.plan.credit.alpha) for role in asked):
            unpaid.append(len(acting))
        acting.append(list(asked))
    return acting, unpaid
