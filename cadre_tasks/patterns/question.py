"""The shared base of the patterns: a question, the check of an answer, and its reward.

Right answers are rewarded in halves (AT-GRPO, arXiv 2510.11062, equation 4): .5 to the team while the team's answer is
right, .4 to the author of a right answer, and .1 for an answer in the requested form. The reward of a step is the
change of these values (`cadre_tasks.account`). Each pattern defines the team's answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre.types import Message, Observation, Reward, Task
from cadre_tasks.account import Account
from cadre_tasks.data.public_sets import last_boxed
from cadre_tasks.data.records import Kind
from cadre_tasks.from_data import FromData
from cadre_tasks.maths import same_answer as math

BOX = "Put the final answer into \\boxed{}."
Count = Annotated[int, Field(ge=1, le=64)]
Several = Annotated[int, Field(ge=2, le=64)]
# Rewards of an answer: for the author its form and being right, for the team being right.
FORM, RIGHT, TEAM = 0.1, 0.4, 0.5
VERDICT = "End with `Verdict: right` or `Verdict: wrong`."


class Question(FromData):
    """A problem of mathematics. Settings: those of `FromData`."""

    kind: ClassVar[Kind] = "problem"
    sets: ClassVar[tuple[str, str]] = ("math-train", "math500")

    def __init__(self, task: Task, **data: Any) -> None:
        super().__init__(task, **data)
        self.won, self.account = False, Account()

    @classmethod
    def require(cls) -> None:
        math.MATH_VERIFY.file()

    @property
    def question(self) -> str:
        """The question with the required form of an answer."""
        return f"{self.task.data['question']}\n{BOX}"

    def formed(self, answer: str) -> bool:
        """Return True if an answer has the form that `question` asks for."""
        return bool(last_boxed(answer))

    async def right(self, answer: str) -> bool:
        """Return True if an answer, as a model writes it, is right."""
        return await math.solves(self.task.data["answer"], last_boxed(answer), self.task.data["tolerance"])

    async def majority(self, answers: Iterable[str]) -> bool:
        """Return True if the majority answer is right."""
        majority_answer = await math.majority([last_boxed(answer) for answer in answers])
        return majority_answer is not None and await self.right(f"\\boxed{{{majority_answer}}}")

    def earned(self, answer: str, right: bool) -> float:
        """Return an answer's reward for its author."""
        return FORM * self.formed(answer) + RIGHT * right

    def settle(self, team: float, local: Mapping[str, float], parts: Mapping[str, float] | None = None) -> Reward:
        """Return the reward of a step after which the team and the roles have these values."""
        self.account, reward = self.account.settle(team, local, parts)
        return reward

    @property
    def success(self) -> bool:
        """True if the team's last answer is right."""
        return self.won


def numbered(role: str, count: int) -> tuple[str, ...]:
    """Return the names of several agents of a role: `numbered("debater", 2)` is ("debater1", "debater2")."""
    return tuple(f"{role}{number}" for number in range(1, count + 1))


def asked(role: str, *parts: str) -> Observation:
    """Return a prompt of one message with these paragraphs, empty ones left out."""
    return Observation(role, (Message("user", "\n\n".join(part for part in parts if part)),))


def listed(title: str, texts: Sequence[str], limit: int = 1500) -> str:
    """Return texts under numbered titles, each without its beginning beyond `limit` characters: answers end with the
    result."""
    return "\n\n".join(f"{title} {number}:\n{text[-limit:]}" for number, text in enumerate(texts, 1))


SAYS = re.compile(
    r"verdict[*_`]{0,3} ?[:\uff1a][^a-z0-9]{0,9}(?:boxed\W{1,2}|text\W{1,2}){0,2}[^a-z0-9]{0,6}"
    r"(right|wrong|correct|incorrect)(?![a-z0-9])(?!\W{0,6}or\b)"
)
OFFER = re.compile(r"verdict[^a-z0-9]{1,12}right\W{1,6}or\W{1,6}verdict\W{1,12}wrong(?![a-z0-9])")
MEANS: dict[str, Literal["right", "wrong"]] = {
    "correct": "right",
    "incorrect": "wrong",
    "right": "right",
    "wrong": "wrong",
}


def verdict(text: str) -> Literal["right", "wrong"] | None:
    """Return the last verdict of a judge, in a box, quotes, brackets, marks of emphasis or in none of them; None if
    there is no verdict or both words are offered, as where a judge repeats what it was asked."""
    verdicts = SAYS.findall(OFFER.sub("", text.lower()))
    return MEANS[verdicts[-1]] if verdicts else None
