"""Whether a model's mathematical answer is right, by math-verify in a confined process with limits of its own.

The answer is hostile text: it may make a parser loop, recurse or fill the memory. It is parsed by a child that a warm
parent forks for it alone, so the event loop never waits for it, and what does not end in time is wrong.
"""

import importlib.util
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from cadre.errors import SandboxError
from cadre.sandbox import Sandbox, default
from cadre.sandbox.checkers import told
from cadre.sandbox.records import Limits

LIMITS = Limits(wall_s=1.8, cpu_s=1.0, memory_mb=1024)
PATIENT = replace(LIMITS, wall_s=10.0)  # parsers do not sleep: who ran out of time and not of processor had too little
MAX_ANSWER = 2000  # characters; no answer of a benchmark is longer than 300
BOXES = ("\\boxed", "\\fbox")

_sandbox: Sandbox | None = None


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` of a completion holds, braces balanced; None when there is none.

    >>> last_boxed("so \\\\boxed{1} or rather \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    """
    start = max(text.rfind(box) for box in BOXES)
    opening = text.find("{", start)
    if start < 0 or opening < 0 or text[start:opening].rstrip() not in BOXES:
        return None
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opening + 1 : place].strip()
    return None


async def same_answer(gold: str, answer: str) -> bool:
    """Whether `answer` means the same as `gold`: "1/2", "0.5" and "\\\\frac{1}{2}" do. Dollar signs around are ignored.

    False for what cannot be parsed, and for what takes more processor time or memory than LIMITS. Raises SandboxError
    when math-verify is not installed, or its process cannot be started.
    """
    if len(answer) > MAX_ANSWER:
        return False
    nonce = secrets.token_hex(16)
    arguments = {"gold": bare(gold), "answer": bare(answer)}
    job = {"kind": "external", "function": "inside.maths:same_answer", "arguments": arguments, "nonce": nonce}
    ending = (await sandbox().submit([job], "", LIMITS))[0]
    if ending.killed == "wall" and ending.cpu_s < LIMITS.cpu_s:
        ending = (await sandbox().submit([job], "", PATIENT))[0]
    if not ending.layers:
        raise SandboxError(f"answers cannot be compared: {ending.error}")
    return ["value", "True"] in told(ending, nonce)


async def correct(gold: str, completion: str) -> bool:
    """Whether a completion boxes the right answer: the last box counts, and without a box it is wrong."""
    answer = last_boxed(completion)
    return answer is not None and await same_answer(gold, answer)


async def solves(gold: str, answer: str | None, tolerance: float = 0.0) -> bool:
    """Whether an answer, already taken out of its box, is right: the same, or a number within an absolute tolerance."""
    if answer is None:
        return False
    if tolerance and number(gold) is not None and number(answer) is not None:
        return abs((number(gold) or 0.0) - (number(answer) or 0.0)) <= tolerance
    return await same_answer(gold, answer)


def number(text: str) -> float | None:
    """The decimal number that a text is, without a sign of percent; None for anything else."""
    plain = bare(text).removesuffix("%").removesuffix("\\").strip()
    return float(plain) if re.fullmatch(r"-?\d{1,30}(\.\d{0,30})?", plain, re.ASCII) else None


async def majority(answers: Sequence[str | None]) -> str | None:
    """The answer that most of them mean, the first such one where several do; None where nobody answered."""
    camps: list[list[str]] = []
    for answer in filter(None, answers):
        camp = [one for one in camps if await same_answer(one[0], answer)]
        if camp:
            camp[0].append(answer)
        else:
            camps.append([answer])
    return max(camps, key=len)[0] if camps else None


def bare(text: str) -> str:
    """The text without dollar signs, which mark LaTeX, and without the full stop of a sentence."""
    return re.sub(r"(?<!\\)\$", "", text).strip().removesuffix(".")


def sandbox() -> Sandbox:
    """The sandbox whose warm parents have math-verify loaded, at the level of the process's own sandbox."""
    global _sandbox
    if _sandbox is None:
        found = importlib.util.find_spec("math_verify")
        if found is None or found.origin is None:
            raise SandboxError("comparing mathematical answers needs math-verify; got none. pip install math-verify")
        packages = (os.path.dirname(os.path.dirname(found.origin)),)
        _sandbox = Sandbox(default().level, packages=packages, preload=("inside.maths",), cgroup=default().cgroup)
    return _sandbox
