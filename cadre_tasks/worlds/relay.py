"""Two roles after each other: one drafts an answer, which is tried; the other sees what came of it and decides.

Being right pays in halves (AT-GRPO, arXiv 2510.11062, equation 4): the team stands at .5 times what the answer is
worth, its author at .4 times it and .1 for an answer that can be read. A draft decides nothing, so what it would be
worth is lent to the team until the decision. A step pays what it changed (`cadre_tasks.account`), so that neither a
right draft again nor a bad first turn pays. `Alone` is the one who decides, without a draft; `Solo` is one agent that
does both.
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

FORM, RIGHT, TEAM = 0.1, 0.4, 0.5  # what an answer pays its author for its form and for being right, and the team
LONGEST = 20_000  # letters of an answer that are looked at; none of a reference is near it
SHOWN = 2000  # letters of an answer that the other role is shown

Turns = Annotated[int, Field(ge=1, le=50)]
Prompts = Literal["compact", "full"]
Rewards = Literal["shaped", "outcome"]


@dataclass(frozen=True)
class Judged:
    """What an answer came to: whether it could be read, whether it solves the task, what it is worth from 0 to 1, and
    what the other role is told of it, in full and in the compact wording. Neither tells what is hidden."""

    formed: bool
    solved: bool
    worth: float
    told: str
    brief: str


class Relay(TurnBased):
    """The team form: `roles` are who drafts and who decides. A world says what is asked and what an answer is worth."""

    roles: ClassVar[tuple[str, ...]]
    language: ClassVar[str] = ""  # the mark of a fenced block that holds the answer
    word: ClassVar[str] = ""  # that stands with a colon before it
    titles: ClassVar[tuple[str, str]]  # first lines of the compact prompts for a draft and for a decision

    def __init__(self, task: Task, turns: Turns, prompts: Prompts, reward: Rewards, /) -> None:
        super().__init__(task)
        self.turns, self.prompts, self.reward = turns, prompts, reward
        self.turn, self.said, self.won, self.account = 0, "", False, Account()
        self.draft: Judged | None = None
        self.last: Judged | None = None  # the last decision
        self.earned = [0.0, 0.0]  # what the last draft and the last decision pay their author

    async def judge(self, text: str) -> Judged:
        """What an answer comes to, its state changed by nothing."""
        raise NotImplementedError

    def question(self) -> str:
        """What both roles are shown, in full."""
        raise NotImplementedError

    def brief(self) -> str:
        """The same in the compact wording."""
        raise NotImplementedError

    def asked(self) -> tuple[str, str]:
        """What the full prompts want from a draft and from a decision."""
        raise NotImplementedError

    @property
    def success(self) -> bool:
        """The last decision solves the task."""
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
        """The prompt for a draft or for a decision."""
        if self.prompts == "compact":
            shown = f"\n{self.said[:SHOWN]}\n{self.draft.brief}" if self.draft and not drafting else ""
            return f"{self.titles[0 if drafting else 1]}\n{self.brief()}{shown}"
        return f"{self.question()}\n\n{self.before()}{'' if drafting else self.report()}{self.asked()[not drafting]}"

    def before(self) -> str:
        """What came of the last turn's decision."""
        return f"The last answer was not right. What came of it:\n{self.last.told}\n\n" if self.last else ""

    def report(self) -> str:
        """The draft and what came of it."""
        if self.draft is None:
            return ""
        return f"A team mate answered:\n{self.said[-SHOWN:]}\nWhat came of it:\n{self.draft.told}\n\n"

    def render(self) -> Drawing:
        """The question, and between draft and decision the draft with what came of it."""
        parts = [("question", drawings.text(self.question()))]
        if self.draft is not None:
            parts += [("draft", drawings.text(self.said)), ("what came of it", drawings.text(self.draft.told))]
        return drawings.several(*parts)

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        judged = await self.judge(answer_in(text, self.language, self.word))
        return self.drafted(role, text, judged) if self.drafting else self.decided(role, judged)

    def drafted(self, role: str, text: str, judged: Judged) -> Reward:
        self.said, self.draft = text[:LONGEST].strip(), judged
        return self.pay(role, 0, judged, "draft")

    def decided(self, role: str, judged: Judged) -> Reward:
        self.won, self.last, self.draft, self.said, self.turn = judged.solved, judged, None, "", self.turn + 1
        return self.pay(role, 1, judged, "decision")

    def pay(self, role: str, place: int, judged: Judged, name: str) -> Reward:
        """Settle what the team and the author stand at after a draft (place 0) or a decision (1)."""
        if self.reward == "shaped":
            worth, self.earned[place] = judged.worth, FORM * judged.formed + RIGHT * judged.worth
        else:
            worth, self.earned[place] = float(judged.solved), TEAM * judged.solved
        parts = {f"{name}/worth": judged.worth, f"{name}/formed": float(judged.formed)}
        self.account, reward = self.account.settle(TEAM * worth, {role: self.local(place)}, parts)
        return reward

    def local(self, place: int) -> float:
        """What the author of a draft or a decision stands at."""
        return self.earned[place]


class Alone(Relay):
    """One role that decides without a draft. Name it before the world among the bases, and `roles` in the class."""

    @property
    def drafting(self) -> bool:
        return False

    @property
    def acting(self) -> str:
        return self.roles[0]


class Solo(OneAgent, Relay):
    """One agent that drafts, sees what came of it, and decides, in one conversation. Each step pays half."""

    @property
    def opening(self) -> bool:
        return self.drafting

    def report(self) -> str:
        return f"What came of your answer:\n{self.draft.told}\n\n" if self.draft else ""

    def local(self, place: int) -> float:
        return sum(self.earned) / 2


def answer_in(text: str, language: str, word: str = "") -> str:
    """What stands behind the last "word:", where answers end with one. Otherwise the last closed block that is marked
    as the language, or where there is none the last that is marked as nothing, which beside an answer is what comes of
    it; the text as it is where there is neither."""
    text = text[:LONGEST]
    if word and label(word).search(text):
        return behind(word, text)
    found = fenced(text)
    blocks = [block.text for block in found if block.mark == language]
    blocks = blocks or [block.text for block in found if not block.mark]
    return (blocks[-1] if blocks else text).strip()
