"""Environments in which one role acts at a time."""

from __future__ import annotations

from typing import ClassVar

from cadre.env import Env
from cadre.types import Message, Observation, Reward


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
    earlier: tuple[Message, ...] = ()  # what it was asked first in this turn and all that it said, once it has

    @property
    def acting(self) -> str:
        return "agent"

    @property
    def opening(self) -> bool:
        """Whether it is asked for the first of its answers of this turn now."""
        raise NotImplementedError

    def conversation(self) -> tuple[Message, ...]:
        return (*self.earlier, *super().conversation())

    async def step(self, actions: dict[str, str]) -> Reward:
        asked, said = super().conversation(), Message("assistant", actions["agent"])
        self.earlier = (*asked, said) if self.opening else ()
        return await super().step(actions)
