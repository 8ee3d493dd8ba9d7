"""Check a program against expected outputs, calls or tests, in another process than the program's.

The program's process never holds a test, an expected value or a verdict. Its return values reach the tests as plain
values. A verdict counts only with a nonce that the program never sees; how its process ends is not a verdict.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cadre_sandbox import results
from cadre_sandbox.compare import Comparison, same_output
from cadre_sandbox.inside import codec
from cadre_sandbox.pool import Sandbox
from cadre_sandbox.records import DEFAULT_LIMITS, Limits, Result, Status
from cadre_sandbox.worker import Ending

SIGKILL = 9
MAX_SHOWN = 200
# So many cases may each use up the program's time; the rest then counts as failed, which bounds the cost of a check.
MOST_SLOW = 3
# Texts of up to so many characters are compared within milliseconds, so that the event loop need not hand them over.
LONG = 100_000
# A line for each of the tester's MAX_TESTS tests, and the descriptions of those that failed.
VERDICT_BYTES = 2 << 20


@dataclass(frozen=True)
class Verdict:
    """The result of a program's tests, for example `Verdict(2, 3, ("assert f(3) == 9 -> AssertionError",), "ok")`.

    passed, total   number of tests; total is 0 if none could be run
    failures        one line per failed test: the test and what happened. It may reveal expected values.
    status          how the program itself ended, as in `Result`
    """

    passed: int
    total: int
    failures: tuple[str, ...]
    status: Status

    @property
    def ok(self) -> bool:
        """True if every test passed and there was at least one."""
        return 0 < self.total == self.passed

    @property
    def share(self) -> float:
        """Fraction of the tests that passed, 0 to 1."""
        return self.passed / self.total if self.total else 0.0


async def check_stdio(
    sandbox: Sandbox,
    program: str,
    cases: Sequence[tuple[str, str]],
    limits: Limits = DEFAULT_LIMITS,
    comparison: Comparison = "words",
    prelude: str = "",
) -> Verdict:
    """Run the program in a new process for each (stdin, expected stdout) and compare its output; see `same_output` and
    `Sandbox.run`.

    After `MOST_SLOW` cases that used up their time the remaining cases are not run and count as failed.
    """
    results: dict[int, Result] = {}
    remaining_cases = iter(enumerate(cases))

    async def run_cases() -> None:
        """Run cases until one is slow."""
        # Cases start in order, and each of the MOST_SLOW tasks stops at its first slow case. So the cases that are run
        # do not depend on how fast each one is.
        for number, (stdin, expected) in remaining_cases:
            output_bytes = max(limits.output_bytes, 2 * len(expected.encode("utf-8", "replace")))
            case_limits = replace(limits, output_bytes=output_bytes)
            result = results[number] = await sandbox.run(program, stdin, case_limits, prelude)
            if result.status in ("timeout", "wall"):
                return

    await asyncio.gather(*(run_cases() for _ in range(MOST_SLOW)))
    failures = []
    for number, (stdin, expected) in enumerate(cases):
        result = results.get(number)
        if result is None:
            failures.append(f"timeout: {stdin[:MAX_SHOWN]!r} was not run after {MOST_SLOW} cases that took too long")
        elif result.status != "ok" or not await is_same_output(result.stdout, expected, comparison):
            failures.append(f"{result.status}: {stdin[:MAX_SHOWN]!r} printed {result.stdout[:MAX_SHOWN]!r}")
    statuses = (results[number].status for number in sorted(results))
    status: Status = next((status for status in statuses if status != "ok"), "ok")
    return Verdict(len(cases) - len(failures), len(cases), tuple(failures), status)


async def is_same_output(got: str, expected: str, comparison: Comparison) -> bool:
    """Return `same_output` of the texts, computed in a thread if they are long."""
    if len(got) + len(expected) <= LONG:
        return same_output(got, expected, comparison)
    return await asyncio.to_thread(same_output, got, expected, comparison)


async def check_tests(
    sandbox: Sandbox,
    program: str,
    tests: str,
    setup: str = "",
    names: Sequence[str] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> Verdict:
    """Run test code against the program: asserts, `check(candidate)`, `test_...` functions or unittest test cases.

    setup   trusted code that the tests need, run in the tester's process
    names   names of the program that the tests may use, the first one as `candidate`; by default every name that the
            tests use and do not define
    """
    job = {"tests": tests, "setup": setup, "names": list(names), "calls": []}
    verdict, _ = await run_tester(sandbox, program, job, limits)
    return verdict


async def check_calls(
    sandbox: Sandbox,
    program: str,
    name: str,
    cases: Sequence[tuple[Sequence[Any], Any]],
    limits: Limits = DEFAULT_LIMITS,
) -> Verdict:
    """Call the program's function with each case's arguments and compare the result with the expected value.

    If the program ends at a case, or runs out of time, the cases after it are run in a new process. After `MOST_SLOW`
    cases that used up all the time of a new process the remaining cases count as failed.

    Raises cadre_sandbox.inside.codec.CodecError if a case holds values that are not plain.
    """
    calls = [codec.encode([list(arguments), expected]) for arguments, expected in cases]
    tests: dict[str, Any] = {"tests": "", "setup": "", "names": [name]}
    verdicts, start, slow = [], 0, 0
    while start < len(calls) and slow < MOST_SLOW:
        verdict, lost_test = await run_tester(sandbox, program, {**tests, "calls": calls[start:]}, limits)
        # A loss at the first test of a process (0) consumes that case; a later test is retried in a new process, with
        # all of the time.
        count = len(calls) - start if lost_test is None else max(1, lost_test)
        slow += lost_test == 0 and verdict.status in ("timeout", "wall")
        verdicts.append(replace(verdict, failures=verdict.failures[: count - verdict.passed]))
        start += count
        if not verdict.total:  # no call could be made
            break
    passed, failures = sum(verdict.passed for verdict in verdicts), sum((verdict.failures for verdict in verdicts), ())
    status: Status = next((verdict.status for verdict in verdicts if verdict.status != "ok" and verdict.failures), "ok")
    return Verdict(passed, len(calls) if verdicts and verdicts[0].total else 0, failures, status)


async def run_tester(
    sandbox: Sandbox, program: str, tests: dict[str, Any], limits: Limits
) -> tuple[Verdict, int | None]:
    """Run a tester and a solution side by side.

    Returns the verdict that the tester wrote with its nonce, and the index of the test at which the solution was lost,
    if it was.
    """
    nonce = secrets.token_hex(16)
    jobs = [{"kind": "tester", "nonce": nonce, **tests}, {"kind": "solution", "program": program}]
    wider_limits = replace(limits, output_bytes=max(limits.output_bytes, VERDICT_BYTES))
    tester, solution = await sandbox.submit(jobs, "", wider_limits)
    lines = told(tester, nonce)
    return verdict_of(lines, solution_status(tester, solution, limits)), find_lost_test(lines, bool(tester.killed))


def solution_status(tester: Ending, solution: Ending, limits: Limits) -> Status:
    """Return how the solution ended; "ok" if it was still waiting for calls when the tests were over."""
    if tester.killed:
        return "oom" if tester.killed == "memory" else "wall" if tester.killed == "wall" else "timeout"
    # The warm parent kills a solution that outlives its tester, without a limit as the reason.
    if solution.code == -SIGKILL and not solution.killed and not solution.ended:
        return "ok"
    return results.status_of(solution, limits)


def verdict_of(lines: Sequence[Sequence[str]], status: Status) -> Verdict:
    """Return the verdict that a tester's lines, split into words, add up to. A test without a line has not passed."""
    total, passed, failures = 0, 0, []
    for words in lines:
        if words[0] == "total":
            total = int(words[1])
        elif words[0] == "pass":
            passed += 1
        elif words[0] in ("fail", "broken"):
            failures.append(words[-1])
    return Verdict(min(passed, total), total, tuple(failures), status)


def find_lost_test(lines: Sequence[Sequence[str]], killed: bool) -> int | None:
    """Return the index of the test at which the solution ended or the tester was killed; None if all were run."""
    if lost := [int(words[1]) for words in lines if words[0] == "gone"]:
        return lost[0]
    return sum(words[0] in ("pass", "fail") for words in lines) if killed else None


def told(tester: Ending, nonce: str) -> list[list[str]]:
    """Return the words of each line that the tester wrote with its nonce: at most three, the last one escaped."""
    lines = tester.stdout.decode("ascii", "replace").splitlines()
    return [line.split(" ", 3)[1:] for line in lines if line.startswith(nonce + " ")]
