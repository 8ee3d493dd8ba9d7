"""`cadre check` of a program: play every task twice with the same answers, and report differences.

A program need not keep the contract of environments, since nobody steps it out of order. Trees that branch need one
that makes the same calls when it gets the same answers.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from cadre import random_keys
from cadre.envs.check import CheckReport
from cadre.envs.spec import EnvSpec
from cadre.errors import ProgramFailed
from cadre.types import Message, Sample, Task, Tool, ToolCall
from cadre_programs.calls import ModelCall
from cadre_programs.examples import make_example
from cadre_programs.processes import ProgramDiverged

if TYPE_CHECKING:
    from cadre_programs.program import Program

DIVERGED_ADVICE = (
    "Look for what is drawn or dated in the prompt, and take it from the task. As it is, the program trains with "
    "shapes that play episodes side by side alone: set replayable=false, and an algorithm such as grpo."
)
FAILED_ADVICE = "The answers were made up, so this may be right; settings.errors sets the reward of such an episode."
# Tasks that are played at once.
AT_ONCE = 8
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


async def examine(env_spec: EnvSpec, seed: int = 0) -> CheckReport:
    """Check every training task, with random answers that depend only on the calls."""
    if missing := env_spec.missing:
        words = f"settings.{missing[0]}: missing; expected a value, such as {missing[0]}=... behind the name."
        return CheckReport((), (words,), (), {})
    places = asyncio.Semaphore(AT_ONCE)

    async def check_in_place(task: Task) -> EpisodeCheck:
        async with places:
            return await _check_task(env_spec, task, seed)

    checks = await asyncio.gather(*map(check_in_place, env_spec.tasks("train")))

    diverged = [f"task {check.task.id}: {check.divergence}\n{DIVERGED_ADVICE}" for check in checks if check.divergence]
    failures = dict.fromkeys(check.failure for check in checks if check.failure)  # each once
    notes = []
    for failure in failures:
        failed = [check.task.id for check in checks if check.failure == failure]
        others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        notes.append(f"task {failed[0]}{others}: {failure}\n{FAILED_ADVICE}")
    prompts: dict[str, tuple[Message, ...]] = {}
    tools: dict[str, tuple[Tool, ...]] = {}
    for check in checks:
        prompts, tools = {**check.prompts, **prompts}, {**check.tools, **tools}
    silent = [role for role in env_spec.roles if role not in prompts]
    notes += [f"{role} was never asked for; a role that never acts is not trained." for role in silent]
    passed = [check for check in checks if not check.divergence and not check.failure]
    broken = [*diverged]
    if not any(not check.failure for check in checks):
        broken = [f"No task completes. The first, task {checks[0].task.id}: {checks[0].failure}"]
    results = [f"{len(passed)} of {len(checks)} tasks, played again with the same answers, asked for the same."]
    if passed:
        results.append(f"{sum(check.calls for check in passed) / len(passed):.1f} calls an episode.")
    if env_spec.all_settings["replayable"]:
        return CheckReport(tuple(results), tuple(broken), tuple(notes), prompts, tools)
    return CheckReport(
        tuple(results), tuple(text for text in broken if text not in diverged), (*notes, *diverged), prompts, tools
    )


async def _check_task(env_spec: EnvSpec, task: Task, seed: int) -> EpisodeCheck:
    env = cast("Program", env_spec.make(task))
    check = EpisodeCheck(task)
    try:
        await env.until_ready()
        while observations := env.observe():
            check.calls += len(observations)
            check.prompts = {role: observation.messages for role, observation in observations.items()} | check.prompts
            check.tools = {role: observation.tools for role, observation in observations.items()} | check.tools
            acting = env.acting_calls()
            await env.step_samples(
                {role: _draw_answer(call.call, role, seed, check.calls) for role, call in acting.items()}
            )
        await env.check_replay()
    except ProgramDiverged as error:
        check.divergence = str(error)
    except ProgramFailed as error:
        check.failure = str(error)
    finally:
        env.close()
    return check


def _draw_answer(call: ModelCall, role: str, seed: int, number: int) -> Sample:
    """Return an answer that keeps to the call: JSON of its schema, a tool call if it demands one, else a text or, half
    of the time if there are tools, a tool call. Arguments are of the tool's schema."""
    generator = random_keys.generator(seed, role, number, call.messages[-1].content)
    text = generator.choice(TEXTS)
    if call.schema is not None:
        text = json.dumps(make_example(call.schema or {"type": "object"}, generator))
    message = Message("assistant", text)
    must_call = call.choice not in ("auto", "none")
    if call.tools and (must_call or (call.schema is None and generator.random() < 0.5)):
        named = [tool for tool in call.tools if tool.name == call.choice]
        tool = generator.choice(named or call.tools)
        arguments = make_example({"type": "object", **tool.parameters}, generator)
        message = Message("assistant", "", (ToolCall("call_0", tool.name, json.dumps(arguments)),))
    return Sample(role, "check", text, (), (), (), "stop", 0, message)
