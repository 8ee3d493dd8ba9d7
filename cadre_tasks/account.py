"""Turns the present value of a state and of each role's last answer into the reward of one step.

An environment says after every step what the state is worth to the team and what each role's last answer is worth to
the role; `settle` pays the differences. Sums over an episode are then what it ends at: neither repeating a right answer
nor a bad first turn pays. Where a step promises what a later one decides, the promise stands until then and is given
back (potential-based shaping: Ng, Harada and Russell 1999).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cadre.types import Reward


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
