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
import os
import re
import sys
import tempfile
import threading
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
from cadre.settings.user_imports import OWN, import_file, is_user_module, loaded_file, plain_name

Function = TypeVar("Function", bound=Callable[..., Any])
log = logging.getLogger("cadre.settings")
# Imports replace the command line and the output of the whole process.
LOADING = threading.RLock()
STDOUT = 1
# Characters of what a file prints that are shown.
SHOWN = 300


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
    it. What it raises, SystemExit too, becomes one ConfigError; what it prints is logged with the line."""
    check_code(setting, path)
    if (module := loaded_file(str(path))) is not None:
        return module
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
    if parts[0] in OWN or not all(part.isidentifier() for part in parts):
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
    try:
        with LOADING, _alone(name):
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


class _Output(io.StringIO):
    """What is printed while a file is loaded. Whoever keeps it, such as a handler of `logging`, writes to the output of
    the process afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.is_over = "", False

    def write(self, text: str) -> int:
        if self.is_over:
            return sys.stdout.write(text)
        if text.strip() and not self.place:
            self.place = _line_of_user()
        return super().write(text)

    def flush(self) -> None:
        if self.is_over:
            sys.stdout.flush()


def _line_of_user() -> str:
    """`, at line 3 of scoring.py`: the innermost line of the user's that runs; empty where there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_user_module(str(frame.f_globals.get("__name__"))):
            return f", at line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Within it there is no command line and no input, and what is printed is kept apart: it is logged at the end, with
    its line, as programs read what a command prints."""
    before, output = (sys.argv, sys.stdin), _Output()
    sys.argv, sys.stdin = _CommandLine([name]), io.StringIO()
    with tempfile.TemporaryFile() as beside:
        try:
            with contextlib.redirect_stdout(output), _descriptor_to(beside.fileno()):
                yield
        finally:
            sys.argv, sys.stdin = before
            output.is_over = True
            beside.seek(0)
            text = output.getvalue() + beside.read(10 * SHOWN).decode(errors="replace")
            if lines := " ".join(text.split())[:SHOWN]:
                log.warning(
                    "%s printed while it was loaded%s: %s. Expected no output, as programs read what a command prints; "
                    'put it under `if __name__ == "__main__":`, or log it.',
                    name,
                    output.place,
                    lines.rstrip("."),
                )


@contextlib.contextmanager
def _descriptor_to(file: int) -> Iterator[None]:
    """Within it the output of the process, and of those that it starts, goes to a file."""
    try:
        kept = os.dup(STDOUT)
    except OSError:
        yield  # there is no output
        return
    try:
        os.dup2(file, STDOUT)
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)
