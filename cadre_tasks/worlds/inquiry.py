"""Two roles one after the other: one inquires, a step at a time, the other gives the one answer that is judged.

A step of the inquiry decides nothing and is not rewarded. The team gets .5 times the value of the answer, its author .4
times that and .1 for an answer that can be read (AT-GRPO, arXiv 2510.11062, equation 4); with `reward: outcome` both
halves go to a fully right answer only. `Single` is one agent that does both.
"""

from __future__ import annotations

from cadre.types import Message, Reward, Task
from cadre_tasks.turn_based import OneAgent, TurnBased
from cadre_tasks.worlds.relay import FORM, RIGHT, TEAM, Prompts, Rewards


class Inquiry(TurnBased):
    """The team form: `roles` are the inquirer and the answerer. A world defines the prompts and the value of
    answers."""

    def __init__(self, task: Task, prompts: Prompts, reward: Rewards, /) -> None:
        super().__init__(task)
        self.prompts, self.reward = prompts, reward
        self.worth: float | None = None  # of the answer, from 0 to 1

    @property
    def inquiring(self) -> bool:
        """True if the next action is a step of the inquiry, not the answer."""
        raise NotImplementedError

    def ask(self) -> str:
        """Return the prompt for the next step or for the answer."""
        raise NotImplementedError

    @property
    def success(self) -> bool:
        """True if the answer has the full value."""
        return self.worth == 1.0

    @property
    def over(self) -> bool:
        return self.worth is not None

    @property
    def acting(self) -> str:
        return self.roles[0 if self.inquiring else 1]

    def conversation(self) -> tuple[Message, ...]:
        return (Message("user", self.ask()),)

    def pay(self, role: str, worth: float, formed: bool, name: str) -> Reward:
        """Return the reward of the answer: `worth` is its value, `formed` if it could be read, `name` the prefix of its
        parts."""
        self.worth = worth
        parts = {f"{name}/worth": worth, f"{name}/formed": float(formed)}
        if self.reward == "outcome":
            return Reward(TEAM * self.success, {role: TEAM * self.success}, parts)
        return Reward(TEAM * worth, {role: FORM * formed + RIGHT * worth}, parts)


class Single(OneAgent, Inquiry):
    """One agent that inquires and answers, in one conversation. Name it before the world among the bases."""

    @property
    def opening(self) -> bool:
        return self.inquiring
