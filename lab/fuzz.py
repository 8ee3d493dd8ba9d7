"""Plays hostile answers in every bundled environment: no exception leaves `step`, and none holds the event loop.

Appends `fuzz.inputs`, `fuzz.crashes` and `fuzz.blocked` (steps that held the loop for more than 100 ms of CPU time) to
results/fuzz.jsonl, and of chosen environments `fuzz.NAME.crashes` and `fuzz.NAME.blocked`.
Environments that need data take it from $CADRE_DATA; those that have none, or whose package is not installed, are
named.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import traceback
from collections.abc import Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.common import record
from bench.hostile import texts
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import CadreError
from cadre.plugins import environments
from cadre_tasks.sandbox import default

HELD_SECONDS = 0.1
# Data that train and test share are left out, and sets that are small enough to be at hand stand for the larger ones.
SETTINGS: dict[str, dict[str, Any]] = {
    "code": {"data": "mbpp"},
    "code-single-agent": {"data": "mbpp"},
    **{
        name: {"leaks": "drop"}
        for name in ("maths maths-single-agent maths-vote debate gather lead refine review tldr arxiv story").split()
    },
}
# Episodes side by side, so that programs in the sandbox wait for each other and not the loop for them.
AT_ONCE = 16


@dataclass
class Found:
    """Results of playing one environment; `blocked` are (CPU seconds, kind of text)."""

    inputs: int = 0
    crashes: list[str] = field(default_factory=list)
    blocked: list[tuple[float, str]] = field(default_factory=list)


async def play(env: Env, answers: Iterator[tuple[str, str]], outcome: Found) -> None:
    """One episode of hostile answers."""
    while observations := env.observe():
        texts = {role: next(answers) for role in observations}
        kinds = " ".join(kind for kind, _ in texts.values())
        outcome.inputs += len(texts)
        try:
            await Metered(env.step({role: text for role, (_, text) in texts.items()}), kinds, outcome)
        except Exception:  # noqa: BLE001 - what leaves a step is what is counted here
            outcome.crashes.append(f"{type(env).__name__} {kinds}\n{traceback.format_exc()}")
            return


class Metered:
    """A coroutine that notes each of its runs, from one `await` that gives the loop back to the next, that computes for
    long: until it ends nothing else is done. `kinds` are those of the texts that it was given."""

    def __init__(self, work: Coroutine[Any, Any, Any], kinds: str, outcome: Found) -> None:
        self.work, self.kinds, self.found = work, kinds, outcome

    def __await__(self) -> Generator[Any, Any, Any]:
        running, value = self.work.__await__(), None
        while True:
            began = time.thread_time()
            try:
                future = running.send(value)
            except StopIteration as end:
                return end.value
            finally:
                used = time.thread_time() - began
                if used > HELD_SECONDS:
                    self.found.blocked.append((used, self.kinds))
            value = yield future


async def fuzz(name: str, spec: EnvSpec, inputs: int) -> Found:
    outcome, tasks = Found(), spec.tasks("train")
    answers = texts(name)
    number = 0
    while outcome.inputs < inputs:
        episodes = [spec.make(tasks[(number + index) % len(tasks)]) for index in range(AT_ONCE)]
        await asyncio.gather(*(play(env, answers, outcome) for env in episodes))
        number += AT_ONCE
    return outcome


def specs(only: list[str]) -> Iterator[tuple[str, EnvSpec]]:
    for name in only or list(environments()):
        try:
            spec = EnvSpec(name, SETTINGS.get(name, {}))
            spec.make(spec.tasks("train")[0])
        except CadreError as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        yield name, spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="model answers in all")
    parser.add_argument("--envs", nargs="*", default=[])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    default()  # what the machine can confine is found out once a process, before a run begins
    chosen = list(specs(options.envs))
    share = -(-options.inputs // len(chosen))
    total = Found()
    for name, spec in chosen:
        outcome = asyncio.run(fuzz(name, spec, share))
        print(
            f"{name}: {outcome.inputs} answers, {len(outcome.crashes)} crashes, {len(outcome.blocked)} held", flush=True
        )
        for text in [*outcome.crashes[:3], *map(str, sorted(outcome.blocked, reverse=True)[:3])]:
            print(text, flush=True)
        total.inputs += outcome.inputs
        total.crashes += outcome.crashes
        total.blocked += outcome.blocked
        if options.write and options.envs:
            command = " ".join(["python -m lab.fuzz", *sys.argv[1:]])
            for figure, value in (("crashes", len(outcome.crashes)), ("blocked", len(outcome.blocked))):
                record("fuzz", f"fuzz.{name}.{figure}", [value], "answers", command, outcome.inputs)
    if options.write and not options.envs:
        command = f"python -m lab.fuzz --inputs {options.inputs} --write"
        for figure, value in (
            ("inputs", total.inputs),
            ("crashes", len(total.crashes)),
            ("blocked", len(total.blocked)),
        ):
            record("fuzz", f"fuzz.{figure}", [value], "answers", command, total.inputs)
    sys.exit(1 if total.crashes or total.blocked else 0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
