"""Compares a model's mathematical answer with the right one; docs/answers.md has the rules.

The answer is hostile text: it may make a parser loop, recurse or fill the memory. It is read and compared by a child
that a warm parent forks for it alone (`cadre_sandbox.inside.maths`), so the event loop never waits for it, and what
does not end in time is wrong.
"""

import re
import secrets
from collections.abc import Sequence

from cadre.errors import SandboxError
from cadre_sandbox.checkers import told
from cadre_sandbox.records import Limits
from cadre_tasks.judging_package import JudgingPackage

MATH_VERIFY = JudgingPackage("math-verify", "maths", "compares mathematical answers", "inside.maths")
# Parsers do not sleep, so the CPU time decides; the wall clock only ends a hanging process.
LIMITS = Limits(wall_s=10.0, cpu_s=1.0, memory_mb=1024)
MAX_ANSWER = 2000  # characters; no answer of a benchmark is longer than 300


async def same_answer(gold: str, answer: str, tolerance: float = 0.0) -> bool:
    """Return True if `answer` means the same as `gold`: "1/2", "0.5" and "\\\\frac{1}{2}" do. Dollar signs around are
    ignored.

    tolerance   how far numbers may be apart, absolutely

    False for what cannot be parsed, and for what takes more processor time or memory than LIMITS. Raises ConfigError
    when math-verify is not installed, SandboxError when its process cannot be started.
    """
    if len(answer) > MAX_ANSWER:
        return False
    nonce = secrets.token_hex(16)
    arguments = {"gold": bare(gold), "answer": bare(answer), "tolerance": tolerance}
    job = {"kind": "external", "function": "inside.maths:same_answer", "arguments": arguments, "nonce": nonce}
    ending = (await MATH_VERIFY.sandbox.submit([job], "", LIMITS))[0]
    if not ending.layers:
        raise SandboxError(f"answers cannot be compared: {ending.error}")
    return ["value", "True"] in told(ending, nonce)


async def solves(gold: str, answer: str | None, tolerance: float = 0.0) -> bool:
    """Return True if an answer, already taken out of its box, is right; None is wrong."""
    return answer is not None and await same_answer(gold, answer, tolerance)


async def majority(answers: Sequence[str | None]) -> str | None:
    """Return the answer that most of them mean, the first such one in a tie, or None if there are no answers."""
    camps: list[list[str]] = []
    for answer in filter(None, answers):
        # Each group is represented by its first answer.
        camp = [members for members in camps if await same_answer(members[0], answer)]
        if camp:
            camp[0].append(answer)
        else:
            camps.append([answer])
    return max(camps, key=len)[0] if camps else None


def bare(text: str) -> str:
    """Return the text without dollar signs, which mark LaTeX, and without the full stop of a sentence."""
    return re.sub(r"(?<!\\)\$", "", text).strip().removesuffix(".")
