"""Rewards of a program's episode: posted or returned by the program, or computed by a function of the user's."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cadre.errors import ContractError, ProgramFailed, nearest
from cadre.settings.user_code import count_positional, describe_errors, load_function, plain_scalar
from cadre.types import Message, Reward, Task
from cadre_programs.calls import AnsweredCall, RequestError
from cadre_programs.processes import ProgramResult
from cadre_programs.protocol import describe_value, parse_flag, parse_object

FROM_PROGRAM = "program"
FIELDS = ("team", "local", "parts", "success")
# Set once a program that failed has been reported in this process.
_warned = threading.Event()


@dataclass(frozen=True)
class EpisodeOutcome:
    """The reward at the end of an episode, and whether the task was solved, if that is known."""

    reward: Reward = field(default_factory=Reward)
    success: bool | None = None


def parse_reward(body: Mapping[str, Any]) -> Reward:
    """Return a posted reward: `{"team": 1.0, "local": {"planner": -0.1}, "parts": {"goal": 1.0}}`.

    Raises RequestError for anything else.
    """
    return parse_outcome({**body, "success": None}).reward


def parse_outcome(value: Any) -> EpisodeOutcome:
    """Return the outcome for a number, true or false, None, or an object as above with `success`. Raises RequestError
    for anything else."""
    value = plain_scalar(value)
    if isinstance(value, bool):
        return EpisodeOutcome(Reward(team=float(value)), value)
    if value is None or isinstance(value, int | float):
        return EpisodeOutcome(Reward(team=_parse_number(value or 0.0, "reward")))
    if not isinstance(value, Mapping):
        raise RequestError(400, f"reward: got {describe_value(value)}; expected a number, or an object.")
    for name in value:
        if name not in FIELDS:
            expected = f"expected {', '.join(FIELDS)}.{nearest(str(name), FIELDS)}"
            raise RequestError(400, f"reward: unknown field {str(name)[:80]!r}; {expected}")
    success = plain_scalar(value.get("success"))
    if success is not None:
        parse_flag(success, "success")
    local, parts = (
        {key: _parse_number(number, f"{name}.{key}") for key, number in parse_object(value.get(name), name).items()}
        for name in ("local", "parts")
    )
    team = value.get("team")
    return EpisodeOutcome(Reward(_parse_number(0.0 if team is None else team, "team"), local, parts), success)


def _parse_number(value: Any, where: str) -> float:
    value = plain_scalar(value)
    with contextlib.suppress(OverflowError):  # a whole number that is too large for a float
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise RequestError(400, f"{where}: got {describe_value(value)}; expected a finite number.", where)


def add_rewards(first: Reward, second: Reward) -> Reward:
    """Return the sum of two rewards, by role and by part."""
    local = {role: first.local.get(role, 0.0) + second.local.get(role, 0.0) for role in {**first.local, **second.local}}
    parts = {name: first.parts.get(name, 0.0) + second.parts.get(name, 0.0) for name in {**first.parts, **second.parts}}
    return Reward(first.team + second.team, local, parts)


async def compute_outcome(
    task: Task,
    result: ProgramResult,
    history: Sequence[AnsweredCall],
    reward: str,
    failure_reward: float | None,
    has_posted: bool = False,
) -> EpisodeOutcome:
    """Return the outcome of a program that has ended.

    reward      "program", or FILE.py:FUNCTION of task, transcript and result, as many of them as it takes; it may be a
                coroutine
    failure_reward  the team reward of a program that fails, None if that is an error
    has_posted  whether the program posted a reward; otherwise the last line of a command must be one

    With a `failure_reward` the part `program_failed` is 1 for a program that failed, and 0 for any other.
    Raises ProgramFailed if the program failed and has no reward for it, and ContractError if the function fails.
    """
    error = result.error
    if result.unread and reward == FROM_PROGRAM and not has_posted:
        error = (
            f"The program posted no reward, and what it printed last is none: {result.unread[:200]!r}; expected a "
            "number or an object as its last line on standard output."
        )
    if error:
        if failure_reward is None:
            raise ProgramFailed(error)
        if not _warned.is_set():  # no branch fails, so nothing else reports the error
            _warned.set()
            sys.stderr.write(
                f"warning: a program failed; settings.errors gives it the reward {failure_reward:g}, and "
                f"parts/program_failed counts those that do. The first: {error}\n"
            )
        return EpisodeOutcome(Reward(team=failure_reward, parts={"program_failed": 1.0}), False)
    if reward == FROM_PROGRAM:
        try:
            outcome = parse_outcome(result.value)
        except RequestError as refused:
            raise ProgramFailed(refused.message) from None
    else:
        arguments = (dict(task.data), make_transcript(history), result.value)
        outcome = await _outcome_of_function("settings.reward", reward, arguments)
    if failure_reward is None:
        return outcome
    return replace(outcome, reward=add_rewards(outcome.reward, Reward(parts={"program_failed": 0.0})))


async def compute_turn_reward(task: Task, answered: Sequence[AnsweredCall], reward: str) -> Reward:
    """Return the local rewards of one decision's answers, from a function of task and one answered call."""
    local: dict[str, float] = {}
    for call in answered:
        arguments = (dict(task.data), *make_transcript([call]))
        outcome = await _outcome_of_function("settings.turn_reward", reward, arguments)
        local[call.role] = local.get(call.role, 0.0) + outcome.reward.team
    return Reward(local=local)


async def _outcome_of_function(setting: str, reference: str, arguments: Sequence[Any]) -> EpisodeOutcome:
    """Return what a function of the user's makes of as many of these arguments as it takes."""
    function: Callable[..., Any] = load_function(setting, reference, {})
    with describe_errors(f"{setting}: {reference}"):
        value = function(*arguments[: count_positional(function)])
        if inspect.isawaitable(value):
            value = await value
    try:
        return parse_outcome(value)
    except RequestError as error:
        raise ContractError(f"{setting}: {reference} returned what is no reward. {error.message}") from None


def make_transcript(history: Sequence[AnsweredCall]) -> list[dict[str, Any]]:
    """Return the calls with their answers as JSON values, messages in OpenAI's form:
    `{"role": "planner", "messages": [...], "answer": {...}}`."""

    def as_json(message: Message) -> dict[str, Any]:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            entry["reasoning_content"] = message.thinking
        if message.tool_calls:
            entry["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
            ]
        if message.tool_call_id:
            entry["tool_call_id"] = message.tool_call_id
        return entry

    return [
        {
            "role": answered.role,
            "messages": [as_json(message) for message in answered.call.messages],
            "answer": as_json(answered.answer.message),
        }
        for answered in history
    ]
