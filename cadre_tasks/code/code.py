"""Code: a coder writes the program and a tester its tests, at once, over several turns until those tests pass.

Hidden tests decide, rewarded in halves (AT-GRPO, arXiv 2510.11062, equation 4): the share that passes earns .4 for the
team and .4 for the coder, who also gets .1 for a program that builds and .1 for one that runs. Tests earn their author
.2 for being valid, .2 for being right and .2 for the wrong programs that they detect (`cadre_tasks.code.tester`). The
reward of a turn is the change of these values (`cadre_tasks.account`). `CodeSingleAgent` is one agent that writes both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre.envs import drawings
from cadre.types import Drawing, Message, Observation, Reward, Sample, Task
from cadre_sandbox.checkers import Verdict
from cadre_tasks import sandbox
from cadre_tasks.account import Account
from cadre_tasks.code import tester
from cadre_tasks.code.inspect import likeness
from cadre_tasks.code.judge import (
    IMPORTS,
    LIMITS,
    all_tests,
    builds,
    cases_of,
    extract_code,
    judge,
    loads,
    ready,
    with_own_lines,
)
from cadre_tasks.cut_off import count_cut_off, describe_cut_off
from cadre_tasks.data.records import CodingProblem, Kind
from cadre_tasks.from_data import FromData

SCRIPT = "Write a Python program that reads standard input and prints the answer.\n\n"
FUNCTION = "Write the Python function `{entry}`.\n\n"
TEST_SCRIPT = "Write tests for programs that solve this problem: pairs of blocks ```input and ```output.\n\n"
TEST_FUNCTION = "Write tests for functions that solve this problem: Python asserts on what `{entry}` returns.\n\n"
# The ends of the prompts under `prompts: function`: what to reply with, and nothing else. Without them an instructed
# model answers the results of tests with talk, and writes the function again where tests are asked for.
ONLY_SCRIPT = (
    "Reply with the complete program only, in one ```python block. It reads standard input and prints the answer."
)
ONLY_FUNCTION = "Reply with the complete Python function `{entry}` only, in one ```python block."
AGAIN = "Correct the last program, or repeat it if it is right: the tests may be wrong. "
ONLY_TEST_SCRIPT = (
    "Do not solve the problem. Write three tests for programs that do, with other inputs than those shown. Reply with "
    "pairs of blocks ```input and ```output only."
)
ONLY_TEST_FUNCTION = (
    "Do not write this function. Write three tests of it, with other arguments than those shown. Reply with three "
    "lines `assert {entry}(...) == ...` only, in one ```python block."
)
NONE = Verdict(0, 0, (), "ok")
BUILDS, RUNS = 0.1, 0.1
TESTS = 0.4  # for passing every hidden test: as much to the coder, and as much to the team


async def untested() -> Verdict:
    """Return the verdict of no tests at all."""
    return NONE


class Code(FromData):
    """The team form. Settings: the `turns`, how many hidden `cases` decide (0 for all; test code decides as a whole),
    how many `mutants` the tester's tests have to distinguish from a right program, whether `codebleu` is shown, which
    is not rewarded, the `prompts`, and those of `FromData`.

    Prompts `full` begin with what to write; those of `function` end with it, and ask for a complete function (or
    program) or for three tests, and nothing else."""

    roles: ClassVar[tuple[str, ...]] = ("coder", "tester")
    one_agent: ClassVar[str] = "code-single-agent"
    kind: ClassVar[Kind] = "program"
    sets: ClassVar[tuple[str, str]] = ("apps", "code-contests")

    def __init__(
        self,
        task: Task,
        turns: Annotated[int, Field(ge=1)] = 3,
        cases: Annotated[int, Field(ge=0)] = 0,
        mutants: Annotated[int, Field(ge=0, le=50)] = 4,
        codebleu: bool = False,
        prompts: Literal["full", "function"] = "full",
        **data: Any,
    ) -> None:
        super().__init__(task, **data)
        self.prompts = prompts
        self.program, self.turns, self.mutants, self.turn = CodingProblem(**task.data), turns, mutants, 0
        self.codebleu = codebleu and self.program.reference != ""
        cases_kept = self.program.hidden[: cases or None]
        self.decisive = cases_of(self.program, cases_kept) if cases_kept else all_tests(self.program)
        self.verdict, self.checked, self.written = NONE, NONE, ""  # type: Verdict, Verdict, str
        self.said: dict[str, str] = {}  # the program and the tests of the last turn
        # Tokens of the last program and of the last tests if they reached their token limit.
        self.cut_off = {"coder": 0, "tester": 0}
        # The local rewards of the last program and of the last tests.
        self.earned = {"coder": 0.0, "tester": 0.0}
        self.account = Account()

    @property
    def success(self) -> bool:
        """True if the last program passes every hidden test."""
        return self.verdict.ok

    def observe(self) -> dict[str, Observation]:
        if self.turn >= self.turns or self.checked.ok:
            return {}
        return {role: Observation(role, (Message("user", self.ask(role)),)) for role in self.roles}

    def ask(self, role: str, written: str = "") -> str:
        """Return the prompt of a role; `written` follows what happened so far."""
        problem = self.program
        shown = f"\n\nStart from:\n{problem.starter}" if problem.starter else ""
        first, last = self.request(role)
        return first + problem.statement + shown + self.past() + written + last

    def request(self, role: str) -> tuple[str, str]:
        """Return the beginning and the end of a prompt: one of them says what to write."""
        entry = self.program.entry
        if self.prompts == "full":
            form = (FUNCTION if entry else SCRIPT) if role == "coder" else (TEST_FUNCTION if entry else TEST_SCRIPT)
            return form.format(entry=entry), ""
        if role == "tester":
            return "", "\n\n" + (ONLY_TEST_FUNCTION if entry else ONLY_TEST_SCRIPT).format(entry=entry)
        again = AGAIN if self.turn else ""
        return "", f"\n\n{again}" + (ONLY_FUNCTION if entry else ONLY_SCRIPT).format(entry=entry)

    def past(self) -> str:
        """Return the last program and tests, with the tester's tests that failed."""
        if not self.turn:
            return ""
        failed = "\n".join(line[:300] for line in self.checked.failures[:3])
        results = f"Of them {self.checked.passed} of {self.checked.total} passed. {failed}"
        return (
            f"\n\nThe last program was:\n{self.said['coder'][:4000]}{self.cut('coder')}"
            f"\n\nThe last tests were:\n{self.said['tester'][:2000]}{self.cut('tester')}"
            f"\n\n{results if self.checked.total else 'There were no tests in it that count.'}"
        )

    def cut(self, author: str) -> str:
        """Return a line if the last text of the coder or of the tester was cut off."""
        note = describe_cut_off(self.cut_off[author]).rstrip()
        return f"\n{note}" if note else ""

    def render(self) -> Drawing:
        """Return the last program with the results of the hidden tests and of the tester's."""
        judged = (("hidden tests", self.verdict), ("tester's tests", self.checked))
        results = [
            {
                "name": f"{name}: {verdict.passed} of {verdict.total} passed",
                "ok": verdict.ok,
                "message": "\n".join(verdict.failures),
            }
            for name, verdict in judged
            if verdict.total
        ]
        return drawings.code(self.written, results) if self.written else None

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        tokens = count_cut_off(samples)
        self.cut_off = {role: tokens.get(role, 0) for role in samples}
        return await super().step_samples(samples)

    async def step(self, actions: dict[str, str]) -> Reward:
        # In this order: the tester's tests are run on the program of the same turn.
        parts = await self.try_program(actions["coder"]) | await self.try_tests(actions["tester"])
        self.turn += 1
        return self.settle(self.earned, parts)

    def settle(self, local: dict[str, float], parts: dict[str, float]) -> Reward:
        self.account, reward = self.account.settle(TESTS * self.verdict.share, local, parts)
        return reward

    async def try_program(self, text: str) -> dict[str, float]:
        """Judge a program by the hidden tests; return its reward by part."""
        self.written = extract_code(text)
        parts = {f"coder/{name}": value for name, value in (await self.coded(self.written)).items()}
        self.earned = {**self.earned, "coder": sum(parts.values())}
        return parts | (await likeness(self.program.reference, self.written) if self.codebleu else {})

    async def try_tests(self, text: str) -> dict[str, float]:
        """Judge tests by right and wrong programs, and the last program by the tests; return their reward by part."""
        program = self.written
        # Without a right reference the coder's program stands in for it, if it passes the hidden tests.
        right = await tester.right_program(self.program) or (program if self.verdict.ok else "")
        tests = await tester.written(text, self.program, right)
        testable = ready(self.program, program)
        checking = judge(testable, tests) if tests else untested()
        judged, checked = await asyncio.gather(tester.worth(tests, self.program, right, self.mutants), checking)
        self.checked = with_own_lines(checked, testable, program)
        self.said = {"coder": program, "tester": text}
        parts = {"tester/valid": judged.parts["valid"]}
        # `Worth` gives up to .4 for each of the two, the tester gets up to .2.
        parts |= {f"tester/{name}": judged.parts[name] / 2 for name in ("agrees", "kills")}
        self.earned = {**self.earned, "tester": sum(parts.values())}
        return parts

    async def coded(self, program: str) -> dict[str, float]:
        """Return the reward of a program by part. It is judged only if it builds."""
        if not await builds(program):
            self.verdict = NONE
            return {"builds": 0.0, "runs": 0.0, "tests": 0.0}
        testable = ready(self.program, program) if self.program.tests else program
        ran, self.verdict = await asyncio.gather(self.runs(program), judge(testable, self.decisive))
        return {"builds": BUILDS, "runs": RUNS * ran, "tests": TESTS * self.verdict.share}

    async def runs(self, program: str) -> bool:
        """Return True if the program ends without an error: on the first input of a script, or when a function's module
        loads."""
        if self.program.entry:
            return await loads(ready(self.program, program))
        cases = self.program.public + self.program.hidden
        return (await sandbox.run(program, cases[0][0] if cases else "", LIMITS, IMPORTS)).status == "ok"


class CodeSingleAgent(Code):
    """One agent: first the program, then its tests, as two decisions of a turn, each rewarded as in the team."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)
    # The program of this turn is written, and the next action is its tests.
    testing: bool = False

    def observe(self) -> dict[str, Observation]:
        if self.turn >= self.turns or self.checked.ok:
            return {}
        written = f"\n\nYour program is:\n{self.written[:4000]}{self.cut('coder')}" if self.testing else ""
        text = self.ask("tester" if self.testing else "coder", written)
        return {"agent": Observation("agent", (Message("user", text),))}

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        author = "tester" if self.testing else "coder"
        self.cut_off = {**self.cut_off, author: count_cut_off(samples).get("agent", 0)}
        return await self.step({"agent": samples["agent"].text})

    async def step(self, actions: dict[str, str]) -> Reward:
        judge_text = self.try_tests if self.testing else self.try_program
        parts = await judge_text(actions["agent"])
        self.turn, self.testing = self.turn + self.testing, not self.testing
        # The one agent gets the rewards of both roles.
        return self.settle({"agent": sum(self.earned.values())}, parts)
