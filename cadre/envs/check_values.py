"""Whether what an environment hands over is of the right kind: tasks, observations, rewards. One paragraph a fault.

Numbers may be any real scalar, numpy's too; everything else is the plain kind that the records name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, SupportsFloat, get_args, get_type_hints

from cadre.errors import nearest
from cadre.types import Image, Message, Observation, Reward, Task

SPEAKERS = get_args(get_type_hints(Message)["role"])
PLAIN = (str, int, float, bool, type(None))


def task_faults(where: str, task: Any) -> Iterator[str]:
    """What is wrong with one item of `tasks(split)`; `where` names it, as in `Digit.tasks('train'): task 0`."""
    if not isinstance(task, Task):
        yield f'{where} is {described(task)}; expected a cadre Task, such as Task("train-0", {{"digit": 7}}).'
        return
    if not isinstance(task.id, str) or not task.id:
        yield f'{where} has the id {task.id!r}; expected a text that is not empty, such as "train-0". Use str().'
    if not isinstance(task.data, Mapping):
        yield f'{where} has {described(task.data)} as data; expected a mapping of names to values, {{"digit": 7}}.'
        return
    for path, value in odd_values(task.data):
        yield (
            f"{where} has data{path}, which is {described(value)}; expected plain values (texts, numbers, lists and "
            "mappings of them), as tasks are written to files. Use int(), float(), str(), list() or .tolist()."
        )
        return


def odd_values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(where, what) of everything below `value` that JSON cannot hold."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield f"{path} with the key {key!r}", key
            yield from odd_values(inner, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from odd_values(inner, f"{path}[{index}]")
    elif not isinstance(value, PLAIN):
        yield path, value


def observation_faults(env: str, observations: Any, roles: tuple[str, ...]) -> Iterator[str]:
    """What is wrong with what `observe` returned."""
    where = f"{env}.observe"
    if not isinstance(observations, dict):
        yield (
            f"{where}: got {described(observations)}; expected a dict of role to Observation, or {{}} when the episode "
            "is over. Return {role: Observation(role, messages)}."
        )
        return
    for role, observation in observations.items():
        if role not in roles:
            yield (
                f"{where}: got the role {role!r}; expected one of {', '.join(roles)}. Rename it or add it to roles."
                f"{nearest(str(role), roles)}"
            )
        yield from _seen_by(where, role, observation)


def _seen_by(where: str, role: Any, observation: Any) -> Iterator[str]:
    if not isinstance(observation, Observation):
        yield (
            f"{where}: got {described(observation)} for {role}; expected an Observation, such as "
            f'Observation("{role}", (Message("user", "..."),)).'
        )
        return
    if observation.role != role:
        yield (
            f"{where}: the key {role!r} holds an Observation of {observation.role!r}; expected the same role. "
            f'Write Observation("{role}", ...).'
        )
    yield from _messages(f"{where}: for {role}", observation.messages)


def _messages(where: str, messages: Any) -> Iterator[str]:
    if not isinstance(messages, tuple):
        comma = " (a tuple of one needs its comma)" if isinstance(messages, Message | str) else ""
        yield (
            f"{where} got {described(messages)} as messages; expected a tuple of Message{comma}. "
            'Write (Message("user", text),), or tuple(...) around a list.'
        )
    if not isinstance(messages, tuple | list):
        return
    if not messages:
        yield f'{where} got no message; expected at least one, such as Message("user", "Your move."). Add one.'
    for number, message in enumerate(messages):
        yield from _message(f"{where} message {number + 1} of {len(messages)}", message)


def _message(where: str, message: Any) -> Iterator[str]:
    if not isinstance(message, Message):
        yield f'{where} is {described(message)}; expected a Message, such as Message("user", "Your move.").'
        return
    if message.role not in SPEAKERS:
        yield (
            f"{where} is by {message.role!r}; expected one of {', '.join(SPEAKERS)}, the roles of the model's chat "
            "template. What the environment and other agents say to this role is by user; its own earlier answers are "
            f"by assistant.{nearest(str(message.role), SPEAKERS)}"
        )
    if not isinstance(message.content, str):
        yield f"{where} holds {described(message.content)}; expected a text. Write it out with str() or join()."
    elif not whole_text(message.content):
        yield f"{where} holds half a surrogate pair, which no file can hold; expected valid Unicode. Remove it."
    if not (isinstance(message.images, tuple) and all(isinstance(image, Image) for image in message.images)):
        yield (
            f"{where} holds {described(message.images)} as images; expected a tuple of cadre Image. Write "
            "images=(cadre.image(source),), where the source is a file, bytes or an array."
        )


def whole_text(text: str) -> bool:
    """Whether the text can be written to a file: it holds no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def reward_faults(env: str, reward: Any, acting: Mapping[str, Any], roles: tuple[str, ...]) -> Iterator[str]:
    """What is wrong with what `step` returned, where `acting` are the roles that had acted."""
    where = f"{env}.step"
    if not isinstance(reward, Reward):
        shown = "nothing (None)" if reward is None else described(reward)
        yield f"{where}: got {shown}; expected a Reward, such as Reward(team=1.0). Return one at every step."
        return
    yield from number_faults(f"{where}: Reward.team", reward.team)
    for kind, numbers in (("local", reward.local), ("parts", reward.parts)):
        if not isinstance(numbers, Mapping):
            yield (
                f"{where}: got {described(numbers)} as Reward.{kind}; expected a mapping of names to numbers. "
                f'Write {kind}={{"name": 1.0}}.'
            )
            continue
        for name, number in numbers.items():
            if not isinstance(name, str):
                yield f"{where}: got {name!r} as a name in Reward.{kind}; expected a text. Rename it."
            yield from number_faults(f"{where}: Reward.{kind}[{name!r}]", number)
    if isinstance(reward.local, Mapping):
        yield from _paid(where, reward.local, acting, roles)


def _paid(where: str, local: Mapping[Any, Any], acting: Mapping[str, Any], roles: tuple[str, ...]) -> Iterator[str]:
    for role in local:
        if role not in roles:
            yield (
                f"{where}: got a local reward for {role!r}; expected roles of {', '.join(roles)}. Rename it."
                f"{nearest(str(role), roles)}"
            )
        elif role not in acting:
            yield (
                f"{where}: got a local reward for {role}, who did not act; expected only those who did, here "
                f"{', '.join(acting)}. Pay {role} when it acts, or the team."
            )


def number_faults(where: str, number: Any) -> Iterator[str]:
    """A fault where `number` is no finite real number; numpy's and tensors' scalars are numbers."""
    value = as_number(number)
    if value is None:
        yield f"{where} is {described(number)}; expected a number. Write float(...), or the item of an array."
    elif not math.isfinite(value):
        yield f"{where} is {value}; expected a finite number. Bound it before it is paid."


def as_number(value: Any) -> float | None:
    """The value as a float, or None where it is no real scalar."""
    if not isinstance(value, SupportsFloat):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array or a tensor of several numbers
        return None


def described(value: Any) -> str:
    """`the text 'abc'`, `a list`, `a numpy.int64`: a value's kind, with the value where it is short."""
    kind = type(value)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "cadre.types")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    if value is None:
        return "None"
    shown = repr(value)
    short = f" {shown}" if len(shown) <= 40 and "\n" not in shown else ""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{short}"
