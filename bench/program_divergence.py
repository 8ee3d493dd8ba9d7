"""Programs that ask in parallel, hand over, swarm and delegate: `python bench/program_divergence.py [--write]`.

AT-GRPO's trees (K = 4) over eight tasks each, with answers drawn by what is asked: a text, or a call of a tool that is
offered, with arguments of the right kind. Counted are trees that diverged, after a second try, and those that failed
otherwise. Each framework has a virtual environment in --venvs, as in `programs.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cadre import random_keys
from cadre.engines.scripted import ScriptedSampler
from cadre.programs.program import Program
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import Failure, grow_many
from cadre.rollout.grow import Rollout
from cadre.team import Team
from cadre.types import Message, Request, Sample, Sampling, Task, Tool, ToolCall, Tree
from common import record
from programs import EXAMPLES
from programs import tasks as grids

TASKS = 8
# Of the answers where tools are offered.
CALLS = 0.75


@dataclass(frozen=True)
class Complex:
    """An example with the virtual environment that has its framework, and the roles that it asks for."""

    venv: str
    file: str
    roles: tuple[str, ...]

    def env(self, task: Task, venvs: Path) -> Program:
        python = str(venvs / self.venv / "bin" / "python")
        return Program(task, f"{EXAMPLES / self.file}:main", list(self.roles), python=python)


TWO, THREE = ("scout", "walker"), ("scout", "walker", "manager")
PROGRAMS = {
    "langgraph-parallel": Complex("langgraph", "langgraph_parallel.py", ("scout", "walker", "judge")),
    "agents-parallel": Complex("agents", "openai_parallel.py", TWO),
    "agents-handoff": Complex("agents", "openai_handoff.py", TWO),
    "autogen-swarm": Complex("autogen", "autogen_swarm.py", TWO),
    "framework-concurrent": Complex("framework", "agent_framework_concurrent.py", TWO),
    "smolagents-managed": Complex("smolagents", "smolagents_managed.py", THREE),
    "crewai-hierarchical": Complex("crewai", "crewai_hierarchical.py", THREE),
    "dpbench": Complex("dpbench", "dining.py", ("philosopher",)),
}


class Drawn(ScriptedSampler):
    """Answers drawn by what is asked."""

    def __init__(self) -> None:
        super().__init__(lambda request: [""] * request.count)

    async def sample(self, request: Request) -> list[Sample]:
        drawn = await super().sample(request)
        return [replace(one, **said(request, number)) for number, one in enumerate(drawn)]


def said(request: Request, number: int) -> dict[str, Any]:
    """Moves, or a call of a tool."""
    draw = random_keys.generator(request.key, number)
    moves = "".join(draw.choices("UDLR", k=4)) + draw.choice([" scout", " walker", " ACTION: GRAB_LEFT", ""])
    if not request.tools or draw.random() >= CALLS:
        return {"text": moves}
    tool = draw.choice(request.tools)
    call = ToolCall("call_0", tool.name, json.dumps(arguments(tool, moves, draw)))
    return {"text": f"{call.name}({call.arguments})", "message": Message("assistant", "", (call,))}


def arguments(tool: Tool, moves: str, draw: random.Random) -> dict[str, Any]:
    """A value for every parameter, as its schema says."""
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    return {name: value(name, part, moves, draw) for name, part in properties.items()}


def value(name: str, schema: Mapping[str, Any], moves: str, draw: random.Random) -> Any:
    if name == "coworker":
        return draw.choice(TWO)
    plain = {"integer": draw.randrange(6), "number": 0.5, "boolean": True, "array": [], "object": {}}
    return plain.get(str(schema.get("type")), moves)


def tasks(name: str, count: int) -> list[Task]:
    if name == "dpbench":
        return [Task(f"t{number}", {"philosophers": 3 + number % 3, "steps": 4}) for number in range(count)]
    return grids(count)


def grown(name: str, venvs: Path) -> tuple[list[Tree], list[Failure]]:
    """The trees of a program, and those that failed after a second try."""
    program = PROGRAMS[name]
    sampler = Drawn()
    samplers, sampling = dict.fromkeys(program.roles, sampler), dict.fromkeys(program.roles, Sampling())
    team = Team({role: role for role in program.roles}, samplers, sampling)
    rollout = Rollout(lambda task: program.env(task, venvs), team, shapes.greedy(4), 1.0)
    return asyncio.run(grow_many(tasks(name, TASKS), rollout, 1, stop_early=False))


def measure(name: str, venvs: Path, write: bool) -> None:
    trees, failures = grown(name, venvs)
    counts = Counter(failure.reason for failure in failures)
    steps = sum(len(node.branches) for tree in trees for node in walk.nodes(tree.root))
    print(name, len(trees), "trees,", steps, "steps,", dict(counts), flush=True)
    for failure in failures:
        print("   ", failure.task.id, failure.reason, failure.error[:1500], flush=True)
    if write:
        command = f"python bench/program_divergence.py --names {name}"
        rate = counts["diverged"] / TASKS
        record("programs", f"programs.divergence_rate.{name}", [rate], "share", command, TASKS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--venvs", type=Path, default=Path("venvs"))
    parser.add_argument("--names", default=",".join(PROGRAMS))
    chosen = parser.parse_args()
    for each in chosen.names.split(","):
        measure(each, chosen.venvs, chosen.write)
