"""Environments in which one role acts at a time."""

from __future__ import annotations

from cadre.env import Env
from cadre.types import Message, Observation


class TurnBased(Env):
    """Until the episode is `over`, the role `acting` is shown the `conversation`, and nobody else acts."""

    @property
    def over(self) -> bool:
        raise NotImplementedError

    @property
    def acting(self) -> str:
        raise NotImplementedError

    def conversation(self) -> tuple[Message, ...]:
        """The prompt of the role that acts."""
        raise NotImplementedError

    def observe(self) -> dict[str, Observation]:
        return {} if self.over else {self.acting: Observation(self.acting, self.conversation())}
