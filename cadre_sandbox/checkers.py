"""Compares what a program does with what is expected of it, in another process than the program's.

The program never holds a test, an expected value or a verdict. Its answers reach the tests as plain values, and a
verdict counts only with a nonce that the program never sees; how its process ends is no verdict.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cadre_sandbox import results
from cadre_sandbox.compare import same_output
from cadre_sandbox.inside import codec
from cadre_sandbox.pool import Sandbox
from cadre_sandbox.records import DEFAULT_LIMITS, Limits, Result, Status
from cadre_sandbox.worker import Ending

SIGKILL = 9
MAX_SHOWN = 200
MOST_SLOW = 3  # cases that may each use up a program's time before the rest counts as failed
LONG = 100_000  # characters that are compared in some milliseconds
VERDICT_BYTES = 2 << 20  # a line each for the most tests that are run, and room for what failed


@dataclass(frozen=True)
class Verdict:
    """What the tests say. For example `Verdict(2, 3, ("assert f(3) == 9 -> AssertionError",), "ok")`.

    passed, total   tests; total is 0 when none could be run
    failures        one line a failed test: the test, and what happened. It may give expected values away.
    status          how the program itself ended, as in `Result`
    """

    passed: int
    total: int
    failures: tuple[str, ...]
    status: Status

    @property
    def ok(self) -> bool:
        """Every test passed, and there was one."""
        return 0 < self.total == self.passed

    @property
    def share(self) -> float:
        """Tests passed of all tests, 0 to 1."""
        return self.passed / self.total if self.total else 0.0


async def check_stdio(
    sandbox: Sandbox, program: str, cases: Sequence[tuple[str, str]], limits: Limits = DEFAULT_LIMITS
) -> Verdict:
    """Run the program once for each (stdin, expected stdout), each time anew, and compare what it prints.

    A program that `MOST_SLOW` cases have kept for all its time is not run again: the cases that follow count as failed.
    """
    results: dict[int, Result] = {}
    waiting = iter(enumerate(cases))

    async def run_cases() -> None:
        """Take one case after another up to a slow one. The cases begin in order, and those that are slow and those
        that still run are never more than `MOST_SLOW`; so which cases are run does not hang on how fast each is."""
        for number, (stdin, expected) in waiting:
            result = results[number] = await sandbox.run(program, stdin, room_for(limits, expected))
            if result.status in ("timeout", "wall"):
                return

    await asyncio.gather(*(run_cases() for _ in range(MOST_SLOW)))
    failures = []
    for number, (stdin, expected) in enumerate(cases):
        if number not in results:
            failures.append(f"timeout: {stdin[:MAX_SHOWN]!r} was not run after {MOST_SLOW} cases that took too long")
        elif (result := results[number]).status != "ok" or not await compared(result.stdout, expected):
            failures.append(f"{result.status}: {stdin[:MAX_SHOWN]!r} printed {result.stdout[:MAX_SHOWN]!r}")
    statuses = (results[number].status for number in sorted(results))
    status: Status = next((one for one in statuses if one != "ok"), "ok")
    return Verdict(len(cases) - len(failures), len(cases), tuple(failures), status)


async def compared(got: str, expected: str) -> bool:
    """`same_output`, beside the event loop where it may take long."""
    if len(got) + len(expected) <= LONG:
        return same_output(got, expected)
    return await asyncio.to_thread(same_output, got, expected)


def room_for(limits: Limits, expected: str) -> Limits:
    """The limits, with room for twice the output that is expected."""
    return replace(limits, output_bytes=max(limits.output_bytes, 2 * len(expected.encode("utf-8", "replace"))))


async def check_tests(
    sandbox: Sandbox,
    program: str,
    tests: str,
    setup: str = "",
    names: Sequence[str] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> Verdict:
    """Run test code against the program: asserts, `check(candidate)`, `test_...` functions or unittest test cases.

    setup   trusted code that the tests need, run on their side
    names   what the tests may use of the program, the first being `candidate`; by default every name that they use
            and nobody else defines
    """
    return await judge(sandbox, program, {"tests": tests, "setup": setup, "names": list(names), "calls": []}, limits)


async def check_calls(
    sandbox: Sandbox,
    program: str,
    name: str,
    cases: Sequence[tuple[Sequence[Any], Any]],
    limits: Limits = DEFAULT_LIMITS,
) -> Verdict:
    """Call the program's function with each case's arguments, and compare the answer with its expected value.

    A case at which the program ends, or runs out of time that earlier ones have used, costs the others nothing: they
    go on in a new process. Only a program that `MOST_SLOW` cases have kept for all its time is not called again.

    Raises cadre_sandbox.inside.codec.CodecError when a case holds other than plain values.
    """
    calls = [codec.encode([list(arguments), expected]) for arguments, expected in cases]
    asked: dict[str, Any] = {"tests": "", "setup": "", "names": [name]}
    verdicts, first, slow = [], 0, 0
    while first < len(calls) and slow < MOST_SLOW:
        verdict, gone = await judged(sandbox, program, {**asked, "calls": calls[first:]}, limits)
        count = len(calls) - first if gone is None else max(1, gone)
        slow += gone == 0 and verdict.status in ("timeout", "wall")
        verdicts.append(replace(verdict, failures=verdict.failures[: count - verdict.passed]))
        first += count
        if not verdict.total:  # no call could be made
            break
    passed, failures = sum(one.passed for one in verdicts), sum((one.failures for one in verdicts), ())
    status: Status = next((one.status for one in verdicts if one.status != "ok" and one.failures), "ok")
    return Verdict(passed, len(calls) if verdicts and verdicts[0].total else 0, failures, status)


async def judge(sandbox: Sandbox, program: str, tests: dict[str, Any], limits: Limits) -> Verdict:
    """Run a tester and a solution side by side; what the tester wrote with its nonce."""
    return (await judged(sandbox, program, tests, limits))[0]


async def judged(sandbox: Sandbox, program: str, tests: dict[str, Any], limits: Limits) -> tuple[Verdict, int | None]:
    """The verdict, and the number of the test at which the program was lost, if it was."""
    nonce = secrets.token_hex(16)
    jobs = [{"kind": "tester", "nonce": nonce, **tests}, {"kind": "solution", "program": program}]
    roomy = replace(limits, output_bytes=max(limits.output_bytes, VERDICT_BYTES))
    tester, solution = await sandbox.submit(jobs, "", roomy)
    said = told(tester, nonce)
    return verdict_of(said, solution_status(tester, solution, limits)), lost_at(said, bool(tester.killed))


def solution_status(tester: Ending, solution: Ending, limits: Limits) -> Status:
    """How the solution ended; one that was still waiting for calls when the tests were over is fine."""
    if tester.killed:
        return "oom" if tester.killed == "memory" else "wall" if tester.killed == "wall" else "timeout"
    if solution.code == -SIGKILL and not solution.killed and not solution.ended:
        return "ok"
    return results.status_of(solution, limits)


def verdict_of(said: Sequence[Sequence[str]], status: Status) -> Verdict:
    """Count the lines of a tester, each by its words. A test that has no line has not passed."""
    total, passed, failures = 0, 0, []
    for words in said:
        if words[0] == "total":
            total = int(words[1])
        elif words[0] == "pass":
            passed += 1
        elif words[0] in ("fail", "broken"):
            failures.append(words[-1])
    return Verdict(min(passed, total), total, tuple(failures), status)


def lost_at(said: Sequence[Sequence[str]], killed: bool) -> int | None:
    """The number of the test at which the solution had ended, or the tester was killed; None where all were run."""
    if gone := [int(words[1]) for words in said if words[0] == "gone"]:
        return gone[0]
    return sum(words[0] in ("pass", "fail") for words in said) if killed else None


def told(tester: Ending, nonce: str) -> list[list[str]]:
    """The words of each line of a verdict, at most three, the last one as it was before it was escaped."""
    lines = tester.stdout.decode("ascii", "replace").splitlines()
    return [line.split(" ", 3)[1:] for line in lines if line.startswith(nonce + " ")]
