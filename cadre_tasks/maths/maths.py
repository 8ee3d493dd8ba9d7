"""Mathematics: a reasoner and a tool that writes Python answer at once, over several turns, until the two agree.

Right answers are rewarded in halves (AT-GRPO, arXiv 2510.11062, equation 4): the team's value is .4 while the
reasoner's last answer, which is the team's, is right; a role's is .4 while its own is, plus .2 for a box (the reasoner)
or .1 each for a program that builds and runs (the tool). The reward of a turn is the change of these values
(`cadre_tasks.account`). `MathsSingleAgent` is one agent with the tool, `MathsVote` a vote of n independent answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre.envs import drawings
from cadre.types import Drawing, Message, Observation, Reward, Sample, Task
from cadre_tasks import sandbox
from cadre_tasks.account import Account
from cadre_tasks.code.judge import builds, extract_code
from cadre_tasks.cut_off import count_cut_off, describe_cut_off
from cadre_tasks.data.public_sets import last_boxed
from cadre_tasks.data.records import Kind
from cadre_tasks.from_data import FromData
from cadre_tasks.maths import same_answer as math

LIMITS = sandbox.Limits(cpu_s=5.0)
FORMAT, BUILDS, RUNS = 0.2, 0.1, 0.1
RIGHT = 0.4  # for a right answer: as much to its author, and as much to the team for the team's
REASON = "Solve this problem step by step and put the final answer into \\boxed{}.\n\n"
PROGRAM = "Write a Python program that computes the answer to this problem and prints it, alone, as its last line.\n\n"


class Maths(FromData):
    """The team form. Settings: the `turns` that the team gets, and those of `FromData`."""

    roles: ClassVar[tuple[str, ...]] = ("reasoner", "tool")
    one_agent: ClassVar[str] = "maths-single-agent"
    kind: ClassVar[Kind] = "problem"
    sets: ClassVar[tuple[str, str]] = ("math-train", "math500")

    def __init__(self, task: Task, turns: Annotated[int, Field(ge=1)] = 3, **data: Any) -> None:
        super().__init__(task, **data)
        self.turns, self.turn, self.agreed, self.right = turns, 0, False, False
        self.said: dict[str, str] = {}  # each role's last answer
        self.cut_off: dict[str, int] = {}  # tokens of each role's last completion that reached its token limit
        self.account = Account()

    @classmethod
    def require(cls) -> None:
        math.MATH_VERIFY.file()

    @property
    def success(self) -> bool:
        """True if the reasoner's last answer is right; if the two agree, it is the team's."""
        return self.right

    def observe(self) -> dict[str, Observation]:
        if self.agreed or self.turn >= self.turns:
            return {}
        question, past = self.task.data["question"], self.past()
        prompts = {"reasoner": REASON + question + past, "tool": PROGRAM + question + past}
        return {role: Observation(role, (Message("user", text),)) for role, text in prompts.items()}

    def past(self) -> str:
        """Return the last answers of both roles, which both see."""
        if self.turn == 0:
            return ""
        answers = [
            f"the {role} answered {self.said.get(role, 'nothing')[:500]}"
            + (f" (cut off at {self.cut_off[role]:,} tokens)" if role in self.cut_off else "")
            for role in self.roles
        ]
        return f"\n\nIn turn {self.turn} {' and '.join(answers)}. You do not agree. Find the mistake."

    def render(self) -> Drawing:
        """Return a table of each role's last answer."""
        answers = [[role, self.said.get(role, "no answer")] for role in self.roles]
        return drawings.table(("role", "last answer"), answers) if self.turn else None

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        self.cut_off = count_cut_off(samples)
        return await super().step_samples(samples)

    async def step(self, actions: dict[str, str]) -> Reward:
        boxed, ran = await asyncio.gather(self.reason(actions["reasoner"]), self.compute(actions["tool"]))
        (answer, reasoner), (printed, tool) = boxed, ran
        # Two missing answers are no agreement.
        self.agreed = bool(answer and printed) and await math.same_answer(printed or "", answer or "")
        self.right = reasoner["correct"] > 0
        self.said = {role: text for role, text in (("reasoner", answer), ("tool", printed)) if text}
        self.turn += 1
        parts = {f"reasoner/{name}": value for name, value in reasoner.items()}
        parts |= {f"tool/{name}": value for name, value in tool.items()} | {"agreed": float(self.agreed)}
        local = {"reasoner": sum(reasoner.values()), "tool": sum(tool.values())}
        self.account, reward = self.account.settle(RIGHT * self.right, local, parts)
        return reward

    async def reason(self, text: str) -> tuple[str | None, dict[str, float]]:
        """Return the boxed answer and its reward by part."""
        answer = last_boxed(text)
        return answer, {"format": FORMAT * bool(answer), "correct": RIGHT * await self.solved(answer)}

    async def compute(self, text: str) -> tuple[str | None, dict[str, float]]:
        """Return the last line that the program prints and its reward by part."""
        program = extract_code(text)
        built, result = await asyncio.gather(builds(program), sandbox.run(program, "", LIMITS))
        # A program that fails may have printed something before: that is no answer.
        lines = result.stdout.strip().splitlines() if built and result.status == "ok" else []
        answer = lines[-1].strip() if lines else None
        correct = RIGHT * await self.solved(answer)
        return answer, {"builds": BUILDS * built, "runs": RUNS * bool(lines), "correct": correct}

    async def solved(self, answer: str | None) -> bool:
        return await math.solves(self.task.data["answer"], answer, self.task.data["tolerance"])


class MathsSingleAgent(Maths):
    """One agent with the tool: it writes a program, sees its output, and answers; again if the two differ. A program is
    rewarded for building and running. If its output is right, that counts for the team until the answer."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)
    written: tuple[Message, ...] = ()  # the conversation so far
    printed: str | None = None
    program_cut_off: int = 0  # tokens of the last program if it reached its token limit
    # A program has run, and the next action is the answer.
    answering: bool = False
    # The rewards of the agent's last program and of its last answer.
    program: float = 0.0
    answer: float = 0.0

    def observe(self) -> dict[str, Observation]:
        if self.agreed or self.turn >= self.turns:
            return {}
        return {"agent": Observation("agent", (*self.written, Message("user", self.ask())))}

    def ask(self) -> str:
        if self.answering:
            cut = describe_cut_off(self.program_cut_off)
            return (
                f"The program printed {(self.printed or 'nothing')[:500]}. {cut}Put the final answer into \\boxed{{}}."
            )
        retry = "" if self.turn == 0 else "That is not what the program printed. Start again.\n\n"
        return retry + PROGRAM + self.task.data["question"]

    async def step(self, actions: dict[str, str]) -> Reward:
        text = actions["agent"]
        self.written = (*self.written, Message("user", self.ask()), Message("assistant", text))
        if not self.answering:
            return await self.try_program(text)
        answer, parts = await self.reason(text)
        self.agreed = bool(answer and self.printed) and await math.same_answer(self.printed or "", answer or "")
        self.right, self.turn = parts["correct"] > 0, self.turn + 1
        self.answer, self.answering = sum(parts.values()), False
        return self.settle(RIGHT * self.right, {**parts, "agreed": float(self.agreed)})

    async def try_program(self, text: str) -> Reward:
        self.printed, parts = await self.compute(text)
        self.program_cut_off = self.cut_off.get("agent", 0)
        shaping = parts.pop("correct")
        self.program, self.answering = sum(parts.values()), True
        # Potential-based shaping: the printed answer's reward goes to the team now, and back with the next step's
        # difference.
        return self.settle(RIGHT * self.right + shaping, {**parts, "shaping": shaping})

    def settle(self, team: float, parts: dict[str, float]) -> Reward:
        self.account, reward = self.account.settle(team, {"agent": self.program + self.answer}, parts)
        return reward


class MathsVote(Maths):
    """A vote: one role answers `turns` times, each time as if it were the first; the majority answer is the team's.
    Every answer is rewarded for its author; the team's value is .4 while the majority answer so far is right."""

    roles: ClassVar[tuple[str, ...]] = ("voter",)
    votes: tuple[str | None, ...] = ()

    def observe(self) -> dict[str, Observation]:
        prompt = Observation("voter", (Message("user", REASON + self.task.data["question"]),))
        return {} if self.turn >= self.turns else {"voter": prompt}

    async def step(self, actions: dict[str, str]) -> Reward:
        answer, parts = await self.reason(actions["voter"])
        self.votes, self.turn = (*self.votes, answer), self.turn + 1
        was_right, self.right = self.right, await self.solved(await math.majority(self.votes))
        # A vote may turn the majority wrong again: that costs the team its gain.
        gain = RIGHT * (self.right - was_right)
        return Reward(gain, {"voter": sum(parts.values())}, {**parts, "majority": float(self.right)})
