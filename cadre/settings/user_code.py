"""Functions that a setting names: one of a table, or `my_file.py:name` in a file of the user's.

The file is run when a function is first taken from it, as it is the user's own code; what a model wrote never comes
here.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import AfterValidator

from cadre.errors import ConfigError, nearest
from cadre.file_limits import read_bytes
from cadre.settings.trust import check_code

Function = TypeVar("Function", bound=Callable[..., Any])


def load_function(setting: str, reference: str, known: Mapping[str, Function]) -> Function:
    """The function of the table `known`, or of the user's file, that the `setting` names.

    Raises ConfigError for an unknown name, a file that is missing or fails to load, and a name that it does not define.
    """
    if reference in known:
        return known[reference]
    source, colon, name = reference.rpartition(":")
    if not colon:
        raise ConfigError(f"{setting}: got {reference!r}; expected {_expected(reference, known)}")
    functions = {key: value for key, value in vars(load_file(setting, Path(source))).items() if callable(value)}
    if name not in functions:
        raise ConfigError(
            f"{setting}: {source} has no function {name!r}; expected one that it defines. Fix the name."
            f"{nearest(name, functions)}"
        )
    return functions[name]


def one_of(known: Mapping[str, Any]) -> AfterValidator:
    """Marks a field that names a function of the table, or one in a file of the user's; its name alone is checked."""

    def check(reference: str) -> str:
        if reference not in known and ":" not in reference:
            raise ValueError(_expected(reference, known))
        return reference

    return AfterValidator(check)


def _expected(reference: str, known: Mapping[str, Any]) -> str:
    return f"one of {', '.join(known)}, or file.py:function.{nearest(reference, known)}"


def load_file(setting: str, path: Path) -> ModuleType:
    """The module that a file of the user's makes, run once as long as it is not changed. What it raises becomes one
    ConfigError."""
    check_code(setting, path)
    try:
        read_bytes(path)
    except FileNotFoundError:
        raise ConfigError(f"{setting}: there is no file {path}; expected file.py:name. Fix the path.") from None
    except OSError as error:
        raise ConfigError(
            f"{setting}: {str(path)!r} cannot be read ({error.strerror}); expected file.py:name. Fix the path."
        ) from None
    try:
        return _module(path.resolve(), path.stat().st_mtime_ns)
    except Exception as error:  # noqa: BLE001 - whatever the user's file raises is the user's to see, in one paragraph
        raise ConfigError(
            f"{setting}: {path} failed to load at line {_line(error, path)}: {type(error).__name__}: {error}. Fix the "
            "file."
        ) from None


@lru_cache
def _module(path: Path, _changed_at: int) -> ModuleType:
    name = f"cadre_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _line(error: Exception, path: Path) -> int | str:
    """The line of the user's file at which it failed."""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    return lines[-1] if lines else getattr(error, "lineno", None) or "?"
