"""The published algorithms as points in the four axes: what the configuration names becomes a shape and a credit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cadre import shape as shapes
from cadre.config import Algorithm, AtGrpo, Custom, Grpo
from cadre.credit import Credit
from cadre.errors import ConfigError
from cadre.shape import Shape


@dataclass(frozen=True)
class Plan:
    """How an experiment samples and what its samples are worth."""

    shape: Shape
    credit: Credit


def at_grpo(chosen: AtGrpo) -> Plan:
    """Siblings at every decision, `(r - mean) / std` among them, the argmax goes on (arXiv 2510.11062, algorithm 1)."""
    return Plan(shapes.greedy(chosen.k, chosen.carry), Credit("step", "node", "mean", chosen.scale, chosen.alpha))


def grpo(chosen: Grpo) -> Plan:
    """k whole episodes, `(R - mean) / std` over them by task and role (arXiv 2402.03300, equation 3)."""
    return Plan(shapes.independent(chosen.k), Credit("episode", "task_role", "mean", chosen.scale, chosen.alpha))


def custom(chosen: Custom) -> Plan:
    """The axes named one by one. What the chosen shape would ignore is refused."""
    for option, owner in (("carry", "greedy"), ("joint", "full")):
        if getattr(chosen, option) is not None and chosen.shape != owner:
            raise ConfigError(
                f"algorithm.{option}: got {getattr(chosen, option)!r} with shape {chosen.shape}, which ignores it; "
                f"only {owner} has a {option} rule. Remove the option or set algorithm.shape={owner}."
            )
    if chosen.shape == "greedy" and chosen.returns != "step":
        raise ConfigError(
            f"algorithm.returns: got {chosen.returns} with shape greedy, where siblings left behind have no future to "
            "sum; expected step. Set algorithm.returns=step, or a shape that plays every branch out."
        )
    if chosen.gamma != 1.0 and chosen.returns != "reward_to_go":
        raise ConfigError(
            f"algorithm.gamma: got {chosen.gamma} with returns {chosen.returns}, which ignores it; expected 1. "
            "Remove it or set algorithm.returns=reward_to_go."
        )
    shape = {
        "independent": lambda: shapes.independent(chosen.k),
        "greedy": lambda: shapes.greedy(chosen.k, chosen.carry or "argmax"),
        "full": lambda: shapes.full(chosen.k, chosen.joint or "aligned"),
    }[chosen.shape]()
    return Plan(shape, Credit(chosen.returns, chosen.group, chosen.baseline, chosen.scale, chosen.alpha, chosen.gamma))


PRESETS: dict[type, Callable[[Any], Plan]] = {AtGrpo: at_grpo, Grpo: grpo, Custom: custom}


def plan(algorithm: Algorithm) -> Plan:
    """The shape and the credit of a named preset."""
    return PRESETS[type(algorithm)](algorithm)
