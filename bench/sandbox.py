"""The sandbox in figures: speed, attacks, checkers, and hostile answers.

    python bench/sandbox.py [throughput attacks checkers maths]

Appends `sandbox.*` and `checker.*` to results/sandbox.jsonl. `checkers` and `maths` read data sets below $CADRE_DATA
(`NEEDED`, docs/data.md) and are left out, with a sentence, where these are missing.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from assaults import NEWEST, assault
from cadre_tasks import sandbox
from cadre_tasks.code.judge import all_tests, judge
from cadre_tasks.data.public_sets import humaneval, mbpp
from cadre_tasks.maths.same_answer import same_answer
from cadre_tasks.sandbox import Sandbox
from common import ROOT, record

console = Console(soft_wrap=True)
DATA = Path(os.environ.get("CADRE_DATA", ROOT / "data"))
MATHS = ("aime24", "aime25", "math500", "olympiadbench")
# Files below DATA by part.
NEEDED = {
    "checkers": ("humaneval/HumanEval.jsonl", "mbpp/mbpp.jsonl"),
    "maths": tuple(f"{name}/test.jsonl" for name in MATHS),
}
COMMAND = "python bench/sandbox.py"
SHORT = "print(sum(range(1000)))"
ROUNDS, A_ROUND = 5, 600
HOSTILE = (
    *("9^{9^{9^9}}", "10^{10^{10}}", "2^{2^{2^{2^{2^2}}}}", "e^{e^{e^{e^{79}}}}", "(10^9)!", "1000000000!"),
    *("\\binom{10^9}{5\\cdot 10^8}", "\\prod_{i=1}^{10^{100}} i", "\\int_0^1 x^{x^{x^{x}}} dx", "{" * 1500, "(" * 1500),
    *(
        "\\frac{" * 300,
        "\\sqrt{" * 250 + "2" + "}" * 250,
        "1" * 2000,
        "[0,1]\\cup" * 200,
        "\x00\ud800",
        "70" + " " * 10**6,
    ),
    *(
        "\\begin{pmatrix}" + "1&" * 900 + "\\end{pmatrix}",
        "__import__('os')._exit(0)",
        "\\lim_{x\\to 0} \\sin(1/x)^{x!}",
    ),
)


def keep(name: str, values: list[float], unit: str, n: int) -> None:
    line = record("sandbox", name, values, unit, COMMAND, n)
    console.print(f"{name}: {line['value']:,.3f} [{line['low']:,.3f}, {line['high']:,.3f}] {unit}", highlight=False)


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


async def together(count: int, jobs: Iterable[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """The jobs' results in order, at most `count` at a time."""
    gate = asyncio.Semaphore(count)

    async def one(job: Callable[[], Awaitable[Any]]) -> Any:
        async with gate:
            return await job()

    return await asyncio.gather(*(one(job) for job in jobs))


async def throughput() -> None:
    """Short programs through the pool against new interpreters without any confinement, both sides in turn."""
    cores = os.cpu_count() or 1
    rates: dict[str, list[float]] = {"pool": [], "cold": []}
    tails: list[float] = []

    async def new_interpreter() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-B", "-c", SHORT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        await process.communicate()

    async with Sandbox() as pool:

        async def timed() -> float:
            began = time.perf_counter()
            result = await pool.run(SHORT)
            assert result.stdout == "499500\n", result
            return time.perf_counter() - began

        await together(cores, [timed] * 50)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            seconds = sorted(await together(cores, [timed] * A_ROUND))
            rates["pool"].append(A_ROUND / (time.perf_counter() - began))
            tails.append(1000 * seconds[int(0.99 * A_ROUND)])
            began = time.perf_counter()
            await together(cores, [new_interpreter] * (A_ROUND // 4))
            rates["cold"].append(A_ROUND // 4 / (time.perf_counter() - began))
        console.print(f"level {pool.level}: {', '.join(pool.layers)}", highlight=False)
    keep("sandbox.programs_per_s", rates["pool"], "1/s", ROUNDS * A_ROUND)
    keep("sandbox.p99_ms", tails, "ms", ROUNDS * A_ROUND)
    keep("sandbox.vs_cold", [a / b for a, b in zip(rates["pool"], rates["cold"], strict=True)], "ratio", ROUNDS)


async def try_attacks() -> None:
    """Every attack at both levels, at `confined` also with older versions of Landlock, as root and as an ordinary user
    where the machine lets us be both.
    """
    users = ["root", "ordinary"] if os.getuid() == 0 else ["ordinary"]
    names, attacks, through, stopped = set[str](), 0, 0, Counter[str]()
    for level, abi, user in product(("confined", "isolated"), (1, 2, NEWEST), users):
        if level == "isolated" and abi != NEWEST:
            continue
        outcomes = await asyncio.to_thread(assault, level, user, abi)
        breaches = [f"{outcome['name']}: {outcome['breach']}" for outcome in outcomes if outcome["breach"]]
        console.print(f"{level}, Landlock {abi}, {user}: {len(outcomes)} attacks, {len(breaches)} through {breaches}")
        names |= {outcome["name"] for outcome in outcomes}
        attacks, through = attacks + len(outcomes), through + len(breaches)
        stopped.update(outcome["layer"] for outcome in outcomes)
    console.print(f"stopped by {dict(stopped)}", highlight=False)
    keep("sandbox.attacks_tried", [len(names)], "attacks", attacks)
    keep("sandbox.attacks_through", [through], "attacks", attacks)


async def checkers() -> None:
    """Return nothing; count the references that pass their own tests."""
    problems, basic = rows("humaneval/HumanEval.jsonl"), rows("mbpp/mbpp.jsonl")
    right = await asyncio.gather(
        *(judge(r["prompt"] + r["canonical_solution"], all_tests(humaneval(r, 0))) for r in problems)
    )
    keep("checker.humaneval_pass", [sum(verdict.ok for verdict in right)], "problems", len(right))
    passed = await asyncio.gather(*(judge(row["code"], all_tests(mbpp(row, 0))) for row in basic))
    keep("checker.mbpp_pass", [sum(verdict.ok for verdict in passed)], "problems", len(passed))


async def maths() -> None:
    """Gold answers against themselves, and the longest that a hostile answer takes."""
    total = 0
    for name in MATHS:
        golds = [row.get("answer") or ", ".join(row["answers"]) for row in rows(f"{name}/test.jsonl")]
        same = await asyncio.gather(*(same_answer(gold, gold) for gold in golds))
        total += sum(same)
        keep(f"checker.math_gold_pass.{name}", [sum(same)], "problems", len(golds))
    keep("checker.math_gold_pass", [total], "problems", 1235)
    seconds, accepted = [], 0
    for answer in HOSTILE:
        began = time.perf_counter()
        accepted += await same_answer("70", answer)
        seconds.append(time.perf_counter() - began)
    keep("checker.math_hostile_s", [max(seconds)], "s", len(HOSTILE))
    keep("checker.math_hostile_pass", [accepted], "answers", len(HOSTILE))


PARTS = {
    "throughput": throughput,
    "attacks": try_attacks,
    "checkers": checkers,
    "maths": maths,
}


def runnable(parts: Sequence[str]) -> list[str]:
    """Return the parts whose files are there; a sentence says which are left out, and what they need."""
    missing = {part: [name for name in NEEDED.get(part, ()) if not (DATA / name).is_file()] for part in parts}
    for part, names in missing.items():
        if names:
            remedy = "Set CADRE_DATA to the folder of the data sets (docs/data.md)."
            console.print(f"{part} is left out: {DATA} has no {', no '.join(names)}. {remedy}", highlight=False)
    return [part for part in parts if not missing[part]]


async def main(parts: Sequence[str]) -> None:
    sandbox.configure("auto")
    for part in runnable(parts or list(PARTS)):
        await PARTS[part]()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
