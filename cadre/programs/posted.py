"""Rewards that a program posts or returns: a number for the team, or an object that says more."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cadre.errors import nearest
from cadre.programs import fields
from cadre.programs.refusal import Refused
from cadre.types import Reward

NAMES = ("team", "local", "parts", "success")


@dataclass(frozen=True)
class Outcome:
    """What an episode came to: a reward, and whether the task was solved where that was said."""

    reward: Reward = field(default_factory=Reward)
    success: bool | None = None


def reward_of(body: Mapping[str, Any]) -> Reward:
    """`{"team": 1.0, "local": {"planner": -0.1}, "parts": {"goal": 1.0}}`. Raises Refused for anything else."""
    return outcome_of({**body, "success": None}).reward


def outcome_of(value: Any) -> Outcome:
    """A number, true or false, None, or an object as above with `success`. Raises Refused for anything else."""
    if isinstance(value, bool):
        return Outcome(Reward(team=float(value)), value)
    if value is None or isinstance(value, int | float):
        return Outcome(Reward(team=_number(value or 0.0, "reward")))
    if not isinstance(value, Mapping):
        raise Refused(400, f"reward: got {fields.shown(value)}; expected a number, or an object.")
    for name in value:
        if name not in NAMES:
            known = f"expected {', '.join(NAMES)}.{nearest(str(name), NAMES)}"
            raise Refused(400, f"reward: unknown field {str(name)[:80]!r}; {known}")
    success = value.get("success")
    if success is not None:
        fields.flag(success, "success")
    local, parts = (_numbers(value.get(name), name) for name in ("local", "parts"))
    return Outcome(Reward(_number(value.get("team") or 0.0, "team"), local, parts), success)


def _numbers(value: Any, where: str) -> dict[str, float]:
    return {name: _number(number, f"{where}.{name}") for name, number in fields.table(value, where).items()}


def _number(value: Any, where: str) -> float:
    with contextlib.suppress(OverflowError):  # of a whole number that no float holds
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise Refused(400, f"{where}: got {fields.shown(value)}; expected a finite number.", where)


def added(first: Reward, second: Reward) -> Reward:
    """Both together."""
    local = {role: first.local.get(role, 0.0) + second.local.get(role, 0.0) for role in {**first.local, **second.local}}
    parts = {name: first.parts.get(name, 0.0) + second.parts.get(name, 0.0) for name in {**first.parts, **second.parts}}
    return Reward(first.team + second.team, local, parts)
