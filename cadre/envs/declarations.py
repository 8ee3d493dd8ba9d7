"""What a class has to declare before an episode can begin: roles, and the contract's methods in their right form.

`faults` looks at the class alone and plays nothing, so that it can come before anything else.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cadre.env import Env
from cadre.envs.spec import EnvSpec, declared_settings

ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
EXAMPLE = 'roles = ("planner", "worker")'
FORMS = {
    "observe": "def observe(self) -> dict[str, Observation]",
    "step": "async def step(self, actions: dict[str, str]) -> Reward",
    "success": "@property\n    def success(self) -> bool",
    "tasks": "@classmethod\n    def tasks(cls, split, **settings) -> Sequence[Task]",
}
PURPOSE = {
    "observe": "says who acts now and what each of them sees",
    "step": "takes the texts of those who act and returns their reward",
    "success": "says whether the task is solved",
    "tasks": 'returns the problems of the split "train" or "test"',
}


@dataclass(frozen=True)
class Fault:
    """Something in a declaration that breaks the contract. Where it is `fatal` no episode can be played."""

    name: str
    paragraph: str
    fatal: bool = True


def faults(env_spec: EnvSpec) -> list[Fault]:
    """Everything in the declaration of an environment that breaks the contract."""
    env = env_spec.env_class
    return [
        *_missing(env),
        *_roles(env_spec),
        *_async(env),
        *_success(env),
        *_tasks(env),
        *_constructor(env, env_spec.settings),
    ]


def _missing(env: type[Env]) -> Iterator[Fault]:
    for name, form in FORMS.items():
        if inspect.getattr_static(env, name) is inspect.getattr_static(Env, name):
            text = (
                f"{env.__name__}.{name}: missing; expected `{' '.join(form.split())}`, which {PURPOSE[name]}. "
                "Write it in the class."
            )
            yield Fault(name, text, fatal=name != "success")


def _roles(env_spec: EnvSpec) -> Iterator[Fault]:
    for paragraph in _role_faults(env_spec):
        yield Fault("roles", paragraph)


def _role_faults(env_spec: EnvSpec) -> Iterator[str]:
    env, name = env_spec.env_class, env_spec.env_class.__name__
    plain = inspect.getattr_static(env, "roles_of") is inspect.getattr_static(Env, "roles_of")
    if plain and inspect.getattr_static(env, "roles", None) is None:
        yield f"{name}.roles: missing; expected the names of all who ever act, such as `{EXAMPLE}`. Add them."
        return
    roles = env_spec.roles
    if not isinstance(roles, tuple | list) or not roles:
        yield (
            f"{name}.{'roles' if plain else 'roles_of'}: got {roles!r}; expected a tuple of names, such as "
            f"`{EXAMPLE}`, with a comma behind the name where there is one only. Write it as a tuple."
        )
        return
    for role in roles:
        if not isinstance(role, str) or not ROLE.fullmatch(role):
            yield (
                f"{name}.roles: got the name {role!r}; expected a letter, then letters, digits, - and _, as roles name "
                "metrics and settings. Rename it."
            )
    for role, count in Counter(map(str, roles)).items():
        if count > 1:
            yield f"{name}.roles: got {role!r} {count} times; expected each role once. Remove the others."


def _async(env: type[Env]) -> Iterator[Fault]:
    if not inspect.iscoroutinefunction(env.step):
        text = (
            f"{env.__name__}.step: got a plain function; expected `async def step(self, actions)`, since many episodes "
            "run at once and one that waits must not hold up the others. Put `async` before `def`."
        )
        yield Fault("step", text, fatal=False)
    for name in ("observe", "fork", "privileged", "tasks"):
        if inspect.iscoroutinefunction(getattr(env, name)):
            yield Fault(name, f"{env.__name__}.{name}: got an async function; expected a plain one. Remove `async`.")


def _success(env: type[Env]) -> Iterator[Fault]:
    if inspect.isfunction(inspect.getattr_static(env, "success")):
        text = (
            f"{env.__name__}.success: got a method; expected a property, as a method without its call is always true. "
            "Put `@property` above it."
        )
        yield Fault("success", text, fatal=False)


def _tasks(env: type[Env]) -> Iterator[Fault]:
    if inspect.isfunction(inspect.getattr_static(env, "tasks")):
        text = (
            f"{env.__name__}.tasks: got a method of an episode; expected one of the class, as tasks come before "
            "episodes. Put `@classmethod` above it and name its first argument cls."
        )
        yield Fault("tasks", text)
        return
    needed = [name for name, parameter in _named(env.tasks) if parameter.default is parameter.empty]
    strange = [name for name in needed[1:] if name not in declared_settings(env)]
    if not needed or strange:
        got = f"needs {', '.join(strange)}, which is no setting" if strange else "takes no split"
        yield Fault(
            "tasks",
            f"{env.__name__}.tasks: {got}; expected `def tasks(cls, split, ...)`, with settings of __init__ behind the "
            "split. Give it that form.",
        )


def _named(method: Callable[..., Any]) -> list[tuple[str, inspect.Parameter]]:
    """The parameters that a caller may name."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY)
    return [
        (name, parameter) for name, parameter in inspect.signature(method).parameters.items() if parameter.kind in named
    ]


def _constructor(env: type[Env], settings: Mapping[str, Any]) -> Iterator[Fault]:
    try:
        inspect.signature(env).bind(None, **settings)
    except TypeError as error:
        text = (
            f"{env.__name__}.__init__: takes no call with a task and {_listed(settings)} ({error}); expected "
            "`def __init__(self, task, ...)` with a default for every setting. Give it that form."
        )
        yield Fault("__init__", text)


def _listed(settings: Mapping[str, Any]) -> str:
    return f"the settings {', '.join(settings)}" if settings else "no settings"
