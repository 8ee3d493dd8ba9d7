"""`cadre check` of a program: every task is played twice with the same answers, and what differs is told.

A program need not keep the contract of environments, where nobody looks ahead: but trees that branch need one that
asks for the same when it is given the same answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from cadre import random_keys
from cadre.envs.check import Report
from cadre.envs.spec import EnvSpec
from cadre.programs.failures import Diverged, ProgramFailed
from cadre.programs.program import Program
from cadre.types import Message, Observation, Sample, Task, Tool, ToolCall

ADVICE = (
    "Look for what is drawn or dated in the prompt, and take it from the task. As it is, the program trains with "
    "shapes that play episodes side by side alone: set replayable=false, and an algorithm such as grpo."
)
NONSENSE = (
    "The answers were nonsense, so this may be right; settings.errors says whether such an episode is dropped or paid."
)
TEXTS = ("yes", "no", "1", "Moves: RRD", '{"answer": 1}', "")


@dataclass(frozen=True)
class Played:
    """What one episode showed: the first conversation of each role, and how it ended where it failed."""

    task: Task
    calls: int
    prompts: dict[str, tuple[Message, ...]]
    tools: dict[str, tuple[Tool, ...]]
    diverged: str = ""
    failed: str = ""


async def examine(env_spec: EnvSpec, tasks: int = 5, seed: int = 0) -> Report:
    """Play some training tasks twice each, with answers drawn by what is asked."""
    if missing := env_spec.missing:
        words = f"settings.{missing[0]}: missing; expected a value, such as {missing[0]}=... behind the name."
        return Report((), (words,), (), {})
    chosen = env_spec.tasks("train")[:tasks]
    played = await asyncio.gather(*(_twice(env_spec, task, seed) for task in chosen))
    return _report(env_spec, played)


def _report(env_spec: EnvSpec, played: Sequence[Played]) -> Report:
    diverged = [f"task {episode.task.id}: {episode.diverged}\n{ADVICE}" for episode in played if episode.diverged]
    notes = [f"task {episode.task.id}: {episode.failed}\n{NONSENSE}" for episode in played if episode.failed]
    prompts: dict[str, tuple[Message, ...]] = {}
    tools: dict[str, tuple[Tool, ...]] = {}
    for episode in played:
        prompts, tools = {**episode.prompts, **prompts}, {**episode.tools, **tools}
    silent = [role for role in env_spec.roles if role not in prompts]
    notes += [f"{role} was never asked for; a role that never acts is not trained." for role in silent]
    whole = [episode for episode in played if not episode.diverged and not episode.failed]
    held = [f"{len(whole)} of {len(played)} tasks, played again with the same answers, asked for the same."]
    calls = sum(episode.calls for episode in whole)
    held += [f"{calls / len(whole):.1f} calls an episode."] if whole else []
    loose = not env_spec.all_settings["replayable"]
    return Report(tuple(held), () if loose else tuple(diverged), (*notes, *(diverged if loose else ())), prompts, tools)


async def _twice(env_spec: EnvSpec, task: Task, seed: int) -> Played:
    env = env_spec.make(task)
    assert isinstance(env, Program)
    prompts: dict[str, tuple[Message, ...]] = {}
    tools: dict[str, tuple[Tool, ...]] = {}
    calls, diverged, failed = 0, "", ""
    try:
        await env.until_ready()
        while acting := env.observe():
            prompts = {role: seen.messages for role, seen in acting.items()} | prompts
            tools = {role: seen.tools for role, seen in acting.items()} | tools
            calls += len(acting)
            await env.step_samples({role: _said(seen, seed, calls) for role, seen in acting.items()})
        await env.again()
    except Diverged as error:
        diverged = str(error)
    except ProgramFailed as error:
        failed = str(error)
    finally:
        env.close()
    return Played(task, calls, prompts, tools, diverged, failed)


def _said(seen: Observation, seed: int, number: int) -> Sample:
    """An answer that follows from what is asked: a text, or, every other time where there are tools, a call."""
    draw = random_keys.generator(seed, seen.role, number, seen.messages[-1].content)
    text = draw.choice(TEXTS)
    message = Message("assistant", text)
    if seen.tools and draw.random() < 0.5:
        tool = draw.choice(seen.tools)
        message = Message("assistant", "", (ToolCall("call_0", tool.name, json.dumps(_arguments(tool.parameters))),))
    return Sample(seen.role, "check", text, (), (), (), "stop", 0, message)


def _arguments(schema: object) -> dict[str, object]:
    """Arguments of the right kind, as far as a schema says it plainly."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    kinds: dict[str, object] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    return {
        name: kinds.get(str(part.get("type")), "x") if isinstance(part, dict) else "x"
        for name, part in (properties or {}).items()
    }
