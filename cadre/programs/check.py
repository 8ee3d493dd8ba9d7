"""`cadre check` of a program: play every task twice with the same answers, and report differences.

A program need not keep the contract of environments, since nobody steps it out of order. Trees that branch need one
that makes the same calls when it gets the same answers.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from cadre import random_keys
from cadre.envs.check import CheckReport
from cadre.envs.spec import EnvSpec
from cadre.programs.processes import Diverged, ProgramFailed
from cadre.programs.program import Program
from cadre.types import Message, Observation, Sample, Task, Tool, ToolCall

DIVERGED_ADVICE = (
    "Look for what is drawn or dated in the prompt, and take it from the task. As it is, the program trains with "
    "shapes that play episodes side by side alone: set replayable=false, and an algorithm such as grpo."
)
FAILED_ADVICE = (
    "The answers were nonsense, so this may be right; settings.errors says whether such an episode is dropped or paid."
)
TEXTS = ("yes", "no", "1", "Moves: RRD", '{"answer": 1}', "")


@dataclass
class EpisodeCheck:
    """One checked task: the first prompt and tools of each role, the number of calls, and errors."""

    task: Task
    prompts: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    tools: dict[str, tuple[Tool, ...]] = field(default_factory=dict)
    calls: int = 0
    divergence: str = ""
    failure: str = ""


async def examine(env_spec: EnvSpec, tasks: int = 5, seed: int = 0) -> CheckReport:
    """Check some training tasks, with random answers that depend only on the calls."""
    if missing := env_spec.missing:
        words = f"settings.{missing[0]}: missing; expected a value, such as {missing[0]}=... behind the name."
        return CheckReport((), (words,), (), {})
    checks = await asyncio.gather(*(_check_task(env_spec, task, seed) for task in env_spec.tasks("train")[:tasks]))

    diverged = [f"task {check.task.id}: {check.divergence}\n{DIVERGED_ADVICE}" for check in checks if check.divergence]
    notes = [f"task {check.task.id}: {check.failure}\n{FAILED_ADVICE}" for check in checks if check.failure]
    prompts: dict[str, tuple[Message, ...]] = {}
    tools: dict[str, tuple[Tool, ...]] = {}
    for check in checks:
        prompts, tools = {**check.prompts, **prompts}, {**check.tools, **tools}
    silent = [role for role in env_spec.roles if role not in prompts]
    notes += [f"{role} was never asked for; a role that never acts is not trained." for role in silent]
    passed = [check for check in checks if not check.divergence and not check.failure]
    results = [f"{len(passed)} of {len(checks)} tasks, played again with the same answers, asked for the same."]
    if passed:
        results.append(f"{sum(check.calls for check in passed) / len(passed):.1f} calls an episode.")
    if env_spec.all_settings["replayable"]:
        return CheckReport(tuple(results), tuple(diverged), tuple(notes), prompts, tools)
    return CheckReport(tuple(results), (), (*notes, *diverged), prompts, tools)


async def _check_task(env_spec: EnvSpec, task: Task, seed: int) -> EpisodeCheck:
    env = env_spec.make(task)
    assert isinstance(env, Program)
    check = EpisodeCheck(task)
    try:
        await env.until_ready()
        while observations := env.observe():
            check.calls += len(observations)
            check.prompts = {role: observation.messages for role, observation in observations.items()} | check.prompts
            check.tools = {role: observation.tools for role, observation in observations.items()} | check.tools
            await env.step_samples(
                {role: _draw_answer(observation, seed, check.calls) for role, observation in observations.items()}
            )
        await env.check_replay()
    except Diverged as error:
        check.divergence = str(error)
    except ProgramFailed as error:
        check.failure = str(error)
    finally:
        env.close()
    return check


def _draw_answer(observation: Observation, seed: int, calls: int) -> Sample:
    """Return a text or, half of the time if there are tools, a tool call with arguments of the types in its schema."""
    generator = random_keys.generator(seed, observation.role, calls, observation.messages[-1].content)
    text = generator.choice(TEXTS)
    message = Message("assistant", text)
    if observation.tools and generator.random() < 0.5:
        tool = generator.choice(observation.tools)
        schema: object = tool.parameters
        properties = schema.get("properties") if isinstance(schema, dict) else None
        examples: dict[str, object] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
        arguments = {
            name: examples.get(str(part.get("type")), "x") if isinstance(part, dict) else "x"
            for name, part in (properties or {}).items()
        }
        message = Message("assistant", "", (ToolCall("call_0", tool.name, json.dumps(arguments)),))
    return Sample(observation.role, "check", text, (), (), (), "stop", 0, message)
