"""Turns the present value of a state and of each role's last answer into the reward of one step.

After every step an environment computes the value of the state for the team and of each role's last answer for the
role; `settle` returns the differences as rewards. The rewards of an episode then sum to the final values: neither
repeating a right answer nor a bad first turn earns anything. An intermediate step may add a value that a later step
takes away again (potential-based shaping: Ng, Harada and Russell 1999).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cadre.types import Reward

# Rewards of an answer, in halves (AT-GRPO, arXiv 2510.11062, equation 4): for its author if it can be read and if it is
# right, for the team if it is right.
FORM, RIGHT, TEAM = 0.1, 0.4, 0.5


@dataclass(frozen=True)
class Account:
    """The rewards paid so far: `Account(team=0.4, local={"reasoner": 0.6})`. Replaced, never changed in place."""

    team: float = 0.0
    local: Mapping[str, float] = field(default_factory=dict)

    def settle(
        self, team: float, local: Mapping[str, float], parts: Mapping[str, float] | None = None
    ) -> tuple[Account, Reward]:
        """Return the account after a step and the reward of the step, which is the difference. Roles that are not named
        keep their value."""
        gains = {role: value - self.local.get(role, 0.0) for role, value in local.items()}
        return Account(team, {**self.local, **local}), Reward(team - self.team, gains, parts or {})
