"""The graded reward of two agents that write one program: `aux` a helper, `main` the function that is asked for.

Levels and weights as published for MAGRPO (arXiv 2508.04652, section 5): +0.4 and +0.6 where both are defined, +0.5 if
the whole parses, +1.0 times the share of tests passed; once a test passes, +0.5 if main calls aux, +1.0 if it then is
more than a wrapper of it, -0.5 if what aux gives is not used. At most 4. Three holes are closed here: a call that
changes nothing (the tests pass as well when aux raises, or whatever it returns), however it is spelt, counts as
ignored; a main that aux could stand in for, with the same arguments and value, counts as a wrapper; and main's own
`aux` is not aux's. A main that unpacks what aux gives, or turns its arguments round, is more than a wrapper here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cadre.data.records import Program
from cadre.rewards.code import all_tests, builds, extract_code, hoisted, judge, opening
from cadre.rewards.inspect import ask
from cadre.sandbox.checkers import Verdict

BEST = 4.0
NOTHING = Verdict(0, 0, (), "ok")
NO_USE = {"helps": False, "defined": False, "bound": False, "called": False, "wrapper": False}
STAND_IN = "\n\ndef aux(*arguments, **keywords):\n    {}\n"
NO_AUX, *ANY_AUX = map(STAND_IN.format, ("raise RuntimeError('no aux')", "return None", "return object()"))


@dataclass(frozen=True)
class Graded:
    """What came of a pair of answers: the reward by part, and the verdict of the tests."""

    parts: dict[str, float]
    verdict: Verdict = NOTHING

    @property
    def value(self) -> float:
        return sum(self.parts.values())


def combined(program: Program, aux: str, main: str) -> str:
    """The whole program: what the prompt defines, then the helper, then the function."""
    return hoisted(opening(program.starter), f"{aux}\n\n{main}\n")


def passes_as_well(other: Verdict, verdict: Verdict) -> bool:
    """Whether another program passes every test that is passed here."""
    failed, here = ({line.split(" -> ")[0] for line in one.failures} for one in (other, verdict))
    return other.passed >= verdict.passed and failed <= here


async def grade(program: Program, aux_text: str, main_text: str) -> Graded:
    """The reward of two completions for a problem that asks for a function."""
    aux, main = extract_code(aux_text), extract_code(main_text)
    both = {"helper": "aux", "entry": program.entry}
    alone, use, parses = await asyncio.gather(
        ask("use", helping=aux, main="", **both),
        ask("use", helping=aux, main=main, **both),
        builds(combined(program, aux, main)),
    )
    mine = use or await ask("use", helping="", main=main, **both) or NO_USE  # aux's fault is not main's
    parts = {"aux": 0.4 * (alone or NO_USE)["helps"], "main": 0.6 * mine["defined"]}
    whole = combined(program, aux, main)
    verdict = await judge(whole, all_tests(program)) if parses and mine["bound"] else NOTHING
    if not mine["defined"]:  # it may be bound otherwise, as a lambda: that may solve the task, and is not paid
        return Graded(parts, verdict)
    parts["parses"] = 0.5 * parses
    if not parses:
        return Graded(parts)
    parts["tests"] = verdict.share
    if verdict.passed and use and use["called"] and use["helps"]:
        others = [combined(program, aux + other, main) for other in (NO_AUX, *ANY_AUX)]
        others.append(f"{whole}\n\n{program.entry} = aux\n")
        judged = await asyncio.gather(*(judge(other, all_tests(program)) for other in others))
        failing, *any_value, in_place = (passes_as_well(other, verdict) for other in judged)
        ignored, wrapper = failing or all(any_value), use["wrapper"] or in_place
        parts |= {"calls": 0.5, "more": 1.0 * (not wrapper), "ignored": -0.5 * ignored}
    return Graded(parts, verdict)
