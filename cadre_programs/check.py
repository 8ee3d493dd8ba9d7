"""`cadre check` of a program: play every task twice with the same answers, and report differences.

A program need not keep the contract of environments, since nobody steps it out of order. Trees that branch need one
that makes the same calls when it gets the same answers.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from cadre import random_keys
from cadre.envs.check import CheckReport
from cadre.envs.spec import EnvSpec
from cadre.errors import ProgramFailed
from cadre.types import Message, Sample, Task, Tool, ToolCall
from cadre_programs.calls import ModelCall, RequestError, is_satisfied
from cadre_programs.examples import make_example
from cadre_programs.processes import ProgramDiverged

if TYPE_CHECKING:
    from cadre_programs.program import Program

DIVERGED_ADVICE = (
    "Look for what is drawn or dated in the prompt: take it from the task, or mask it (settings.masks). As it is, the "
    "program trains with shapes that play episodes side by side alone: set replayable=false, and an algorithm such as "
    "grpo."
)
FAILED_ADVICE = "The answers were made up, so this may be right; settings.errors sets the reward of such an episode."
# Tasks that are played at once.
AT_ONCE = 8
# What is run or looked up must do no harm: no text here is a command of a shell.
TEXTS = ("Yes.", "No.", "1", "Moves: RRD", '{"answer": 1}', "")
JSON_OBJECT = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
# Tool calls in the answers to calls that offer tools, in turn: models make several at once, and end a loop by a text.
TOOL_CALLS = (2, 3, 0, 1)
# Attempts at JSON that a schema accepts.
TRIES = 50


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
    gate = asyncio.Semaphore(AT_ONCE)

    async def check_in_place(first: int, task: Task) -> EpisodeCheck:
        async with gate:
            return await _check_task(env_spec, task, seed, first)

    checks = await asyncio.gather(*(check_in_place(*task) for task in enumerate(env_spec.tasks("train"))))

    diverged = [f"task {check.task.id}: {check.divergence}\n{DIVERGED_ADVICE}" for check in checks if check.divergence]
    # Failures are equal if their first lines are: a traceback may name what differs from task to task.
    failed: dict[str, list[EpisodeCheck]] = {}
    for check in checks:
        if check.failure:
            failed.setdefault(check.failure.partition("\n")[0], []).append(check)
    none_completes = all(check.failure for check in checks)
    notes: list[str] = []
    for line, (first, *further) in failed.items():
        more = f" and {len(further)} more" if further else ""
        is_in_broken = none_completes and not notes
        notes.append(f"task {first.task.id}{more}: {line if is_in_broken else first.failure}\n{FAILED_ADVICE}")
    prompts: dict[str, tuple[Message, ...]] = {}
    tools: dict[str, tuple[Tool, ...]] = {}
    for check in checks:
        prompts, tools = {**check.prompts, **prompts}, {**check.tools, **tools}
    silent = [role for role in env_spec.roles if role not in prompts]
    notes += [f"{role} was never asked for; a role that never acts is not trained." for role in silent]
    passed = [check for check in checks if not check.divergence and not check.failure]
    none = f"No task completes. The first, task {checks[0].task.id}: {checks[0].failure}"
    broken = [none] if none_completes else [*diverged]
    results = [f"{len(passed)} of {len(checks)} tasks, played again with the same answers, asked for the same."]
    if passed:
        results.append(f"{sum(check.calls for check in passed) / len(passed):.1f} calls an episode.")
    if env_spec.all_settings["replayable"]:
        return CheckReport(tuple(results), tuple(broken), tuple(notes), prompts, tools)
    return CheckReport(
        tuple(results), tuple(text for text in broken if text not in diverged), (*notes, *diverged), prompts, tools
    )


async def _check_task(env_spec: EnvSpec, task: Task, seed: int, first: int) -> EpisodeCheck:
    """Check one task; `first` is where in `TOOL_CALLS` its answers begin."""
    env = cast("Program", env_spec.make(task))
    check, offers = EpisodeCheck(task), 0
    try:
        await env.until_ready()
        while observations := env.observe():
            check.calls += len(observations)
            check.prompts = {role: observation.messages for role, observation in observations.items()} | check.prompts
            check.tools = {role: observation.tools for role, observation in observations.items()} | check.tools
            acting = env.acting_calls(env.state)
            answers = {}
            for role, call in acting.items():
                tool_calls = TOOL_CALLS[(first + offers) % len(TOOL_CALLS)]
                offers += bool(call.call.tools)
                answers[role] = _draw_answer(call.call, role, seed, check.calls, tool_calls)
            await env.step_samples(answers)
        await env.check_replay()
    except ProgramDiverged as error:
        check.divergence = str(error)
    except ProgramFailed as error:
        check.failure = str(error)
    finally:
        env.close()
    return check


def _draw_answer(call: ModelCall, role: str, seed: int, number: int, tool_calls: int) -> Sample:
    """Return an answer that keeps to the call, with log-probabilities and a length that are made up: so many tool calls
    if it offers tools, as many as it demands otherwise, JSON of its schema, or a text."""
    generator = random_keys.generator(seed, role, number, call.messages[-1].content)
    named = [tool for tool in call.tools if tool.name == call.choice]
    if named or call.choice == "required":
        tool_calls = 1 if named else max(1, tool_calls)
    elif call.schema is not None or not call.tools:
        tool_calls = 0
    text, calls = "", []
    for index in range(tool_calls):
        tool = generator.choice(named or call.tools)
        arguments = _draw_json({"type": "object", **tool.parameters}, generator)
        calls.append(ToolCall(f"call_{index}", tool.name, arguments))
    if not calls:
        text = generator.choice(TEXTS) if call.schema is None else _draw_json(call.schema or JSON_OBJECT, generator)
    length = min(1 + len(text.split()) + 8 * len(calls), call.max_tokens or 100)
    prompt_length = sum(len(message.content.split()) for message in call.messages) + 4 * len(call.messages)
    logprobs = tuple(-generator.random() for _ in range(length))
    message = Message("assistant", text, tuple(calls))
    return Sample(role, "check", text, (0,) * prompt_length, (0,) * length, logprobs, "stop", 0, message)


def _draw_json(schema: Mapping[str, Any], generator: random.Random) -> str:
    """Return JSON text that the schema accepts; the last of some tries, if it demands what `make_example` ignores."""
    checked = ModelCall("", (), schema=dict(schema))
    for _ in range(TRIES):
        text = json.dumps(make_example(schema, generator))
        try:
            if is_satisfied(checked, Message("assistant", text)):
                break
        except RequestError:  # a tool's schema of another draft
            break
    return text
