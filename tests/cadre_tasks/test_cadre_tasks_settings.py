"""Every setting of every bundled environment is set once: its declaration takes it, and a recipe resolves with it."""

from __future__ import annotations

import inspect
import re
from typing import Any, Literal, get_args, get_origin

import pydantic
import pytest

from cadre.config.experiment import parse
from cadre.config.resolve import resolve
from cadre.envs.spec import EnvSpec, declared_settings, env_class
from cadre.envs.validation import declaration_faults
from cadre.errors import CadreError
from cadre.plugins import environments

ENVIRONMENTS = sorted(environments())


def other_value(parameter: inspect.Parameter) -> Any:
    """Return a value that the setting may have, another than its default where one is easily made."""
    kind, usual = parameter.annotation, parameter.default
    choices = [value for part in (kind, *get_args(kind)) if get_origin(part) is Literal for value in get_args(part)]
    candidates = [*reversed(choices), *([not usual] if isinstance(usual, bool) else []), 2, 1, 0.5, "x", {}, [], usual]
    for value in candidates:
        try:
            if value != usual and pydantic.TypeAdapter(kind).validate_python(value, strict=True) == value:
                return value
        except pydantic.ValidationError:
            continue
    return usual


# What environments need in any case, and values that the environment or its other settings do not take by themselves.
NEEDED: dict[str, dict[str, Any]] = {
    "alfworld": {"folder": "games"},
    "gymnasium": {"id": "CartPole-v1"},
    "one-agent": {"of": "plan-path"},
    "mixture": {"envs": ["plan-path", {"name": "sokoban", "weight": 2}]},
    "verifiers": {"id": "a_package"},
    "preferences": {"tasks": [{"prompt": f"{n}?", "chosen": "a", "rejected": "b"} for n in range(20)]},
    "program": {"roles": ["solver"], "run": "program.py:main"},
}
VALUES: dict[str, dict[str, Any]] = {
    "mixture": {"weights": {"plan-path": 3}},
    "openspiel": {"game": "tiny_hanabi"},
    "preferences": {"held_out": 0.2},
}
# A search engine beside the local index, and containers, are not on every machine.
ELSEWHERE = {"backend", "data", "held_out", "isolation", "container"}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_setting_is_taken_and_resolves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env, needed = env_class(name), NEEDED.get(name, {})
    if name == "verifiers":  # its roles are those of the package
        monkeypatch.setattr(env, "roles_of", classmethod(lambda cls, **settings: ("agent",)))
    error = resolve_error(name, needed)
    if error is not None and re.search(r"container\.(runtime|image)", str(error)):
        pytest.skip("its tools need docker or podman, and an image")
    for setting, parameter in declared_settings(env).items():
        value = needed.get(setting, VALUES.get(name, {}).get(setting, other_value(parameter)))
        settings = {**needed, setting: value}
        assert declaration_faults(EnvSpec(name, settings)) == [], setting
        if error is None and setting not in ELSEWHERE:
            assert resolve_error(name, settings) is None, setting


def resolve_error(name: str, settings: dict[str, Any]) -> CadreError | None:
    """Return why a recipe with these settings does not resolve: data, packages or servers that are not here."""
    try:
        resolve(
            parse(
                {
                    "env": name,
                    "settings": settings,
                    "team": "seed",
                    "algorithm": {"name": "grpo", "k": 2},
                    "sampling": {"max_tokens": 8},
                }
            )
        )
    except CadreError as error:
        return error
    return None
