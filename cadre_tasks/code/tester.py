"""Judges tests that a model wrote for a problem: right ones distinguish a right program from nearly right ones.

A test is a pair of an input and an output for a script, otherwise an assert on what the function returns, which can
inspect nothing else (`cadre_tasks.code.source.looks_at_values`). Tests that the problem already shows do not count:
they would be copied, not written. The right program and the wrong ones are written alike, and run equally often in an
order that depends on the tests; tests whose verdicts on equal runs differ are invalid. If the only right program is one
that a model wrote, tests also have to distinguish it from versions with changed answers.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from dataclasses import dataclass
from typing import TypeVar

from cadre import random_keys
from cadre_sandbox.checkers import Verdict
from cadre_tasks.code.grade_pairs import REPLACED
from cadre_tasks.code.inspect import ask, respelt
from cadre_tasks.code.judge import LIMITS, StdioTests, Tests, UnitTests, all_tests, extract_code, fenced, judge, ready
from cadre_tasks.code.shown import Shown, shown_by
from cadre_tasks.data.records import CodingProblem
from cadre_tasks.sandbox import default

MOST = 8  # tests that are run of one answer
MARKS = ("input", "output")
TITLE = re.compile(r"\W{0,6}(?:(?:expected )?output)?\W{0,6}", re.IGNORECASE)
REPEATS = 2  # runs of each program
# Behind a mutant of `{entry}`: it answers as the right program wherever it raises or answers with another type.
TAMED = """


def cadre_tamed(mutant, source):
    import copy
    import itertools

    space = {{"__name__": "right"}}
    exec(compile(source, "<right>", "exec"), space)

    def answer(function, arguments, keywords):
        value = function(*arguments, **keywords)
        is_iterator = hasattr(type(value), "__next__")
        return (list(itertools.islice(value, 1000)) if is_iterator else value), is_iterator

    def called(*arguments, **keywords):
        right, is_iterator = answer(space[{entry!r}], *copy.deepcopy((arguments, keywords)))
        try:
            value, _ = answer(mutant, arguments, keywords)
        except BaseException:
            value = None
        value = value if type(value) is type(right) else right
        return iter(value) if is_iterator else value

    return called


{entry} = cadre_tamed({entry}, {source!r})
"""
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
        """Return .2 for being valid, .4 for being right and .4 for wrong programs that fail. Being right is scaled by
        the share of wrong programs that fail, since a test that nothing fails is easily right."""
        detected, kills = (1.0, self.agrees) if self.kills is None else (self.kills, self.kills)
        return {"valid": 0.2 * self.valid, "agrees": 0.4 * self.agrees * detected, "kills": 0.4 * kills}


async def written(text: str, program: CodingProblem, right: str = "") -> Tests | None:
    """Return the tests of an answer without those that the statement shows, or None if there are none left. `right` is
    a program that solves the problem, beside its reference: running it detects respellings of shown tests, and without
    one only some of them are detected."""
    right = await right_program(program) or right
    if not program.entry:
        pairs = paired(text)
        shown = await read_shown(program, right) if pairs else None
        pairs = [
            (input_text, expected) for input_text, expected in pairs if shown and not shown.has(input_text, expected)
        ]
        return StdioTests(tuple(drawn(pairs, program)), program.comparison) if pairs else None
    lines = await ask("asserts", source=extract_code(text), entry=program.entry, shown=examples(program)) or []
    # Other spaces or quotation marks do not make a shown test new.
    new_tests = [line for line in dict.fromkeys(lines) if bare(line) not in bare(program.statement)]
    if new_tests and right:
        copied = await respelt(ready(program, right), program.entry, examples(program), new_tests)
        new_tests = [line for index, line in enumerate(new_tests) if index not in copied]
    return UnitTests("\n".join(drawn(new_tests, program)), program.setup, (program.entry,)) if new_tests else None


_shown: dict[tuple[str, ...], Shown] = {}  # of problems by their references, which do not change


async def read_shown(program: CodingProblem, right: str) -> Shown:
    """Return the examples of a problem for a script, divided into cases by a right program if there is one."""

    async def run(input_text: str) -> str | None:
        result = await default().run(right, input_text, LIMITS)
        return result.stdout if result.status == "ok" else None

    key = (program.id, program.statement, repr(program.public), program.reference)
    if right != program.reference or key not in _shown:
        shown = await shown_by(program, run if right else None)
        if right != program.reference:
            return shown
        _shown[key] = shown
    return _shown[key]


def drawn(tests: list[T], program: CodingProblem) -> list[T]:
    """Return at most `MOST` of the tests, in order. The draw depends on all of them, so that no test is sure to be
    chosen."""
    generator = random_keys.generator("drawn tests", program.id, repr(tests))
    return [tests[index] for index in sorted(generator.sample(range(len(tests)), min(MOST, len(tests))))]


def examples(program: CodingProblem) -> str:
    """Return all calls that a problem shows: its statement, its starter, and its public cases."""
    calls = [f"{program.entry}({', '.join(map(repr, arguments))})" for arguments, _ in program.public]
    return "\n".join([program.statement, program.starter, *calls])


def paired(text: str) -> list[tuple[str, str]]:
    """Return each block marked input with the block marked output that follows it, with no more than a title
    between."""
    blocks, lines = fenced(text), text.split("\n")
    following = [
        (block, next_block)
        for block, next_block in itertools.pairwise(blocks)
        if (block.mark, next_block.mark) == MARKS
    ]
    return [
        (input_block.text, output_block.text)
        for input_block, output_block in following
        if TITLE.fullmatch("".join(lines[input_block.last + 1 : output_block.first]).strip())
    ]


def bare(text: str) -> str:
    """Return the text without spaces and with one kind of quotation marks."""
    return re.sub(r"\s", "", text).replace('"', "'")


async def worth(tests: Tests | None, program: CodingProblem, right: str, count: int) -> Worth:
    """Return the value of tests, judged by the program `right`, which solves the problem ("" if none is known), and
    `count` mutants."""
    if tests is None or not right:
        return Worth(tests is not None)
    wrong = await mutants(program, right, count)
    # Who wrote the right program may have written it so that whatever is changed in it shows in any test.
    faulty = (
        [change_answers(program, right, kind) for kind in ("zero", "other")]
        if right != program.reference and wrong
        else []
    )
    plain: str = await ask("plain", source=right) or right
    # The right program in the layout of its mutants, so that no test can tell them apart by their text.
    programs = [ready(program, plain), *(ready(program, mutant) for mutant in wrong), *filter(None, faulty)]
    verdicts = await repeated(programs, tests, program.id)
    if not all(same(runs) for runs in verdicts):
        return Worth(False)
    verdict, *wrong_verdicts = (runs[0] for runs in verdicts)
    if not verdict.ok:  # wrong tests tell nothing
        return Worth(True, verdict.share, 0.0)
    groups = [group for group in (wrong_verdicts[: len(wrong)], wrong_verdicts[len(wrong) :]) if group]
    # The worse of the two groups counts, so that neither mutants nor changed answers can be left undetected.
    return Worth(
        True, 1.0, min((sum(not judged.ok for judged in group) / len(group) for group in groups), default=None)
    )


def change_answers(program: CodingProblem, right: str, kind: str) -> str:
    """Return a right program for a function whose answers are replaced by others of the right type; see
    `replaced_helper`."""
    if not program.entry:
        return ""
    return f"{ready(program, right)}\n\n{REPLACED}\n\n{program.entry} = cadre_replaced({program.entry}, {kind!r})\n"


async def repeated(programs: list[str], tests: Tests, name: str) -> list[list[Verdict]]:
    """Return the verdicts of the tests on each program, one for each repeated run. The tests seed the order of the
    runs."""
    order = [index for index in range(len(programs)) for _ in range(REPEATS)]
    # Shuffled, so that a test that counts its runs cannot tell which of them is the right program's.
    random_keys.generator("tests", name, repr(tests)).shuffle(order)
    verdicts = await asyncio.gather(*(judge(programs[index], tests) for index in order))
    runs = list(zip(order, verdicts, strict=True))
    return [[verdict for index, verdict in runs if index == number] for number in range(len(programs))]


def same(runs: list[Verdict]) -> bool:
    """Return True if all runs came to the same verdict."""
    return len({(run.passed, run.total) for run in runs}) == 1


_solves: dict[tuple[str, str], bool] = {}  # whether references do, which do not change


async def right_program(program: CodingProblem) -> str:
    """Return the reference if it passes the problem's own tests, else "": public sets have some that do not."""
    if not program.reference:
        return ""
    key = (program.id, program.reference)
    if key not in _solves:
        _solves[key] = (await judge(program.reference, all_tests(program))).ok
    return program.reference if _solves[key] else ""


_mutants: dict[tuple[str, str, int], list[str]] = {}  # of references, which do not change; names may repeat


async def mutants(program: CodingProblem, right: str, count: int) -> list[str]:
    """Return up to `count` changed versions of a right program that fail the problem's own tests; the same each time.

    Those of a function differ in the values of its answers: if one raised an error or answered with another type, every
    call would show it, and a test that it fails would say nothing about the test. If there is none, the right program
    with changed answers; if nothing of it can be changed, a program that does nothing.
    """
    key = (program.id, program.reference, count)
    if right == program.reference and key in _mutants:
        return _mutants[key]
    changed = (await ask("mutants", source=right, count=count) if count else None) or []
    altered = [change_answers(program, right, kind) for kind in ("zero", "other")] if changed and program.entry else []
    idle = f"def {program.entry}(*arguments, **keywords):\n    return None" if program.entry else "pass"
    empty = [idle] if count else []
    wrong: list[str] = []
    if program.entry:
        # The right program's answers wherever a mutant raises or answers with another type. A script's tests compare
        # all that it prints.
        tame = TAMED.format(entry=program.entry, source=ready(program, right))
        changed = [ready(program, mutant) + tame for mutant in changed]
    # Functions that do not end are left out, as any call shows them.
    left_out = ("timeout", "wall", "oom") if program.entry else ()
    for candidates in (changed, altered, empty):
        verdicts = await asyncio.gather(*(judge(candidate, all_tests(program)) for candidate in candidates))
        judged = zip(candidates, verdicts, strict=True)
        if wrong := [mutant for mutant, verdict in judged if not verdict.ok and verdict.status not in left_out]:
            break
    if right == program.reference:
        _mutants[key] = wrong
    return wrong
