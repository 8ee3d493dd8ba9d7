"""What tests that a model wrote for a problem are worth: right ones, that tell a right program from nearly right ones.

A test is a pair of an input and an output for a script, otherwise an assert on what the function returns, which can
look at nothing else (`cadre_tasks.code.source.looks_at_values`). Tests on what the problem shows already do not count:
they would be copied, not written. The right program and the wrong ones are written alike, and run equally often in an
order that hangs on the tests; tests whose verdict on equal runs differs are none. Where the only right program is one
that a model wrote, tests have to tell it from its own answers changed, too.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from dataclasses import dataclass
from typing import TypeVar

from cadre import random_keys
from cadre.data.records import CodingProblem
from cadre_sandbox.checkers import Verdict
from cadre_tasks.code.grade_pairs import REPLACED
from cadre_tasks.code.inspect import ask, respelt
from cadre_tasks.code.judge import LIMITS, StdioTests, Tests, UnitTests, all_tests, extract_code, fenced, judge, ready
from cadre_tasks.code.shown import Shown, shown_by
from cadre_tasks.sandbox import default

MOST = 8  # tests that are run of one answer
MARKS = ("input", "output")
TITLE = re.compile(r"\W{0,6}(?:(?:expected )?output)?\W{0,6}", re.IGNORECASE)
REPEATS = 2  # runs of each program
T = TypeVar("T")


@dataclass(frozen=True)
class Worth:
    """Tests judged by a right program and by wrong ones; see `worth_by_hand` in the tests.

    valid    there is a test of its own
    agrees   share of them that a right program passes, 0 to 1; 0 where no right program is known
    kills    share of the wrong programs that they tell from it, 0 to 1; None where there is no wrong program
    """

    valid: bool
    agrees: float = 0.0
    kills: float | None = None

    @property
    def parts(self) -> dict[str, float]:
        """.2 valid, .4 right and .4 for the wrong programs; being right counts as far as wrong programs fail."""
        told, kills = (1.0, self.agrees) if self.kills is None else (self.kills, self.kills)
        return {"valid": 0.2 * self.valid, "agrees": 0.4 * self.agrees * told, "kills": 0.4 * kills}


async def written(text: str, program: CodingProblem, right: str = "") -> Tests | None:
    """The tests of an answer, those left out that the statement shows. None where there is none.

    `right` is a program that solves the problem, beside its reference: by what it does the spellings of what is shown
    are found, and without one only some of them.
    """
    right = await right_program(program) or right
    if not program.entry:
        pairs = paired(text)
        shown = await shown_of(program, right) if pairs else None
        pairs = [(given, expected) for given, expected in pairs if shown and not shown.has(given, expected)]
        return StdioTests(tuple(drawn(pairs, program))) if pairs else None
    lines = await ask("asserts", source=extract_code(text), entry=program.entry, shown=examples(program)) or []
    own = [line for line in dict.fromkeys(lines) if bare(line) not in bare(program.statement)]
    if own and right:
        copied = await respelt(ready(program, right), program.entry, examples(program), own)
        own = [line for place, line in enumerate(own) if place not in copied]
    return UnitTests("\n".join(drawn(own, program)), program.setup, (program.entry,)) if own else None


_shown: dict[tuple[str, ...], Shown] = {}  # of problems by their references, which do not change


async def shown_of(program: CodingProblem, right: str) -> Shown:
    """What a problem for a script shows, divided into cases by a right program where there is one."""

    async def run(given: str) -> str | None:
        result = await default().run(right, given, LIMITS)
        return result.stdout if result.status == "ok" else None

    key = (program.id, program.statement, repr(program.public), program.reference)
    if right != program.reference or key not in _shown:
        found = await shown_by(program, run if right else None)
        if right != program.reference:
            return found
        _shown[key] = found
    return _shown[key]


def drawn(tests: list[T], program: CodingProblem) -> list[T]:
    """`MOST` of the tests at most, in order, by a lot that hangs on all of them, so that none is sure to be left."""
    lot = random_keys.generator("drawn tests", program.id, repr(tests))
    return [tests[place] for place in sorted(lot.sample(range(len(tests)), min(MOST, len(tests))))]


def examples(program: CodingProblem) -> str:
    """All that a problem shows of calls: its statement, what to start from, and its public cases."""
    calls = [f"{program.entry}({', '.join(map(repr, given))})" for given, _ in program.public]
    return "\n".join([program.statement, program.starter, *calls])


def paired(text: str) -> list[tuple[str, str]]:
    """The blocks marked input with the block marked output that follows each, no more than a title between them."""
    blocks, lines = fenced(text), text.split("\n")
    following = [(one, other) for one, other in itertools.pairwise(blocks) if (one.mark, other.mark) == MARKS]
    return [
        (given.text, expected.text)
        for given, expected in following
        if TITLE.fullmatch("".join(lines[given.last + 1 : expected.first]).strip())
    ]


def bare(text: str) -> str:
    """The text without spaces, and with one kind of quotation marks."""
    return re.sub(r"\s", "", text).replace('"', "'")


async def worth(tests: Tests | None, program: CodingProblem, right: str, count: int) -> Worth:
    """Judge tests by the program `right`, which solves the problem ("" where none is known), and by `count` mutants."""
    if tests is None or not right:
        return Worth(tests is not None)
    wrong = await mutants(program, right, count)
    # Who wrote the right program may have written it so that whatever is changed in it shows in any test.
    lying = (
        [answering(program, right, kind) for kind in ("zero", "other")] if right != program.reference and wrong else []
    )
    written_alike: str = await ask("plain", source=right) or right
    programs = [ready(program, written_alike), *(ready(program, one) for one in wrong), *filter(None, lying)]
    verdicts = await repeated(programs, tests, program.id)
    if not all(same(runs) for runs in verdicts):
        return Worth(False)
    verdict, *others = (runs[0] for runs in verdicts)
    if not verdict.ok:  # wrong tests tell nothing
        return Worth(True, verdict.share, 0.0)
    groups = [group for group in (others[: len(wrong)], others[len(wrong) :]) if group]
    return Worth(True, 1.0, min((sum(not one.ok for one in group) / len(group) for group in groups), default=None))


def answering(program: CodingProblem, right: str, kind: str) -> str:
    """A right program for a function, with answers of the right type that are not its own; see `replaced_helper`."""
    if not program.entry:
        return ""
    return f"{ready(program, right)}\n\n{REPLACED}\n\n{program.entry} = cadre_replaced({program.entry}, {kind!r})\n"


async def repeated(programs: list[str], tests: Tests, name: str) -> list[list[Verdict]]:
    """What the tests say of each program, in run after run; the key of the tests gives the order of the runs."""
    order = [place for place in range(len(programs)) for _ in range(REPEATS)]
    random_keys.generator("tests", name, repr(tests)).shuffle(order)
    verdicts = await asyncio.gather(*(judge(programs[place], tests) for place in order))
    runs = list(zip(order, verdicts, strict=True))
    return [[verdict for place, verdict in runs if place == number] for number in range(len(programs))]


def same(runs: list[Verdict]) -> bool:
    """Whether equal runs came to one verdict."""
    return len({(run.passed, run.total) for run in runs}) == 1


_solves: dict[tuple[str, str], bool] = {}  # whether references do, which do not change


async def right_program(program: CodingProblem) -> str:
    """The reference, where it passes the problem's own tests; public sets have some that do not."""
    if not program.reference:
        return ""
    key = (program.id, program.reference)
    if key not in _solves:
        _solves[key] = (await judge(program.reference, all_tests(program))).ok
    return program.reference if _solves[key] else ""


_mutants: dict[tuple[str, str, int], list[str]] = {}  # of references, which do not change; names may repeat


async def mutants(program: CodingProblem, right: str, count: int) -> list[str]:
    """Up to `count` changed versions of a right program that fail the problem's own tests; the same each time.

    Where none does, a program that does nothing: tests of anything have to tell that from a right one.
    """
    key = (program.id, program.reference, count)
    if right == program.reference and key in _mutants:
        return _mutants[key]
    changed = (await ask("mutants", source=right, count=count) if count else None) or []
    wrong = await failing(changed, program) or await failing([nothing(program)] * bool(count), program)
    if right == program.reference:
        _mutants[key] = wrong
    return wrong


async def failing(programs: list[str], program: CodingProblem) -> list[str]:
    """Those of the programs that fail the problem's own tests."""
    verdicts = await asyncio.gather(*(judge(one, all_tests(program)) for one in programs))
    return [one for one, verdict in zip(programs, verdicts, strict=True) if not verdict.ok]


def nothing(program: CodingProblem) -> str:
    return f"def {program.entry}(*arguments, **keywords):\n    return None" if program.entry else "pass"
