"""Environments in which one role acts at a time."""

from __future__ import annotations

from typing import ClassVar, Literal

from cadre.env import Env
from cadre.types import Message, Observation, Reward

# Settings of several environments: the wording of prompts, for small models or in full, and what is rewarded.
Prompts = Literal["compact", "full"]
Rewards = Literal["shaped", "outcome"]


class TurnBased(Env):
    """Until the episode is `over`, only the role `acting` acts; its prompt is the `conversation`."""

    @property
    def over(self) -> bool:
        raise NotImplementedError

    @property
    def acting(self) -> str:
        raise NotImplementedError

    def conversation(self) -> tuple[Message, ...]:
        """Return the prompt of the role that acts."""
        raise NotImplementedError

    def observe(self) -> dict[str, Observation]:
        return {} if self.over else {self.acting: Observation(self.acting, self.conversation())}


class OneAgent(TurnBased):
    """One agent for all roles, in one conversation: its prompts and answers of this turn precede the present prompt.
    Name it before the world among the bases."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)
    # The earlier prompts of this turn and their answers.
    earlier: tuple[Message, ...] = ()

    @property
    def acting(self) -> str:
        return "agent"

    @property
    def opening(self) -> bool:
        """True if the agent is prompted for another answer of this turn than the last."""
        raise NotImplementedError

    def conversation(self) -> tuple[Message, ...]:
        return (*self.earlier, *super().conversation())

    async def step(self, actions: dict[str, str]) -> Reward:
        prompt, answer = super().conversation(), Message("assistant", actions["agent"])
        # After the last answer of a turn the next one begins with an empty conversation.
        self.earlier = (*self.earlier, *prompt, answer) if self.opening else ()
        return await super().step(actions)
