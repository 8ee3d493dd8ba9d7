"""Environment classes by name, and `EnvSpec`: a class with its validated settings, which makes episodes."""

from __future__ import annotations

import ast
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pydantic

from cadre.env import Env, Split
from cadre.envs.episode import episode
from cadre.envs.rows import RowsEnv, reward_functions
from cadre.envs.tools import check_tools, with_tools
from cadre.envs.wrappers import add_prompt, centralised, with_prompts, with_reward
from cadre.errors import ConfigError, ContractError, nearest, reject_name
from cadre.plugins import environments
from cadre.settings.section import NUMBER, PLAIN_TYPES, is_bool_for_number, quoting_advice
from cadre.settings.trust import check_code, find_module_file, find_module_reference
from cadre.settings.user_code import describe_errors, is_user_file, load_file, load_module
from cadre.types import Choice, Task

log = logging.getLogger(__name__)


def name_of(env: type[Env]) -> str:
    """Return a class's name in YAML: its bundled name, `file.py:Class`, or `package.module:Class` of an installed one.
    Only a class at the top of a file or module is found again by it."""
    path = f"{env.__module__}:{env.__qualname__}"
    bundled = {target: name for name, target in environments().items()}
    module = sys.modules.get(env.__module__)
    file = getattr(module, "__file__", None)
    is_installed = file is not None and getattr(module, "__package__", None) and not is_user_file(file)
    if path in bundled or file is None or is_installed:
        return bundled.get(path, path)
    return f"{Path(file).resolve()}:{env.__qualname__}"


def env_class(name: str) -> type[Env]:
    """Return the class of a bundled name or `file.py:Class`; the user's file is run, as it is the user's own code."""
    target = environments().get(name, name)
    source, colon, attribute = target.rpartition(":")
    if not colon or not source:
        if name.endswith(".py"):
            raise _no_class_named(Path(name))
        names = ", ".join(environments())
        expected = f"expected one of {names} or file.py:Class."
        raise ConfigError(reject_name(f"env: got {name!r}", expected, nearest(name, environments())))
    if not source.endswith(".py") and (file := find_module_reference(target, Path.cwd())):
        source = file.rpartition(":")[0]
    module = load_file("env", Path(source)) if source.endswith(".py") else _from_package(source, name)
    env = getattr(module, attribute, None)
    if inspect.isfunction(env):
        return episode(env)
    if not (isinstance(env, type) and issubclass(env, Env)):
        kinds = {key: kind for key, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, Env)}
        # Base classes that the file imports from Cadre are not the user's.
        classes = [key for key, kind in kinds.items() if not kind.__module__.startswith("cadre.")]
        raise ConfigError(
            f"env: {source} has no environment {attribute!r}; expected a subclass of cadre.env.Env, and it has "
            f"{', '.join(classes) or 'none'}.{nearest(attribute, classes)}"
        )
    return env


def _no_class_named(file: Path) -> ConfigError:
    """Return the error for a file without `:Class`, with the classes that stand in it. The file is not run."""
    expected = "expected a file and a class of it, as in file.py:Class"
    if not file.expanduser().is_file():
        nearby = [str(path) for path in sorted(file.expanduser().parent.glob("*.py"))]
        return ConfigError(f"env: got '{file}', and there is no such file; {expected}.{nearest(str(file), nearby)}")
    try:
        body = ast.parse(file.expanduser().read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        body = []
    classes = [f"{file}:{node.name}" for node in body if isinstance(node, ast.ClassDef) and node.bases]
    advice = f"Write {' or '.join(classes)}." if classes else "Add the name of the class."
    return ConfigError(f"env: got '{file}', and no class of it; {expected}. {advice}")


def _from_package(module: str, name: str) -> Any:
    expected = "expected file.py:Class, module:Class or a name of `cadre list`"
    if not all(part.isidentifier() for part in module.split(".")):
        got = f"got {name!r}, and {module!r} is neither a file that ends in .py nor the name of a module"
        raise ConfigError(f"env: {got}; {expected}. Fix the name.")
    if (file := find_module_file(name)) is not None:
        check_code("env", file)
    try:
        return load_module("env", module)
    except (ImportError, ValueError) as error:
        got = f"got {name!r}, and {module} cannot be imported ({error})"
        raise ConfigError(f"env: {got}; {expected}. Fix the name, or install what is missing.") from None


class EnvSpec:
    """An environment class with its validated settings: makes episodes and returns the tasks of a split.

    env           the class, or its name in YAML
    central       play it with the one role `team`, which writes the parts of all roles
    prompts       system messages by role
    declared      the class itself, without the wrappers
    settings      those that were given; `all_settings` have the defaults, `episode_settings` are those of `__init__`
    missing       settings that have no default and were not given

    A setting is declared once, with its default, in `__init__`, `tasks` or `roles_of`, whichever uses it; the others
    may name it. Every environment has the setting `reward`, `FILE.py:FUNCTION` (`with_reward`).
    """

    def __init__(
        self,
        env: str | type[Env],
        settings: Mapping[str, Any],
        central: bool = False,
        prompts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.declared = env_class(env) if isinstance(env, str) else env
        if self.declared.tools and central:
            got = f"got true, and {self.declared.__name__} has tools, which one role cannot call for all"
            raise ConfigError(f"algorithm.central: {got}; expected none. Take another algorithm.")
        declared = declared_settings(self.declared)
        # A function of the user's pays for the steps of any environment but those that take one themselves.
        reward, parameter = settings.get("reward"), declared.get("reward")
        takes_text = parameter is not None and parameter.annotation in (str, Any)
        is_function = isinstance(reward, str) and ":" in reward and not takes_text
        rewarded = with_reward(self.declared, str(reward)) if is_function else self.declared
        played = centralised(rewarded) if central else with_tools(rewarded)
        self.env_class = with_prompts(played, prompts) if prompts else played
        self.central, self.prompts = central, prompts
        options = {name: value for name, value in settings.items() if not (is_function and name == "reward")}
        checked = _checked(self.declared, declared, options)
        self.settings = {name: checked.get(name, value) for name, value in settings.items()}
        defaults = {name: p.default for name, p in declared.items() if p.default is not p.empty}
        self.all_settings, self._declared_settings = defaults | self.settings, defaults | checked
        constructor = _declared(self.declared, "__init__", 2)
        self.episode_settings = {name: value for name, value in checked.items() if name in constructor}
        if self.declared.tools:
            check_tools(self.declared, self.roles)
        self.missing = [name for name in declared if name not in self.all_settings]

    @property
    def roles(self) -> tuple[str, ...]:
        with describe_errors(f"{self.declared.__name__}.roles_of"):
            return self.env_class.roles_of(**self._taken_by(self.env_class.roles_of))

    @cached_property
    def members(self) -> Mapping[str, EnvSpec]:
        """The environments of a mixture by name; for any other this one."""
        return self.declared.members(**self._taken_by(self.declared.members)) or {"": self}

    def make(self, task: Task) -> Env:
        """Return a new episode of the task."""
        return self.env_class(task, **self._arguments)

    @cached_property
    def _arguments(self) -> Mapping[str, Any]:
        """The settings of every episode; reward functions of rows are loaded once for all of them."""
        values = self.episode_settings
        return {**values, "reward": reward_functions(values.get("reward"))} if self.declared is RowsEnv else values

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split. Raises ContractError if the environment's own code fails, or returns others."""
        where = f"{self.declared.__name__}.tasks({split!r})"
        with describe_errors(where):
            tasks: object = self.declared.tasks(split, **self._taken_by(self.declared.tasks))
        if not isinstance(tasks, Sequence) or isinstance(tasks, str):
            got = "nothing (None)" if tasks is None else f"a {type(tasks).__name__}"
            expected = "expected a sequence of Task with a length and items by index"
            raise ContractError(f"{where}: got {got}; {expected}. Return a list, or GeneratedTasks(count, make, name).")
        return tasks

    def close(self) -> None:
        """Release what all episodes share, if they share something."""

    def choices(self) -> Sequence[Choice]:
        """Return every decision of a game that can list them, as the team sees it; none with `central`."""
        if self.central:
            return ()
        with describe_errors(f"{self.declared.__name__}.choices"):
            listed = self.declared.choices(**self._taken_by(self.declared.choices))
        return [replace(choice, observation=add_prompt(choice.observation, self.prompts)) for choice in listed]

    def figures(self, probabilities: Sequence[Sequence[float]]) -> dict[str, float]:
        """Return the exact figures of policies with these probabilities of the answers of `choices`."""
        with describe_errors(f"{self.declared.__name__}.figures"):
            return self.declared.figures(probabilities, **self._taken_by(self.declared.figures))

    def _taken_by(self, method: Callable[..., Any]) -> dict[str, Any]:
        """Return the settings that a method has parameters for, defaults included: a wrapper keeps the signature."""
        parameters = inspect.signature(method).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return {name: value for name, value in self._declared_settings.items() if takes_all or name in parameters}


def declared_settings(env: type[Env]) -> dict[str, inspect.Parameter]:
    """Return the settings of an environment by name.

    They are the parameters of `__init__` after the task, and those of `tasks` and `roles_of` that have a default.
    Annotations are types, or `Any` if they name something that does not exist at run time.
    """
    further = {**_declared(env, "roles_of", 1), **_declared(env, "tasks", 2)}
    with_default = {name: parameter for name, parameter in further.items() if parameter.default is not parameter.empty}
    return with_default | _declared(env, "__init__", 2)


def _declared(env: type[Env], method: str, skipped: int) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method after the first `skipped`; if it passes on **keywords, its parents' too."""
    settings: dict[str, inspect.Parameter] = {}
    for kind in env.__mro__:
        if method not in vars(kind):
            continue
        function = getattr(vars(kind)[method], "__func__", vars(kind)[method])
        try:
            hints = inspect.get_annotations(function, eval_str=True)
        except NameError:
            hints = {}
        parameters = list(inspect.signature(function).parameters.values())[skipped:]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        settings = {p.name: p.replace(annotation=hints.get(p.name, Any)) for p in named} | settings
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return settings


def _checked(env: type[Env], declared: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as their declared types. Raises ConfigError for an unknown name or another type."""
    checked = {}
    for key, value in settings.items():
        if key not in declared:
            names = ", ".join(declared)
            if not names:
                advice = f"Remove it, or add a parameter {key} after the task in {env.__name__}.__init__."
                got = f"got it for {env.__name__}, which has no settings"
                raise ConfigError(f"settings.{key}: {got}; expected none. {advice}")
            got = f"settings.{key}: unknown to {env.__name__}"
            raise ConfigError(reject_name(got, f"expected one of {names}.", nearest(key, declared)))
        if is_bool_for_number(declared[key].annotation, value):
            raise ConfigError(f"settings.{key}: got {value!r}; expected {NUMBER}. Write a number.")
        usual = declared[key].default
        if isinstance(usual, bool) and isinstance(value, str) and declared[key].annotation is Any:
            advice = "These two alone are truth values in YAML 1.2: write one of them, or annotate the parameter."
            raise ConfigError(f"settings.{key}: got the text {value!r}; expected true or false. {advice}")
        try:
            checked[key] = pydantic.TypeAdapter(declared[key].annotation).validate_python(value)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            advice = quoting_advice(value, first["msg"])
            expected = PLAIN_TYPES.get(first["type"]) or first["msg"].removeprefix("Input should be ")
            raise ConfigError(f"settings.{key}: got {value!r}; expected {expected}. {advice}") from None
    return checked
