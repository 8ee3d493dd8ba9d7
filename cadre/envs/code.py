"""Code: a coder writes the program and a tester its tests, at once, over several turns until those tests pass.

Hidden tests decide. The coder's program is worth .1 if it builds, .1 if it runs and .8 times the share of hidden tests
passed; the tester's tests what `cadre.rewards.tester` says: .2 for being tests, .8 for right ones that tell wrong
programs apart. What a turn pays is what it gained on the last one. `CodeAlone` is one agent that writes both.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from cadre import sandbox
from cadre.data.records import Program
from cadre.data.tasks import Leaks, tasks_of
from cadre.env import Env, Split
from cadre.rewards import tester
from cadre.rewards.code import LIMITS, all_tests, builds, cases_of, extract_code, judge, ready
from cadre.rewards.inspect import likeness
from cadre.sandbox.checkers import Verdict
from cadre.types import Message, Observation, Reward, Task

SCRIPT = "Write a Python program that reads standard input and prints the answer.\n\n"
FUNCTION = "Write the Python function `{entry}`.\n\n"
TEST_SCRIPT = "Write tests for programs that solve this problem: pairs of blocks ```input and ```output.\n\n"
TEST_FUNCTION = "Write tests for functions that solve this problem: Python asserts that call `{entry}`.\n\n"
NONE = Verdict(0, 0, (), "ok")


async def untested() -> Verdict:
    """What no tests say."""
    return NONE


class Code(Env):
    """The team form. Settings: the data sets `train` and `test`, where from (`source`), what to do with training items
    that are test items (`leaks`), the `turns`, how many hidden `cases` decide (0 for all), how many `mutants`
    the tester's tests have to tell from a right program, and whether `codebleu` is shown, which nobody is paid for."""

    roles: ClassVar[tuple[str, ...]] = ("coder", "tester")

    def __init__(
        self,
        task: Task,
        train: str = "apps",
        test: str = "code-contests",
        source: str = "",
        leaks: Leaks = "refuse",
        turns: int = 3,
        cases: int = 0,
        mutants: int = 4,
        codebleu: bool = False,
    ) -> None:
        super().__init__(task)
        self.program, self.turns, self.mutants, self.turn = Program(**task.data), turns, mutants, 0
        self.codebleu = codebleu and self.program.reference != ""
        kept = self.program.hidden[: cases or None]
        self.decisive = cases_of(self.program, kept) if kept else all_tests(self.program)
        self.verdict, self.checked, self.said = NONE, NONE, {}  # type: Verdict, Verdict, dict[str, str]
        self.worth = {"coder": 0.0, "tester": 0.0}

    @classmethod
    def tasks(
        cls,
        split: Split,
        train: str = "apps",
        test: str = "code-contests",
        source: str = "",
        leaks: Leaks = "refuse",
        **settings: Any,
    ) -> Sequence[Task]:
        return tasks_of(split, train, test, source, leaks)

    def fork(self) -> Self:
        """The state is replaced at every step and never changed in place."""
        return copy.copy(self)

    @property
    def success(self) -> bool:
        """The last program passes every hidden test."""
        return self.verdict.ok

    def observe(self) -> dict[str, Observation]:
        if self.turn >= self.turns or self.checked.ok:
            return {}
        return {role: Observation(role, (Message("user", self.ask(role)),)) for role in self.roles}

    def ask(self, role: str) -> str:
        problem, entry = self.program, self.program.entry
        own = (FUNCTION if entry else SCRIPT) if role == "coder" else (TEST_FUNCTION if entry else TEST_SCRIPT)
        shown = f"\n\nStart from:\n{problem.starter}" if problem.starter else ""
        return own.format(entry=entry) + problem.statement + shown + self.past()

    def past(self) -> str:
        """What both wrote last, and which of the tester's tests failed."""
        if not self.turn:
            return ""
        failed = "\n".join(line[:300] for line in self.checked.failures[:3]) or "there were no tests"
        return (
            f"\n\nThe last program was:\n{self.said['coder'][:4000]}"
            f"\n\nThe last tests were:\n{self.said['tester'][:2000]}"
            f"\n\nOf them {self.checked.passed} of {self.checked.total} passed. {failed}"
        )

    async def step(self, actions: dict[str, str]) -> Reward:
        return await self.settle(actions["coder"], actions["tester"])

    async def settle(self, code: str, tests: str) -> Reward:
        """Judge both answers and pay what each gained."""
        program, own = extract_code(code), await tester.written(tests, self.program)
        coder = await self.coded(program)
        right = self.program.reference or (program if self.verdict.ok else "")
        checking = judge(ready(self.program, program), own) if own else untested()
        worth, self.checked = await asyncio.gather(tester.worth(own, self.program, right, self.mutants), checking)
        self.said, self.turn = {"coder": program, "tester": tests}, self.turn + 1
        parts = {f"coder/{name}": value for name, value in coder.items()}
        parts |= {f"tester/{name}": value for name, value in worth.parts.items()}
        if self.codebleu:
            parts |= await likeness(self.program.reference, program)
        return Reward(local=self.gains(sum(coder.values()), sum(worth.parts.values())), parts=parts)

    async def coded(self, program: str) -> dict[str, float]:
        """What the program is worth by part; it is judged only if it builds."""
        if not await builds(program):
            self.verdict = NONE
            return {"builds": 0.0, "runs": 0.0, "tests": 0.0}
        ran, self.verdict = await asyncio.gather(self.runs(program), judge(program, self.decisive))
        return {"builds": 0.1, "runs": 0.1 * ran, "tests": 0.8 * self.verdict.share}

    async def runs(self, program: str) -> bool:
        """Whether it ends without an error: on the first input of a script, or when a function's module loads."""
        cases = () if self.program.entry else self.program.public + self.program.hidden
        result = await sandbox.run(ready(self.program, program), cases[0][0] if cases else "", LIMITS)
        return result.status == "ok"

    def gains(self, coder: float, testing: float) -> dict[str, float]:
        """What each role's answer is worth now, less what its last one was worth."""
        before, self.worth = self.worth, {"coder": coder, "tester": testing}
        return {role: self.worth[role] - before[role] for role in self.worth}


class CodeAlone(Code):
    """One agent: the program first, then its tests, as two decisions of a turn; it is paid for the program alone."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)
    draft: str | None = None

    def observe(self) -> dict[str, Observation]:
        if self.turn >= self.turns or self.checked.ok:
            return {}
        written = "" if self.draft is None else f"\n\nYour program is:\n{extract_code(self.draft)[:4000]}"
        text = self.ask("coder" if self.draft is None else "tester") + written
        return {"agent": Observation("agent", (Message("user", text),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        if self.draft is None:
            self.draft = actions["agent"]
            return Reward()
        reward, self.draft = await self.settle(self.draft, actions["agent"]), None
        return Reward(local={"agent": reward.local["coder"]}, parts=reward.parts)
