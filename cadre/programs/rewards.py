"""What a program's episode is paid: by itself, or by a function of the user's that reads what was said."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from cadre.programs.failures import ProgramFailed
from cadre.programs.instance import Exchange
from cadre.programs.posted import Outcome, outcome_of
from cadre.programs.refusal import Refused
from cadre.programs.running import Ended
from cadre.settings.user_code import load_function
from cadre.types import Message, Reward, Task

FROM_PROGRAM = "program"
Errors = float | str


def final(
    task: Task, ended: Ended, past: Sequence[Exchange], reward: str, errors: Errors, posted: bool = False
) -> Outcome:
    """What the end of a program pays. Raises ProgramFailed where it failed and that is not to be paid.

    Where it `posted` no reward, what it printed last has to be one.
    """
    error = ended.error
    if ended.unread and reward == FROM_PROGRAM and not posted:
        error = (
            f"The program posted no reward, and what it printed last is none: {ended.unread[:200]!r}; expected a "
            "number or an object as its last line on standard output."
        )
    if error:
        if isinstance(errors, str):
            raise ProgramFailed(error)
        return Outcome(Reward(team=errors), False)
    if reward == FROM_PROGRAM:
        return _outcome(ended.value)
    function: Callable[..., Any] = load_function("settings.reward", reward, {})
    arguments = [dict(task.data), transcript(past), ended.value]
    return _outcome(function(*arguments[: len(inspect.signature(function).parameters)]))


def of_turn(task: Task, exchanges: Sequence[Exchange], reward: str) -> Reward:
    """What the answers of one decision pay by themselves: a function's numbers, each for its role."""
    function: Callable[..., Any] = load_function("settings.turn_reward", reward, {})
    local: dict[str, float] = {}
    for exchange in exchanges:
        outcome = _outcome(function(dict(task.data), *transcript([exchange])))
        local[exchange.role] = local.get(exchange.role, 0.0) + outcome.reward.team
    return Reward(local=local)


def _outcome(value: Any) -> Outcome:
    try:
        return outcome_of(value)
    except Refused as refused:
        raise ProgramFailed(refused.message) from None


def transcript(past: Sequence[Exchange]) -> list[dict[str, Any]]:
    """All calls with their answers: `{"role": "planner", "messages": [...], "answer": {...}}`, messages as OpenAI has
    them."""
    return [
        {
            "role": exchange.role,
            "messages": [plain(message) for message in exchange.asked.call.messages],
            "answer": plain(exchange.answer.message),
        }
        for exchange in past
    ]


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON values."""
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        entry["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
        ]
    if message.tool_call_id:
        entry["tool_call_id"] = message.tool_call_id
    return entry
