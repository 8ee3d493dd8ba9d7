"""Two roles one after the other: one drafts an answer, which is tried; the other sees the result and decides.

An answer is rewarded in halves (AT-GRPO, arXiv 2510.11062, equation 4): the team's value is .5 times that of the
answer, its author's .4 times that, and .1 for an answer that can be read. A draft decides nothing, so its value counts
for the team only until the decision (potential-based shaping). The reward of a step is the change of these values
(`cadre_tasks.account`), so that neither a repeated right draft nor a bad first turn pays. `RelayOneTurn` is the decider
without a draft; `RelaySingleAgent` is one agent that does both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cadre.envs import drawings
from cadre.types import Drawing, Message, Reward, Task
from cadre_tasks.account import Account
from cadre_tasks.answers import behind, label
from cadre_tasks.code.judge import fenced
from cadre_tasks.turn_based import OneAgent, TurnBased

# Rewards of an answer: for the author its form and being right, for the team being right.
FORM, RIGHT, TEAM = 0.1, 0.4, 0.5
LONGEST = 20_000  # letters of an answer that are looked at; none of a reference is near it
SHOWN = 2000  # letters of an answer that the other role is shown

Turns = Annotated[int, Field(ge=1, le=50)]
Prompts = Literal["compact", "full"]
Rewards = Literal["shaped", "outcome"]


@dataclass(frozen=True)
class Judged:
    """The judgement of an answer: if it could be read (`formed`), if it solves the task, its value from 0 to 1, and the
    text for the other role, in full (`feedback`) and in the compact wording (`brief`). Neither gives hidden data away.
    """

    formed: bool
    solved: bool
    worth: float
    feedback: str
    brief: str


class Relay(TurnBased):
    """The team form: `roles` are the drafter and the decider. A world defines the prompts and the value of an
    answer."""

    roles: ClassVar[tuple[str, ...]]
    language: ClassVar[str] = ""  # the mark of a fenced block that holds the answer
    # The word that precedes an answer, with a colon.
    word: ClassVar[str] = ""
    titles: ClassVar[tuple[str, str]]  # first lines of the compact prompts for a draft and for a decision

    def __init__(self, task: Task, turns: Turns, prompts: Prompts, reward: Rewards, /) -> None:
        super().__init__(task)
        self.turns, self.prompts, self.reward = turns, prompts, reward
        self.turn, self.said, self.won, self.account = 0, "", False, Account()
        self.draft: Judged | None = None
        self.last: Judged | None = None  # the last decision
        # The local rewards of the last draft and of the last decision.
        self.earned = [0.0, 0.0]

    async def judge(self, text: str) -> Judged:
        """Judge an answer, without changing any state."""
        raise NotImplementedError

    def question(self) -> str:
        """Return the full task text for both roles."""
        raise NotImplementedError

    def brief(self) -> str:
        """Return the task text in the compact wording."""
        raise NotImplementedError

    def asked(self) -> tuple[str, str]:
        """Return the full prompts' requests for a draft and for a decision."""
        raise NotImplementedError

    @property
    def success(self) -> bool:
        """True if the last decision solves the task."""
        return self.won

    @property
    def over(self) -> bool:
        return self.won or self.turn >= self.turns

    @property
    def drafting(self) -> bool:
        return self.draft is None

    @property
    def acting(self) -> str:
        return self.roles[0 if self.drafting else 1]

    def conversation(self) -> tuple[Message, ...]:
        return (Message("user", self.ask(self.drafting)),)

    def ask(self, drafting: bool) -> str:
        """Return the prompt for a draft or for a decision."""
        if self.prompts == "compact":
            shown = f"\n{self.said[:SHOWN]}\n{self.draft.brief}" if self.draft and not drafting else ""
            return f"{self.titles[0 if drafting else 1]}\n{self.brief()}{shown}"
        return f"{self.question()}\n\n{self.before()}{'' if drafting else self.report()}{self.asked()[not drafting]}"

    def before(self) -> str:
        """Return the feedback on the last turn's decision."""
        return f"The last answer was not right. What came of it:\n{self.last.feedback}\n\n" if self.last else ""

    def report(self) -> str:
        """Return the draft and its feedback."""
        if self.draft is None:
            return ""
        # The end of a long answer holds the answer itself.
        return f"A team mate answered:\n{self.said[-SHOWN:]}\nWhat came of it:\n{self.draft.feedback}\n\n"

    def render(self) -> Drawing:
        """Return the question, and between draft and decision the draft with its feedback."""
        parts = [("question", drawings.text(self.question()))]
        if self.draft is not None:
            parts += [("draft", drawings.text(self.said)), ("what came of it", drawings.text(self.draft.feedback))]
        return drawings.several(*parts)

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        judged = await self.judge(answer_in(text, self.language, self.word))
        if self.drafting:
            self.said, self.draft = text[:LONGEST].strip(), judged
            return self.pay(role, 0, judged, "draft")
        self.won, self.last, self.draft, self.said, self.turn = judged.solved, judged, None, "", self.turn + 1
        return self.pay(role, 1, judged, "decision")

    def pay(self, role: str, index: int, judged: Judged, name: str) -> Reward:
        """Return the reward of a draft (index 0) or a decision (1): the change in the values of the team and the
        author."""
        if self.reward == "shaped":
            worth, self.earned[index] = judged.worth, FORM * judged.formed + RIGHT * judged.worth
        else:
            worth, self.earned[index] = float(judged.solved), TEAM * judged.solved
        parts = {f"{name}/worth": judged.worth, f"{name}/formed": float(judged.formed)}
        self.account, reward = self.account.settle(TEAM * worth, {role: self.local(index)}, parts)
        return reward

    def local(self, index: int) -> float:
        """Return the total local value of the author of a draft (index 0) or a decision (1)."""
        return self.earned[index]


class RelayOneTurn(Relay):
    """One role that decides without a draft. Name it before the world among the bases, and `roles` in the class."""

    @property
    def drafting(self) -> bool:
        return False

    @property
    def acting(self) -> str:
        return self.roles[0]


class RelaySingleAgent(OneAgent, Relay):
    """One agent that drafts, sees the feedback, and decides, in one conversation. Each step earns half."""

    @property
    def opening(self) -> bool:
        return self.drafting

    def report(self) -> str:
        return f"What came of your answer:\n{self.draft.feedback}\n\n" if self.draft else ""

    def local(self, index: int) -> float:
        return sum(self.earned) / 2


def answer_in(text: str, language: str, word: str = "") -> str:
    """Return the text behind the last "word:", if answers end with one. Otherwise the last closed block that is marked
    as the language, else the last unmarked one (beside an answer, blocks with another mark hold its output), else the
    whole text."""
    text = text[:LONGEST]
    if word and label(word).search(text):
        return behind(word, text)
    all_blocks = fenced(text)
    blocks = [block.text for block in all_blocks if block.mark == language]
    blocks = blocks or [block.text for block in all_blocks if not block.mark]
    return (blocks[-1] if blocks else text).strip()
