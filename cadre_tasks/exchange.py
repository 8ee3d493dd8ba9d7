"""Two writers of parts of one thing: at once, one after the other, with a round of discussion, or one agent for both.

The baselines of MAGRPO (arXiv 2508.04652, section 5) are settings of one environment, so that they share its tasks, its
prompts and its reward. `exchange: none` is two answers without communication (put together as they are: naive
concatenation), `pipeline` shows the second writer the first one's text, and `discussion` shows both the other's text
and prompts them once more. Only the last texts are judged, together; drafts are not rewarded. `SingleAgent` writes one
part after the other in one conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from cadre.types import Message, Observation, Reward, Task
from cadre_tasks.from_data import FromData

Exchanges = Literal["none", "pipeline", "discussion"]
SHOWN = 4_000  # characters of a draft that a team mate sees
MATE = "\n\nThis is what your team mate {role} has written, for you to see:\n{text}"
AGAIN = "Your team mate {role} has written:\n{text}\n\nWrite your own part again, so that the two fit together."


class Exchange(FromData):
    """A subclass defines the `writers`, their prompts (`asked`), and how their texts are judged (`judge`); nothing else
    depends on the order in which they write. Settings: the `exchange`, and those of `FromData`."""

    writers: ClassVar[tuple[str, ...]]
    # The texts of this turn that are not judged yet, by role.
    drafts: Mapping[str, str] = MappingProxyType({})

    def __init__(self, task: Task, exchange: Exchanges = "none", **data: Any) -> None:
        super().__init__(task, **data)
        self.exchange: Exchanges = exchange

    def asked(self) -> dict[str, Observation]:
        """Return the prompts of the writers, as if they wrote at once; {} when the episode is over."""
        raise NotImplementedError

    async def judge(self, texts: dict[str, str]) -> Reward:
        """Judge the writers' texts, begin the next turn, and return the reward."""
        raise NotImplementedError

    def observe(self) -> dict[str, Observation]:
        prompts = self.asked()
        if self.exchange == "none" or set(prompts) != set(self.writers):
            return prompts
        if self.exchange == "discussion":
            return {role: self.discussed(prompts[role]) for role in prompts} if self.drafts else prompts
        # A pipeline: the prompt with the drafts of the earlier writers.
        role = self.writers[len(self.drafts)]
        *earlier, last = prompts[role].messages
        drafts = "".join(MATE.format(role=mate, text=text[:SHOWN]) for mate, text in self.drafts.items())
        return {role: Observation(role, (*earlier, replace(last, content=last.content + drafts)))}

    def discussed(self, observation: Observation) -> Observation:
        """Return the writer's conversation with its own draft and those of its team mates."""
        role = observation.role
        drafts = "\n\n".join(
            AGAIN.format(role=writer, text=text[:SHOWN]) for writer, text in self.drafts.items() if writer != role
        )
        messages = (*observation.messages, Message("assistant", self.drafts[role]), Message("user", drafts))
        return Observation(role, messages)

    async def step(self, actions: dict[str, str]) -> Reward:
        # First round of a discussion: only stored, judged after the second.
        if self.exchange == "discussion" and not self.drafts and set(actions) == set(self.writers):
            self.drafts = dict(actions)
            return Reward()
        if self.exchange == "pipeline" and set(actions) <= set(self.writers):
            self.drafts = {**self.drafts, **actions}
            if len(self.drafts) < len(self.writers):
                return Reward()
            # The last writer has written: the drafts of all are judged together.
            actions = dict(self.drafts)
        self.drafts = {}
        return await self.judge(actions)


class SingleAgent(Exchange):
    """One agent that writes the parts one after the other, each with its earlier parts in the conversation. Name it
    before the game among the bases."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    def __init__(self, task: Task, exchange: Literal["none"] = "none", **settings: Any) -> None:
        super().__init__(task, exchange=exchange, **settings)

    def observe(self) -> dict[str, Observation]:
        prompts = self.asked()
        if set(prompts) != set(self.writers):
            return prompts
        conversation: list[Message] = []
        for role, text in self.drafts.items():
            conversation += [*prompts[role].messages, Message("assistant", text)]
        return {"agent": Observation("agent", (*conversation, *prompts[self.writers[len(self.drafts)]].messages))}

    async def step(self, actions: dict[str, str]) -> Reward:
        if "agent" not in actions:
            return await self.judge(actions)
        self.drafts = {**self.drafts, self.writers[len(self.drafts)]: actions["agent"]}
        if len(self.drafts) < len(self.writers):
            return Reward()
        texts, self.drafts = dict(self.drafts), {}
        reward = await self.judge(texts)
        # The one agent is every writer, so it gets all their local rewards.
        local = {"agent": sum(reward.local.values())} if reward.local else {}
        return Reward(reward.team, local, reward.parts)
