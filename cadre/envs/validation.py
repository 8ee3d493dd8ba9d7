"""Validate what an environment declares and returns: its class, tasks, observations and rewards.

Every function yields one paragraph a fault: what, got, expected, what to do. Numbers may be any real scalar, numpy's
too; everything else is the plain kind that the records name. `declaration_faults` looks at the class alone and plays
nothing, so that it can come before anything else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat, get_args, get_type_hints

from cadre.env import Env
from cadre.envs.spec import EnvSpec, declared_settings
from cadre.errors import ContractError, nearest
from cadre.types import Image, Message, Observation, Reward, Sound, Task, ToolCall

SPEAKERS = get_args(get_type_hints(Message)["role"])
PLAIN = (str, int, float, bool, type(None))
# What a message may hold beside its text, with how it is made.
PARTS: dict[str, tuple[type, str]] = {
    "tool_calls": (ToolCall, 'ToolCall("call_1", "name", {"argument": 1})'),
    "images": (Image, "cadre.image(source)"),
    "sounds": (Sound, "cadre.sound(source)"),
}


def task_faults(where: str, task: Any) -> Iterator[str]:
    """Yield the faults of one item of `tasks(split)`; `where` names it, as in `Digit.tasks('train'): task 0`."""
    if not isinstance(task, Task):
        yield f'{where} is {described(task)}; expected a cadre Task, such as Task("train-0", {{"digit": 7}}).'
        return
    if not isinstance(task.id, str) or not task.id:
        yield f'{where} has the id {task.id!r}; expected a text that is not empty, such as "train-0". Use str().'
    if not isinstance(task.data, Mapping):
        yield f'{where} has {described(task.data)} as data; expected a mapping of names to values, {{"digit": 7}}.'
        return
    for path, value in values_beyond_json(task.data):
        expected = "expected plain values (texts, numbers, lists and mappings of them)"
        yield f"{where} has data{path}, which is {described(value)}; {expected}. Use int(), list() or .tolist()."
        return


def values_beyond_json(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of everything below `value` that JSON cannot hold."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield f"{path} with the key {key!r}", key
            yield from values_beyond_json(inner, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from values_beyond_json(inner, f"{path}[{index}]")
    elif not isinstance(value, PLAIN):
        yield path, value


def observation_faults(env: str, observations: Any, roles: tuple[str, ...]) -> Iterator[str]:
    """Yield the faults of what `observe` returned."""
    where = f"{env}.observe"
    if not isinstance(observations, dict):
        expected = "expected a dict of role to Observation, or {} when the episode is over"
        yield f"{where}: got {described(observations)}; {expected}. Return {{role: Observation(role, messages)}}."
        return
    for role, observation in observations.items():
        if role not in roles:
            expected = f"expected one of {', '.join(roles)}. Rename it or add it to roles.{nearest(str(role), roles)}"
            yield f"{where}: got the role {role!r}; {expected}"
        example = f'Observation("{role}", (Message("user", "..."),))'
        if not isinstance(observation, Observation):
            yield f"{where}: got {described(observation)} for {role}; expected an Observation, such as {example}."
            continue
        if observation.role != role:
            got = f"the key {role!r} holds an Observation of {observation.role!r}"
            yield f"{where}: {got}; expected the same role. Write {example}."
        yield from _message_faults(f"{where}: for {role}", observation.messages)


def _message_faults(where: str, messages: Any) -> Iterator[str]:
    if not isinstance(messages, tuple):
        comma = " (a tuple of one needs its comma)" if isinstance(messages, Message | str) else ""
        advice = 'Write (Message("user", text),), or tuple(...) around a list.'
        yield f"{where} got {described(messages)} as messages; expected a tuple of Message{comma}. {advice}"
    if not isinstance(messages, tuple | list):
        return
    if not messages:
        yield f'{where} got no message; expected at least one, such as Message("user", "Your move."). Add one.'
    for number, message in enumerate(messages):
        at = f"{where} message {number + 1} of {len(messages)}"
        if not isinstance(message, Message):
            yield f'{at} is {described(message)}; expected a Message, such as Message("user", "Your move.").'
            continue
        if message.role not in SPEAKERS:
            yield (
                f"{at} is by {message.role!r}; expected one of {', '.join(SPEAKERS)}. What others say to this role is "
                f"by user; its own earlier answers are by assistant.{nearest(str(message.role), SPEAKERS)}"
            )
        if not isinstance(message.content, str):
            yield f"{at} holds {described(message.content)}; expected a text. Write it out with str() or join()."
        elif not is_valid_unicode(message.content):
            yield f"{at} holds half a surrogate pair, which no file can hold; expected valid Unicode. Remove it."
        for name, (kind, example) in PARTS.items():
            value = getattr(message, name)
            if not (isinstance(value, tuple) and all(isinstance(part, kind) for part in value)):
                expected = f"expected a tuple of {kind.__name__}. Write {name}=({example},)."
                yield f"{at} holds {described(value)} as {name}; {expected}"


def is_valid_unicode(text: str) -> bool:
    """Return True if the text can be written to a file: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def reward_faults(env: str, reward: Any, acting: Mapping[str, Any], roles: tuple[str, ...]) -> Iterator[str]:
    """Yield the faults of what `step` returned; `acting` are the roles that may get a local reward."""
    where = f"{env}.step"
    if not isinstance(reward, Reward):
        shown = "nothing (None)" if reward is None else described(reward)
        yield f"{where}: got {shown}; expected a Reward, such as Reward(team=1.0). Return one at every step."
        return
    yield from number_faults(f"{where}: Reward.team", reward.team)
    for kind, numbers in (("local", reward.local), ("parts", reward.parts)):
        if not isinstance(numbers, Mapping):
            expected = f'expected a mapping of names to numbers. Write {kind}={{"name": 1.0}}.'
            yield f"{where}: got {described(numbers)} as Reward.{kind}; {expected}"
            return
        for name, number in numbers.items():
            yield from number_faults(f"{where}: Reward.{kind}[{name!r}]", number)
    for name in reward.parts:
        if not (isinstance(name, str) and name and name.isprintable()):  # it names a metric
            yield f"{where}: got the name {name!r} in Reward.parts; expected printable characters. Rename it."
    for role in reward.local:
        if role not in roles:
            expected = f"expected roles of {', '.join(roles)}. Rename it.{nearest(str(role), roles)}"
            yield f"{where}: got a local reward for {role!r}; {expected}"
        elif role not in acting:
            expected = f"expected only those who did, here {', '.join(acting)}. Pay {role} when it acts, or the team."
            yield f"{where}: got a local reward for {role}, who did not act; {expected}"


def valid_observations(env: Env, roles: tuple[str, ...]) -> dict[str, Observation]:
    """Return what `observe` returns. Raises ContractError for its first fault."""
    observations = env.observe()
    raise_first(observation_faults(type(env).__name__, observations, roles))
    return observations


def valid_reward(env: Env, reward: Any, acting: Mapping[str, Any], roles: tuple[str, ...]) -> Reward:
    """Return what `step` returned in plain floats: scalars of numpy or torch, and True for 1, are accepted as numbers.
    Raises ContractError for its first fault."""
    rewarded = dict.fromkeys(roles) if env.rewards_absent else acting
    raise_first(reward_faults(type(env).__name__, reward, rewarded, roles))
    if type(reward.team) is float and not reward.local and not reward.parts:
        return reward  # type: ignore[no-any-return]
    local = {role: float(number) for role, number in reward.local.items()}
    parts = {name: float(number) for name, number in reward.parts.items()}
    return replace(reward, team=float(reward.team), local=local, parts=parts)  # type: ignore[no-any-return]


def raise_first(faults: Iterable[str]) -> None:
    """Raise ContractError for the first fault."""
    for fault in faults:
        raise ContractError(fault)


# Sums and squares of rewards stay finite below it.
LARGEST = 1e100


def number_faults(where: str, number: Any) -> Iterator[str]:
    """Yield a fault if `number` is no real number of at most LARGEST; scalars of numpy and torch are numbers."""
    try:
        value = float(number) if isinstance(number, SupportsFloat) else None
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array or a tensor of several numbers
        value = None
    if value is None:
        yield f"{where} is {described(number)}; expected a number. Write float(...), or the item of an array."
    elif not abs(value) <= LARGEST:
        yield f"{where} is {value}; expected a finite number of at most {LARGEST:g}. Bound it before it is returned."


def described(value: Any) -> str:
    """Return a value's type, with the value if it is short: `a str 'abc'`, `a list []`, `a numpy.int64`."""
    if value is None:
        return "None"
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.").removeprefix("cadre.types.")
    shown = repr(value)
    short = f" {shown}" if len(shown) <= 40 and "\n" not in shown else ""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{short}"


# The declaration of a class.

ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
EXAMPLE = 'roles = ("planner", "worker")'
FORMS = {
    "observe": "def observe(self) -> dict[str, Observation]`, which says who acts now and what each of them sees",
    "step": "async def step(self, actions: dict[str, str]) -> Reward`, which takes the texts of those who act",
    "success": "@property def success(self) -> bool`, which says whether the task is solved",
    "tasks": "@classmethod def tasks(cls, split, **settings) -> Sequence[Task]`, which returns the problems of a split",
}


@dataclass(frozen=True)
class Fault:
    """A part of a declaration that breaks the contract. If it is `fatal` no episode can be played."""

    name: str
    paragraph: str
    fatal: bool = True


def declaration_faults(env_spec: EnvSpec) -> list[Fault]:
    """Return everything in the declaration of an environment that breaks the contract."""
    env, name = env_spec.env_class, env_spec.env_class.__name__
    faults: list[Fault] = []

    def add(method: str, text: str, fatal: bool = True) -> None:
        faults.append(Fault(method, f"{name}.{method}: {text}", fatal))

    # Methods that are missing, the roles, and methods that are async, or should be.
    for method, form in FORMS.items():
        if inspect.getattr_static(env, method) is inspect.getattr_static(Env, method):
            add(method, f"missing; expected `{form}. Write it in the class.", fatal=method != "success")
    faults += [Fault("roles", paragraph) for paragraph in _role_faults(env_spec)]
    if not inspect.iscoroutinefunction(env.step):
        expected = "expected `async def step(self, actions)`, as many episodes run at once. Put `async` before `def`."
        add("step", f"got a plain function; {expected}", fatal=False)
    for method in ("observe", "fork", "privileged", "tasks"):
        if inspect.iscoroutinefunction(getattr(env, method)):
            add(method, "got an async function; expected a plain one. Remove `async`.")
    if inspect.isfunction(inspect.getattr_static(env, "success")):
        expected = "expected a property, as a method without its call is always true. Put `@property` above it."
        add("success", f"got a method; {expected}", fatal=False)

    # The signatures of `tasks` and `__init__`.
    if inspect.isfunction(inspect.getattr_static(env, "tasks")):
        expected = "expected one of the class. Put `@classmethod` above it and name its first argument cls."
        add("tasks", f"got a method of an episode; {expected}")
    else:
        parameters = inspect.signature(env.tasks).parameters.values()
        nameable = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        required = [p.name for p in nameable if p.default is p.empty]
        unknown = [setting for setting in required[1:] if setting not in declared_settings(env)]
        if not required or unknown:
            got = f"needs {', '.join(unknown)}, which is no setting" if unknown else "takes no split"
            form = "`def tasks(cls, split, ...)`, with settings of __init__ behind the split"
            add("tasks", f"{got}; expected {form}. Give it that form.")
    settings = env_spec.episode_settings
    try:
        inspect.signature(env).bind(None, **settings)
    except TypeError as error:
        got = f"takes no call with a task and the settings {', '.join(settings) or '(none)'} ({error})"
        form = "`def __init__(self, task, ...)` with a default for every setting"
        add("__init__", f"{got}; expected {form}. Give it that form.")
    return faults


def _role_faults(env_spec: EnvSpec) -> Iterator[str]:
    env, name = env_spec.env_class, env_spec.env_class.__name__
    is_plain = inspect.getattr_static(env, "roles_of") is inspect.getattr_static(Env, "roles_of")
    if is_plain and inspect.getattr_static(env, "roles", None) is None:
        yield f"{name}.roles: missing; expected the names of all who ever act, such as `{EXAMPLE}`. Add them."
        return
    roles = env_spec.roles
    if not isinstance(roles, tuple | list) or not roles:
        expected = f"expected a tuple of names, such as `{EXAMPLE}`, with a comma behind a single name"
        yield f"{name}.{'roles' if is_plain else 'roles_of'}: got {roles!r}; {expected}. Write it as a tuple."
        return
    for role in roles:
        if not isinstance(role, str) or not ROLE.fullmatch(role):
            expected = "expected a letter, then letters, digits, - and _"
            yield f"{name}.roles: got the name {role!r}; {expected}, as roles name metrics. Rename it."
        elif roles.count(role) > 1:
            yield f"{name}.roles: got {role!r} {roles.count(role)} times; expected each role once. Remove the others."
