"""Schedules over policies: which of them learn at a step, while the others stay as they are.

A schedule is a function of the number of the step, from 0, and of the names of all trained policies. So a run that is
resumed goes on as if it had not stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cadre.errors import ContractError, nearest
from cadre.settings.user_code import load_function

# Returns the policies that learn, from the number of the step and the names of the trained policies.
Schedule = Callable[[int, Sequence[str]], Iterable[str]]


def together(step: int, policies: Sequence[str]) -> Sequence[str]:
    """Return all policies."""
    return policies


def round_robin(step: int, policies: Sequence[str]) -> Sequence[str]:
    """Return one policy, each in its turn, in the order of `team.roles` (TeamTR, arXiv 2605.15207)."""
    return [policies[step % len(policies)]]


SCHEDULES: dict[str, Schedule] = {"together": together, "round_robin": round_robin}


def learning_policies(name: str, period: int, step: int, policies: Sequence[str]) -> frozenset[str]:
    """Return the policies that learn at a step; a bundled schedule goes on after `period` steps. Raises ContractError
    if a function of the user's returns anything else than names of trained policies."""
    schedule = load_function("train.schedule", name, SCHEDULES)
    result: object = schedule(step // period if name in SCHEDULES else step, list(policies))
    names = list(result) if isinstance(result, Iterable) and not isinstance(result, str) else None
    wrong = [name for name in names or () if name not in policies]
    if not names or wrong:
        raise ContractError(
            f"train.schedule: {name} returned {result!r:.80} for step {step}; expected a list of one or more of the "
            f"trained policies, {', '.join(policies)}. Return those that learn at that step."
            f"{nearest(str(wrong[0]), policies) if wrong else ''}"
        )
    return frozenset(names)
