"""Right answers in any form are right, wrong and hostile ones are wrong, and nobody waits long for either."""

import asyncio
import importlib
import importlib.util
import time
from dataclasses import replace

import pytest

from cadre.errors import ConfigError
from cadre_tasks.maths.maths import Maths
from cadre_tasks.maths.same_answer import LIMITS, MATH_VERIFY, same_answer, solves
from cadre_tasks.patterns.debate import Debate
from tests.helpers.extras import skip_without
from tests.helpers.public_sets import rows

skip_without("math_verify")

HOSTILE = [
    "9^{9^{9^9}}",
    "9**9**9**9",
    "10^{10^{10}}",
    "2^{2^{2^{2^{2^2}}}}",
    "e^{e^{e^{e^{79}}}}",
    "(10^9)!",
    "1000000000!",
    "\\binom{10^9}{5\\cdot 10^8}",
    "\\prod_{i=1}^{10^{100}} i",
    "\\sum_{n=1}^{\\infty} \\frac{1}{n^{n^n}}",
    "\\int_0^1 x^{x^{x^{x}}} dx",
    "\\lim_{x\\to 0} \\sin(1/x)^{x!}",
    "{" * 1500,
    "(" * 1500,
    "\\frac{" * 300,
    "\\sqrt{" * 250 + "2" + "}" * 250,
    "1" * 2000,
    "[0,1]\\cup" * 200,
    "\\begin{pmatrix}" + "1&" * 900 + "\\end{pmatrix}",
    "\x00\ud800",
    "__import__('os')._exit(0)",
    "70" + " " * 10**6,
    "",
]


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("1/2", "0.5", True),
        ("1/2", "\\frac{1}{2}", True),
        ("$\\frac{\\sqrt{2}}{2}$", "\\frac{1}{\\sqrt{2}}", True),
        ("(3, \\frac{\\pi}{2})", "(3,\\pi/2)", True),
        ("70", "70", True),
        ("70", "070", True),
        ("70", "71", False),
        ("x+1", "1+x", True),
        ("2", "x", False),
        ("[0,1)", "[0,1]", False),
    ],
)
def test_same_answer(gold: str, answer: str, same: bool) -> None:
    assert asyncio.run(same_answer(gold, answer)) is same


def test_numbers_within_a_tolerance() -> None:
    """2.5 and 2.4 are 0.1 apart; in a list each number may be so far off."""

    async def go() -> list[bool]:
        return [
            await solves("2.5", "2.4", 0.1),
            await solves("2.5", "2.39", 0.1),
            await solves("$1.68,0.45$", "0.46, 1.67", 0.02),
            await solves("$18.8^{\\circ}$", "18.75", 0.1),
            await solves("2.5", "2.4"),
            await solves("2.5", None, 0.1),
        ]

    assert asyncio.run(go()) == [True, False, True, True, False, False]


@pytest.mark.parametrize("cpu_s", [0.2, pytest.param(LIMITS.cpu_s, marks=pytest.mark.slow)])
def test_hostile_answers_are_wrong_in_bounded_time_and_the_loop_goes_on(
    cpu_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.import_module("cadre_tasks.maths.same_answer"), "LIMITS", replace(LIMITS, cpu_s=cpu_s)
    )

    async def go() -> tuple[list[bool], float, int]:
        started, turns = time.monotonic(), 0
        task = asyncio.gather(*(same_answer("70", answer) for answer in HOSTILE))
        while not task.done():
            await asyncio.sleep(0.01)
            turns += 1
        return await task, time.monotonic() - started, turns

    answers, seconds, turns = asyncio.run(go())
    assert len(answers) >= 20
    assert not any(answers)
    assert seconds <= 2 * LIMITS.wall_s * len(HOSTILE)  # the benchmark times each, on a quiet machine
    assert turns > 10 * seconds  # a blocked loop would have turned only between answers


def test_answers_are_compared_behind_the_layers() -> None:
    assert MATH_VERIFY.sandbox.level in ("confined", "isolated")


@pytest.mark.parametrize(("name", "stride"), [("aime24", 1), ("aime25", 1), ("math500", 25), ("olympiadbench", 30)])
def test_gold_against_gold(name: str, stride: int) -> None:
    """A share of the larger sets; the benchmark does all of them."""
    golds = [row.get("answer") or ", ".join(row["answers"]) for row in rows(f"{name}/test.jsonl")][::stride]

    async def go() -> list[bool]:
        return await asyncio.gather(*(same_answer(gold, gold) for gold in golds))

    assert [gold for gold, same in zip(golds, asyncio.run(go()), strict=True) if not same] == []


@pytest.mark.parametrize("env", [Maths, Debate])
def test_without_math_verify_the_tasks_are_refused_in_one_paragraph(env: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tasks` is asked before any model loads."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*\[maths\]") as caught:
        env.tasks("train", source="/nowhere")
    assert "\n" not in str(caught.value)
