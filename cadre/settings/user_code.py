"""Functions that a setting names: one of a table, or `my_file.py:name` in a file of the user's.

The file is run when a function is first taken from it, as it is the user's own code; what a model wrote never comes
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import inspect
import io
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import AfterValidator

from cadre.errors import CadreError, ConfigError, nearest
from cadre.file_limits import read_bytes
from cadre.settings.trust import check_code
from cadre.settings.user_errors import called, place_of
from cadre.settings.user_imports import import_file, plain_name

Function = TypeVar("Function", bound=Callable[..., Any])
log = logging.getLogger("cadre.settings")


def load_function(setting: str, reference: str, known: Mapping[str, Function]) -> Function:
    """The function of the table `known`, or of the user's file, that the `setting` names.

    What a function of the user's raises becomes one ContractError that names the setting and their lines. Raises
    ConfigError for an unknown name, a file that is missing or fails to load, and a name that it does not define.
    """
    if reference in known:
        return known[reference]
    source, colon, name = reference.rpartition(":")
    if not colon or not source:
        raise ConfigError(f"{setting}: got {reference!r}; expected {_expected(reference, known)}")
    defined = vars(load_file(setting, Path(source)))
    functions = {key: value for key, value in defined.items() if callable(value)}
    if name not in functions:
        what = f"has no function {name!r}"
        if name in defined:
            what = f"has {name} as {type(defined[name]).__name__} and no function"
        raise ConfigError(
            f"{setting}: {source} {what}; expected one that it defines. Fix the name.{nearest(name, functions)}"
        )
    checked: Function = _explained(functions[name], setting, reference)
    return checked


@lru_cache(maxsize=256)
def _explained(function: Any, setting: str, reference: str) -> Any:
    """The user's function, whose errors name the setting and the lines of their file."""
    if inspect.isclass(function):
        return function
    short = f"{Path(reference.rpartition(':')[0]).name}:{reference.rpartition(':')[2]}"

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with called(f"{setting}: {short}"):
            return function(*args, **kwargs)

    return function if inspect.iscoroutinefunction(function) else call


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
    """The module that a file of the user's makes, run once as long as it is not changed. It imports what lies beside
    it. What it raises, SystemExit too, becomes one ConfigError; what it prints is logged with its name."""
    check_code(setting, path)
    try:
        read_bytes(path)
    except FileNotFoundError:
        raise ConfigError(f"{setting}: there is no file {path}; expected file.py:name. Fix the path.") from None
    except OSError as error:
        raise ConfigError(
            f"{setting}: {str(path)!r} cannot be read ({error.strerror}); expected file.py:name. Fix the path."
        ) from None
    with _loading(setting, str(path)):
        return import_file(str(path))


def load_module(setting: str, name: str) -> ModuleType:
    """The module of that name, of an installed package. Raises ImportError where there is none, and ConfigError for
    what it raises itself."""
    with _loading(setting, name):
        return importlib.import_module(name)


def file_of_module(reference: str, folder: Path) -> str | None:
    """`package.module:Name` as the file below a folder that it stands for; None where there is none, or where the
    package can be imported from there anyway."""
    module, _, name = reference.rpartition(":")
    parts = module.split(".")
    if parts[0] == "cadre" or not all(part.isidentifier() for part in parts):
        return None
    found = importlib.util.find_spec(parts[0]) if parts[0] != "__main__" else None
    known = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    top = Path(folder, parts[0]).resolve()
    if any(Path(each).resolve() in (top, top.with_suffix(".py")) for each in known if each):
        return None
    path = Path(folder, *parts).absolute()
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((f"{file}:{name}" for file in files if file.is_file()), None)


@contextlib.contextmanager
def _loading(setting: str, name: str) -> Iterator[None]:
    """Around the import of the user's code: errors there are one ConfigError."""
    printed = io.StringIO()
    try:
        with _alone(name, printed):
            yield
    except CadreError as error:
        raise ConfigError(f"{setting}: {name} failed to load: {error}") from error
    except SystemExit as error:
        raise ConfigError(
            f"{setting}: {name} ends the program while it is loaded: SystemExit{place_of(error)}; expected a file that "
            'can be imported. Put what a script does under `if __name__ == "__main__":`.'
        ) from None
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(plain_name(error.name)) and not name.endswith(".py"):
            raise
        raise ConfigError(f"{setting}: {name} failed to load{_loading_error(error, name)} Fix the file.") from None
    except (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the user's file raises is theirs to see, in one paragraph
        raise ConfigError(f"{setting}: {name} failed to load{_loading_error(error, name)} Fix the file.") from None
    finally:
        if lines := " ".join(printed.getvalue().split())[:300]:
            log.warning("%s printed while it was loaded: %s", name, lines)


def _loading_error(error: BaseException, name: str) -> str:
    place = re.sub(rf"(line \d+) of {re.escape(Path(name).name)}\b", r"\1", place_of(error))
    return f"{place or ' at line ?'}: {type(error).__name__}: {plain_name(' '.join(str(error).split()))}."


class _CommandLine(list):
    """An empty command line, which argparse may not read."""

    def __getitem__(self, place: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__")
        if isinstance(place, slice) and caller in ("argparse", "optparse"):
            raise ReadsCommandLine(
                "it reads the command line while it is loaded, which is that of cadre; expected settings of the "
                'recipe. Put that under `if __name__ == "__main__":`'
            )
        return super().__getitem__(place)


class ReadsCommandLine(Exception):
    """A file of the user's that parses the command line while it is imported."""


@contextlib.contextmanager
def _alone(name: str, printed: io.StringIO) -> Iterator[None]:
    """Within it there is no command line and no input, and what is printed is kept apart."""
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = _CommandLine([name]), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        sys.argv, sys.stdin = before
