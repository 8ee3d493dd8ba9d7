"""Agent programs of every framework behind the endpoint: `python -m lab.programs WHAT [--write] [--venvs DIR]`.

    frameworks   AT-GRPO's trees, K = 4, with answers drawn by content: what diverges, and what a decision takes
    concurrent   200 instances at once, all blocked in a call and answered together
    hold         an answer that comes after 11 minutes, to all frameworks at once
    hostile      1,000 requests that mean no good

Each framework has a virtual environment of its own in DIR, named as below; those that are not there are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.common import ROOT, record
from cadre import random_keys
from cadre.engines.scripted import ScriptedSampler
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.team import Team
from cadre.types import Message, Observation, Request, Sample, Sampling, Task, ToolCall
from cadre_programs.instances import shared_host
from cadre_programs.program import Program

EXAMPLES = ROOT / "examples" / "programs"
ROLES = ["scout", "walker"]
FILES = {
    "plain": "plain.py",
    "langgraph": "langgraph_agents.py",
    "agents": "openai_agents.py",
    "autogen": "autogen_agents.py",
    "smolagents": "smolagents_agents.py",
    "framework": "agent_framework_agents.py",
    "crewai": "crewai_agents.py",
}
TASKS = 8
INSTANCES = 200
HOLD_S = 660.0
# Programs that speak to nobody over HTTPS need none, and reading them is most of what an instance takes to start.
NO_CERTIFICATES = {"SSL_CERT_DIR": "/nonexistent"}


@dataclass(frozen=True)
class Framework:
    """A framework with its example, and the interpreter that has it."""

    name: str
    python: str

    def env(self, task: Task) -> Program:
        return Program(
            task, f"{EXAMPLES / FILES[self.name]}:main", ROLES, python=self.python, environment=NO_CERTIFICATES
        )


def frameworks(venvs: Path, names: str) -> Iterator[Framework]:
    """Those that are there; the plain client runs in this one's interpreter."""
    for name in names.split(",") if names else FILES:
        python = venvs / name / "bin" / "python"
        if name == "plain" or python.exists():
            yield Framework(name, "" if name == "plain" else str(python))


def tasks(count: int) -> list[Task]:
    rows = (EXAMPLES / "tasks.jsonl").read_text().splitlines()[:count]
    return [Task(f"t{number}", json.loads(row)) for number, row in enumerate(rows)]


class Drawn(ScriptedSampler):
    """Answers drawn by what is asked: moves, by a tool where there is one that takes an answer."""

    def __init__(self) -> None:
        super().__init__(lambda request: [moves(request, index) for index in range(request.count)])

    async def sample(self, request: Request) -> list[Sample]:
        drawn = await super().sample(request)
        return [replace(sample, message=spoken(request.tools, sample.text)) for sample in drawn]


def moves(request: Request, index: int) -> str:
    return "".join(random_keys.generator(request.key, index).choices("UDLR", k=4))


def spoken(tools: Any, text: str) -> Message | None:
    finals = [tool for tool in tools if tool.name == "final_answer"]
    if not tools:
        return None
    calls = tuple(ToolCall("0", tool.name, json.dumps({"answer": text})) for tool in finals)
    return Message("assistant", "" if calls else text, calls)


def grown(framework: Framework, count: int) -> dict[str, float]:
    """AT-GRPO's trees over the tasks: failures, decisions, seconds of processor time a decision."""
    sampler = Drawn()
    team = Team({role: role for role in ROLES}, dict.fromkeys(ROLES, sampler), dict.fromkeys(ROLES, Sampling()))
    rollout = Rollout(framework.env, team, shapes.greedy(4), 1.0)
    asyncio.run(grow_many(tasks(1), rollout, 0, stop_early=False))  # imports
    before = used()
    trees, failures = asyncio.run(grow_many(tasks(count), rollout, 1, stop_early=False))
    steps = sum(len(node.branches) for tree in trees for node in walk.nodes(tree.root))
    diverged = sum("asks for something else" in failure.error for failure in failures)
    for failure in failures:
        print(framework.name, failure.error[:500])
    return {"failures": len(failures), "diverged": diverged, "steps": steps, "cpu": (used() - before) / max(1, steps)}


def used() -> float:
    """Seconds of processor time so far, of this process and of the instances that have ended."""
    mine = resource.getrusage(resource.RUSAGE_SELF)
    total = mine.ru_utime + mine.ru_stime
    for task in shared_host().fork_servers.values():
        fields = Path(f"/proc/{task.result().process.pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def measure_frameworks(arguments: argparse.Namespace) -> None:
    seen = 0
    for framework in frameworks(arguments.venvs, arguments.names):
        result = grown(framework, TASKS)
        print(framework.name, result, flush=True)
        if arguments.write:
            command = f"python -m lab.programs frameworks --names {framework.name}"
            record(
                "programs",
                f"programs.divergence_rate.{framework.name}",
                [result["diverged"] / TASKS],
                "share",
                command,
                TASKS,
            )
            record(
                "programs",
                f"programs.overhead_ms.{framework.name}",
                [1000 * result["cpu"]],
                "ms",
                command,
                int(result["steps"]),
            )
        seen += result["failures"] == 0
    if arguments.write and not arguments.names:
        record("programs", "programs.frameworks", [seen], "frameworks", "python -m lab.programs frameworks", seen)


def measure_concurrent(arguments: argparse.Namespace) -> None:
    """All instances blocked in a call at the same time, then all answered, to their ends."""
    (framework,) = frameworks(arguments.venvs, arguments.names or "plain")
    played = tasks(240)

    async def play() -> tuple[int, int]:
        envs = [framework.env(played[number % len(played)]) for number in range(INSTANCES)]
        await asyncio.gather(*(env.until_ready() for env in envs))
        blocked = sum(bool(env.observe()) for env in envs)
        memory = sum(proportional(pid) for env in envs if (pid := pid_of(env)))
        while any(env.observe() for env in envs):
            await asyncio.gather(*(env.step({role: "RD" for role in env.observe()}) for env in envs if env.observe()))
        return blocked, memory

    began = time.monotonic()
    blocked, memory = asyncio.run(play())
    print(f"{blocked} at once, {memory / 1024 / INSTANCES:.1f} MiB each, {time.monotonic() - began:.1f} s in all")
    if arguments.write:
        record(
            "programs", "programs.concurrent", [blocked], "instances", "python -m lab.programs concurrent", INSTANCES
        )


def pid_of(env: Program) -> int:
    return getattr(env.instance.running, "pid", 0)


def proportional(pid: int) -> int:
    """KiB of memory, shared pages by their share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def measure_hold(arguments: argparse.Namespace) -> None:
    """Every framework waits for its first answer, all at once."""
    reached = asyncio.run(held(list(frameworks(arguments.venvs, arguments.names)), arguments.seconds))
    for name, how in reached.items():
        print(name, how, flush=True)
        if arguments.write:
            command = f"python -m lab.programs hold --seconds {arguments.seconds:g}"
            record(
                "programs", f"programs.held_s.{name}", [arguments.seconds if how == "reached" else 0.0], "s", command, 1
            )


async def held(chosen: list[Framework], seconds: float) -> dict[str, str]:
    async def wait(framework: Framework) -> str:
        env = framework.env(tasks(1)[0])
        try:
            await env.until_ready()
            await asyncio.sleep(seconds)
            while acting := env.observe():
                await env.step_samples({role: said(seen) for role, seen in acting.items()})
        except Exception as error:  # noqa: BLE001 - whatever happens is what is measured
            return f"{type(error).__name__}: {str(error)[-300:]}"
        finally:
            env.close()
        return "reached"

    results = await asyncio.gather(*map(wait, chosen))
    return {framework.name: how for framework, how in zip(chosen, results, strict=True)}


def said(seen: Observation) -> Sample:
    return Sample(seen.role, "p", "RRDD", (), (), (), "stop", 0, spoken(seen.tools, "RRDD"))


def measure_hostile(arguments: argparse.Namespace) -> None:
    from bench.hostile_requests import through

    answered = through(1_000, random.Random(0))
    print(answered)
    if arguments.write:
        record(
            "programs",
            "programs.hostile_through",
            [answered["through"]],
            "requests",
            "python -m lab.programs hostile",
            1_000,
        )


MEASURED = {
    "frameworks": measure_frameworks,
    "concurrent": measure_concurrent,
    "hold": measure_hold,
    "hostile": measure_hostile,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MEASURED)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--venvs", type=Path, default=Path("venvs"))
    parser.add_argument("--names", default="")
    parser.add_argument("--seconds", type=float, default=HOLD_S)
    chosen = parser.parse_args()
    MEASURED[chosen.what](chosen)
