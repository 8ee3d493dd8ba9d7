"""Every setting that takes text, for the run of a stranger to put a program, a module, a file or an address in."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from cadre.algorithms import ALGORITHMS
from cadre.config.experiment import Config
from cadre.envs.spec import declared_settings, env_class
from cadre.plugins import environments

Key = tuple[str, ...]
AXES = {"k": 2, "shape": "independent", "returns": "reward_to_go", "group": "node", "baseline": "mean", "scale": "std"}
# Values that fill the names of a mapping's keys.
FILLED = {"team.policies": "shared", "team.roles": "first", "team.prompts": "first", "cluster.policies": "shared"}
# What an environment needs beside a setting to come as far as it.
NEEDED = {
    "search": {"data": "private.jsonl", "held_out": 3},
    "search-single-agent": {"data": "private.jsonl", "held_out": 3},
    "program": {"run": ["true"], "roles": ["agent"], "tasks": "private.jsonl"},
    "gymnasium": {"id": "CartPole-v1"},
    "openenv": {"url": "http://192.0.2.1"},
    "repair": {"isolation": "container"},
}


@dataclass(frozen=True)
class TextSetting:
    """A setting that takes text: its key, the environment or the algorithm it belongs to, and the shapes it takes."""

    key: Key
    env: str = ""
    algorithm: str = ""
    shapes: tuple[str, ...] = ("text",)

    @property
    def name(self) -> str:
        return ".".join(filter(None, (self.env or self.algorithm, *self.key)))

    def values(self, text: str) -> Iterator[Any]:
        """Yield the text in every shape that the setting takes."""
        for shape in self.shapes:
            if shape == "mapping":
                yield from ({key: text} for key in ("mcp", "searxng", "image", "id", "env"))
            else:
                yield text.split() if shape == "list" else text

    def put(self, config: Mapping[str, Any], value: Any) -> dict[str, Any]:
        """Return the configuration with the setting, and with what it needs beside it."""
        changed: dict[str, Any] = copy.deepcopy(dict(config))
        if self.env:
            roles = dict.fromkeys(getattr(env_class(self.env), "roles", ()) or ("agent",), "shared")
            changed.update(
                env=self.env, settings={**NEEDED.get(self.env, {})}, team={**changed["team"], "roles": roles}
            )
        if self.algorithm:
            changed["algorithm"] = {"name": self.algorithm, **(AXES if self.algorithm == "custom" else {})}
        for policy in ("url", "key_variable"):
            if self.key == ("team", "policies", "shared", policy):
                changed["team"]["policies"]["shared"].update(frozen=True, url="http://192.0.2.1/v1")
        if self.key[:2] == ("teacher", "model"):
            changed["teacher"] = {"model": {"model": "seed"}}
        inner = changed
        for name in self.key[:-1]:
            inner[name] = inner.get(name) or {}
            inner = inner[name]
        inner[self.key[-1]] = value
        return changed


def texts(folder: Path, url: str, mark: Path, module: str) -> dict[str, str]:
    """Return what a stranger may write: code in the run folder and beside it, a module, a command and an address."""
    return {
        "file": f"{folder}/{module}.py:Pair",
        "file beside": f"{folder.parent}/{module}.py:Pair",
        "module": f"{module}:Pair",
        "package": module,
        "command": f"/bin/sh -c 'touch${{IFS}}{mark}'",
        "address": url,
        "name on a hub": "stranger/model",
        "path": f"{folder.parent}/private.jsonl",
    }


def text_settings() -> Iterator[TextSetting]:
    """Yield every setting of a recipe, an algorithm and a bundled environment that takes text but names of a list."""
    yield TextSetting(("env",))
    yield TextSetting(("evaluate", "settings", "reward"))
    for key in _fields(Config, (), set()):
        if key[:1] not in (("env",), ("settings",), ("algorithm",)) and key[:2] != ("evaluate", "settings"):
            yield TextSetting(key, shapes=("list",) if key[-1] in ("stop", "names") else ("text",))
    for name, algorithm in ALGORITHMS.items():
        for key in _fields(algorithm, ("algorithm",), set()):
            yield TextSetting(key, algorithm=name)
    for env in environments():
        yield TextSetting(("settings", "reward"), env=env)
        for name, parameter in declared_settings(env_class(env)).items():
            if name != "reward" and (shapes := tuple(_shapes(parameter.annotation))):
                yield TextSetting(("settings", name), env=env, shapes=shapes)


def _fields(model: type[BaseModel], key: Key, above: set[type]) -> Iterator[Key]:
    """Yield the keys of a section's fields that take text, those of sections within it too."""
    for name, field in model.model_fields.items():
        inner = (*key, name)
        inner += (FILLED[".".join(inner)],) if ".".join(inner) in FILLED else ()
        sections = [kind for kind in _types(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for section in sections:
            if section not in above and name != "algorithm":
                yield from _fields(section, inner, {*above, section})
        if {str, Any} & set(_types(field.annotation)) or name == "names":
            yield inner


def _shapes(annotation: Any) -> Iterator[str]:
    """Yield the shapes in which a type takes text: itself, a list or a mapping."""
    kinds = list(_types(annotation))
    if str in kinds:
        yield "text"
    if list in kinds or "list[" in str(annotation):
        yield "list"
    if any(word in str(annotation) for word in ("dict[", "Mapping[")) or any(
        isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds
    ):
        yield "mapping"


def _types(annotation: Any) -> Iterator[Any]:
    """Yield a type and all types within it; values of a `Literal` are none."""
    yield annotation
    for inner in get_args(annotation):
        if not isinstance(inner, str | int):
            yield from _types(inner)
