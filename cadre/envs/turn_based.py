"""Environments in which one role acts at a time."""

from __future__ import annotations

from typing import ClassVar

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


class OneAgent(TurnBased):
    """One agent that does all, in one conversation: what it said before in this turn stands before what it is asked
    now. Name it before the world among the bases."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    @property
    def acting(self) -> str:
        return "agent"

    def earlier(self) -> tuple[str, str] | None:
        """What it was asked first in this turn and what it said, once it has."""
        raise NotImplementedError

    def conversation(self) -> tuple[Message, ...]:
        earlier, asked = self.earlier(), super().conversation()
        return asked if earlier is None else (Message("user", earlier[0]), Message("assistant", earlier[1]), *asked)
