"""Pairs: `aux` writes a helper function and `main` the requested function, at once and without a message.

HumanEval, CoopHumanEval and MBPP with MAGRPO's graded reward (`cadre_tasks.code.grade_pairs`), given to both together;
with `reward: mixed` a level that one role reaches by itself is given to that role (AT-GRPO, arXiv 2510.11062, equation
4). The reward of a turn is the change of these values (`cadre_tasks.account`). Between turns the two may get
`feedback`; with `expert` a third role, usually frozen, writes what to change.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre.errors import ConfigError
from cadre.types import Message, Observation, Reward, Task
from cadre_tasks.account import Account
from cadre_tasks.code.grade_pairs import Graded, grade
from cadre_tasks.code.inspect import likeness
from cadre_tasks.code.judge import extract_code
from cadre_tasks.data.records import CodingProblem, Kind
from cadre_tasks.exchange import Exchange, SingleAgent

Feedback = Literal["none", "passed", "levels", "failures", "expert"]
EXPERT = "expert"
# The levels that a role reaches by itself, by role; the others need both.
LEVELS = ("aux", "main", "parses", "tests", "calls", "more", "ignored")
LEVELS_OF = {"aux": ("aux",), "main": ("main", "calls", "more", "ignored")}
# Without it an instructed model spends its tokens on words before the code and on examples after it.
ONLY = "Answer with the code of your function alone: no explanation, no tests, no examples.\n\n{task}"
AUX = "Write one Python function named `aux` that helps to solve the task below. "
MAIN = "Write the Python function `{entry}` for the task below. "
ASK = {
    "aux": AUX + "A team mate writes `{entry}` itself at the same time, cannot see your code, and will call `aux`: "
    "leave `{entry}` to them. " + ONLY,
    "main": MAIN + "A team mate writes a helper function `aux` at the same time; you cannot see it, and should call it "
    "and use what it returns. " + ONLY,
}
# One after the other: `main` sees what `aux` has written.
IN_TURN = {
    "aux": AUX + "A team mate writes `{entry}` itself after you, sees your code, and will call `aux`: leave `{entry}` "
    "to them. " + ONLY,
    "main": MAIN + "A team mate has written a helper function `aux`, which you see below; call it and use what it "
    "returns. " + ONLY,
}
# One agent for both.
BY_ONE = {
    "aux": AUX + "You write `{entry}` itself after it, and will call `aux` there: leave `{entry}` for then. " + ONLY,
    "main": MAIN + "Call the helper function `aux` that you have written, and use what it returns. " + ONLY,
}
ASK_EXPERT = (
    "Two team mates solve the task below, one with a helper `aux`, one with `{entry}`. Say briefly what each should "
    "change.\n\n{task}"
)


class Pairs(Exchange):
    """Settings: the `turns`, the `feedback` between them, whether `codebleu` is shown, which is not rewarded, whether
    the `reward` is joint, as published, or mixed, and those of `Exchange`."""

    roles: ClassVar[tuple[str, ...]] = ("aux", "main")
    one_agent: ClassVar[str] = "pairs-single-agent"
    writers: ClassVar[tuple[str, ...]] = ("aux", "main")
    kind: ClassVar[Kind] = "program"
    sets: ClassVar[tuple[str, str]] = ("humaneval", "humaneval")
    held: ClassVar[float] = 32
    functions: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        turns: Annotated[int, Field(ge=1)] = 1,
        feedback: Feedback = "none",
        codebleu: bool = False,
        reward: Literal["joint", "mixed"] = "joint",
        **data: Any,
    ) -> None:
        super().__init__(task, **data)
        if reward == "mixed" and self.exchange == "pipeline":
            raise ConfigError(
                "settings.reward: got mixed with exchange=pipeline, where `aux` has written before anything is judged; "
                "expected joint, or exchange=discussion."
            )
        self.program, self.reward, self.account = CodingProblem(**task.data), reward, Account()
        # Problems without a reference program have nothing to compare with.
        self.codebleu = codebleu and self.program.reference != ""
        self.turns, self.feedback, self.turn = turns, feedback, 0
        self.graded, self.wrote, self.advice = Graded({}), {}, ""  # type: Graded, dict[str, str], str

    @classmethod
    def roles_of(cls, feedback: Feedback = "none", **settings: Any) -> tuple[str, ...]:
        return (*cls.roles, EXPERT) if feedback == EXPERT else cls.roles

    @property
    def success(self) -> bool:
        """True if every test passes."""
        return self.graded.verdict.ok

    def asked(self) -> dict[str, Observation]:
        if self.success or self.turn >= self.turns:
            return {}
        statement, starter = self.program.statement, self.program.starter
        gap = "\n\n" if statement and starter and not statement.endswith("\n") else ""
        words = {"entry": self.program.entry, "task": f"{statement}{gap}{starter}"}
        if self.turn and self.feedback == EXPERT and not self.advice:
            text = ASK_EXPERT.format(**words) + "".join(
                f"\n\n{role} wrote:\n{self.wrote[role]}" for role in self.writers
            )
            return {EXPERT: Observation(EXPERT, (Message("user", text + "\n\n" + "\n".join(failures(self.graded))),))}
        ask = self.wording()
        prompts = {role: (Message("user", ask[role].format(**words)), *self.past(role)) for role in self.writers}
        return {role: Observation(role, messages) for role, messages in prompts.items()}

    def wording(self) -> dict[str, str]:
        """Return the prompt of each writer."""
        return IN_TURN if self.exchange == "pipeline" else ASK

    def past(self, role: str) -> tuple[Message, ...]:
        """Return the role's own last answer and the feedback on it."""
        if not self.turn:
            return ()
        feedback = self.advice or "\n".join(FEEDBACK[self.feedback](self.graded))
        return Message("assistant", self.wrote[role]), Message("user", f"{feedback}\nWrite it again, better.".lstrip())

    async def judge(self, actions: dict[str, str]) -> Reward:
        if EXPERT in actions:
            self.advice = actions[EXPERT].strip() or "Nothing to say."
            return Reward()
        self.graded = await grade(self.program, actions["aux"], actions["main"])
        self.wrote, self.advice, self.turn = dict(actions), "", self.turn + 1
        parts = {**dict.fromkeys(LEVELS, 0.0), **self.graded.parts}  # a level that is not reached is 0 in the logs
        if self.codebleu:
            written = "\n\n".join(extract_code(actions[role]) for role in self.writers)
            parts = parts | await likeness(self.program.reference, written)
        # A level counts once: a role's own levels are not part of the team's reward.
        local: dict[str, float] = {}
        if self.reward == "mixed":
            local = {role: sum(parts[name] for name in names) for role, names in LEVELS_OF.items()}
        self.account, reward = self.account.settle(self.graded.value - sum(local.values()), local, parts)
        return reward


class PairsSingleAgent(SingleAgent, Pairs):
    """One agent that writes the helper first and then the function."""

    def wording(self) -> dict[str, str]:
        return BY_ONE


def silent(graded: Graded) -> list[str]:
    return []


def passed(graded: Graded) -> list[str]:
    """Return one line that says if all tests pass."""
    return ["All tests pass." if graded.verdict.ok else "Not all tests pass."]


def levels(graded: Graded) -> list[str]:
    """Return the levels that were reached, without the text of any test."""
    labels = {"aux": "`aux` is defined", "main": "the function is defined", "parses": "together they parse"}
    reached = [
        f"{text}: {'yes' if graded.parts[name] else 'no'}" for name, text in labels.items() if name in graded.parts
    ]
    uses = {
        "calls": "main calls aux",
        "more": "main does more than that",
        "ignored": "what aux returns changes nothing",
    }
    reached += [
        f"{text}: {'yes' if graded.parts[name] else 'no'}" for name, text in uses.items() if name in graded.parts
    ]
    return [*reached, f"tests passed: {graded.verdict.passed} of {graded.verdict.total}"]


def failures(graded: Graded) -> list[str]:
    """Return the levels and the text of the failed tests."""
    return [*levels(graded), *(f"failed: {line[:300]}" for line in graded.verdict.failures[:3])]


FEEDBACK = {"none": silent, "passed": passed, "levels": levels, "failures": failures, EXPERT: failures}
