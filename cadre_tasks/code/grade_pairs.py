"""The graded reward of two agents that write one program: `aux` a helper, `main` the requested function.

Levels and weights as published for MAGRPO (arXiv 2508.04652, section 5): +0.4 and +0.6 for the two definitions, +0.5 if
the whole parses, +1.0 times the share of tests passed; once a test passes, +0.5 if main calls aux, +1.0 if it then is
more than a wrapper of it, -0.5 if the result of aux is not used. At most 4. If it is not used, the +1.0 is not given
either: a call that changes nothing earns no more than none. Three holes of the published reward are closed here: the
use of aux is detected by running main with other helpers (`Replacements.needless`), so its spelling does not matter; a
main that aux could replace, with the same arguments and value, counts as a wrapper; and a main that defines its own
`aux` does not use the team mate's. A main that unpacks the result of aux, or reorders its arguments, is more than a
wrapper here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from cadre_sandbox.checkers import Verdict
from cadre_tasks.code.inspect import ask
from cadre_tasks.code.judge import LIMITS, all_tests, builds, extract_code, hoisted, judge, opening
from cadre_tasks.data.records import CodingProblem

BEST = 4.0
NOTHING = Verdict(0, 0, (), "ok")
NO_USE = {"helps": False, "defined": False, "bound": False, "called": False, "wrapper": False}
STAND_IN = "\n\ndef aux(*arguments, **keywords):\n    {}\n"
REPLACED = (Path(__file__).parent / "replaced_helper.py").read_text(encoding="utf-8")
SHORT = replace(LIMITS, cpu_s=3.0)  # of programs with a replaced helper, many of which never end
LONG = replace(LIMITS, cpu_s=2 * LIMITS.cpu_s)  # where the helper itself takes longer, once it is wrapped
# Defined behind the helper, these replace it.
NO_AUX, *ANY_AUX = map(STAND_IN.format, ("raise RuntimeError('no aux')", "return None", "return object()"))


@dataclass(frozen=True)
class Graded:
    """The graded reward of a pair of answers by part, and the verdict of the tests."""

    parts: dict[str, float]
    verdict: Verdict = NOTHING

    @property
    def value(self) -> float:
        return sum(self.parts.values())


def combined(program: CodingProblem, aux: str, main: str) -> str:
    """Return the whole program: the definitions of the prompt, then the helper, then the function."""
    return hoisted(opening(program.starter), f"{aux}\n\n{main}\n")


class Replacements:
    """Judges a pair of answers with its helper replaced. Lives for one judgement; `verdict` is that of the
    pair itself."""

    def __init__(self, program: CodingProblem, aux: str, main: str, verdict: Verdict) -> None:
        self.program, self.aux, self.main, self.verdict = program, aux, main, verdict
        self.limits = SHORT

    async def passes(self, text: str) -> bool:
        candidate = await judge(text, all_tests(self.program), self.limits)
        failed, allowed = ({line.split(" -> ")[0] for line in judged.failures} for judged in (candidate, self.verdict))
        return candidate.passed >= self.verdict.passed and failed <= allowed

    async def passes_with(self, kind: str, main: str = "") -> bool:
        """Return True if the same tests pass with the helper replaced by `kind` of `replaced_helper`."""
        replaced = f"{self.aux}\n\n{REPLACED}\n\naux = cadre_replaced(aux, {kind!r})\n"
        return await self.passes(combined(self.program, replaced, main or self.main))

    async def in_place(self) -> bool:
        """Return True if the helper itself solves the task in place of the function."""
        return await self.passes(f"{combined(self.program, self.aux, self.main)}\n\n{self.program.entry} = aux\n")

    async def needless(self) -> bool:
        """Return True if the function does not depend on the helper's work: it passes as many tests with a helper that
        raises, with any value at all, or with one answer of the right type that took no work (a constant, an argument
        of its own, an earlier answer). A function that distinguishes the helper from one with the same answers inspects
        it otherwise than by calling it, which is no use of it either."""
        if not await self.passes_with("genuine"):
            self.limits = LONG  # replacements take longer than what they replace
            if not await self.passes_with("genuine"):
                return True
        # A helper that raises shows whether it is needed at all, two useless values whether its answer matters.
        plain = [self.passes(combined(self.program, self.aux + stand_in, self.main)) for stand_in in (NO_AUX, *ANY_AUX)]
        failing, *any_value = await asyncio.gather(*plain)
        if failing or all(any_value):
            return True
        zero, identity, several = await asyncio.gather(
            self.passes_with("zero"), self.passes_with("identity"), self.several()
        )
        # One that gave the same answers says nothing. Of several calls, though, not all have one answer.
        if zero and (several or not await self.passes_with("zero_same")):
            return True
        if identity and not await self.passes_with("identity_same"):
            return True
        passes_once = await self.passes_with("once")  # as at import: its first answer is all that it works out
        if several and not passes_once and await self.constant_or_earlier():
            return True
        # It passes with one use of the helper removed and with a helper that works out nothing: then it works out the
        # answer itself, as in `n + n + aux(n) - n * n`.
        kind = "first" if several and not passes_once else "zero"
        main: str = (await ask("gated", source=self.main, helper="aux") or self.main) if kind == "first" else self.main
        shorter: list[str] = await ask("without_a_use", source=main, helper="aux") or []
        return any(await asyncio.gather(*(self.passes_with(kind, version) for version in shorter)))

    async def several(self) -> bool:
        """Return True if the passed tests call the function with more than one set of arguments."""
        once = f"{combined(self.program, self.aux, self.main)}\n\n{REPLACED}\n\n{self.program.entry} = "
        return not await self.passes(f"{once}cadre_once({self.program.entry})\n")

    async def constant_or_earlier(self) -> bool:
        """Return True if the helper's first answer is enough for every call, also with every test of it fixed to its
        first outcome; or if an earlier answer is enough in place of each."""
        gated: str = await ask("gated", source=self.main, helper="aux") or self.main
        first, tested, lagged = await asyncio.gather(
            self.passes_with("first"), self.passes_with("first", gated), self.passes_with("lagged")
        )
        return first or tested or (lagged and not await self.passes_with("lagged_same"))


async def grade(program: CodingProblem, aux_text: str, main_text: str) -> Graded:
    """Return the graded reward of two completions for a problem that asks for a function."""
    aux, main = extract_code(aux_text), extract_code(main_text)
    both = {"helper": "aux", "entry": program.entry}
    # `aux` is also analysed without `main`, so that a main that does not parse costs aux nothing.
    aux_facts, use, parses = await asyncio.gather(
        ask("use", helping=aux, main="", **both),
        ask("use", helping=aux, main=main, **both),
        builds(combined(program, aux, main)),
    )
    main_facts = use or await ask("use", helping="", main=main, **both) or NO_USE  # aux's fault is not main's
    parts = {"aux": 0.4 * (aux_facts or NO_USE)["helps"], "main": 0.6 * main_facts["defined"]}
    verdict = (
        await judge(combined(program, aux, main), all_tests(program)) if parses and main_facts["bound"] else NOTHING
    )
    # It may be bound otherwise, as a lambda: that may solve the task, but is not rewarded.
    if not main_facts["defined"]:
        return Graded(parts, verdict)
    parts["parses"] = 0.5 * parses
    if not parses:
        return Graded(parts)
    parts["tests"] = verdict.share
    if verdict.passed and use and use["called"] and use["helps"]:
        # The costly part, up to a dozen runs of all tests: only for a pair that passes something and calls the helper.
        replacements = Replacements(program, aux, main, verdict)
        ignored = await replacements.needless()
        wrapper = use["wrapper"] or await replacements.in_place()
        parts |= {"calls": 0.5, "more": 1.0 * (not wrapper and not ignored), "ignored": -0.5 * ignored}
    return Graded(parts, verdict)
