"""Load code of the user that a setting names, and describe the errors it raises.

A setting names a function of a table, or `my_file.py:name` in a file of the user. The file runs in this process when it
is first needed, since it is the user's own code; programs that a model wrote never come here. Every error of such code
is reported as one paragraph with the lines of the user's files that led to it.
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
import sysconfig
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import AfterValidator

import cadre
from cadre.errors import CadreError, ConfigError, ContractError, nearest
from cadre.file_limits import read_bytes
from cadre.settings.trust import check_code
from cadre.settings.user_imports import OWN_PACKAGES, import_file, is_user_module, loaded_module, strip_namespaces

Function = TypeVar("Function", bound=Callable[..., Any])
log = logging.getLogger("cadre.settings")
# One import at a time: `_isolated_import` replaces the command line and the output of the whole process.
IMPORT_LOCK = threading.RLock()
STDOUT = 1
# Characters of a file's output that the warning quotes.
MAX_OUTPUT_SHOWN = 300
# Settings whose function may be a coroutine.
AWAITED_SETTINGS = ("settings.run", "settings.reward", "settings.turn_reward")
# Lines of the user's files that are listed with an error.
MAX_LINES_SHOWN = 4

INSTALL_FOLDER = Path(cadre.__file__).parents[1].resolve()
OWN_FOLDERS = tuple(INSTALL_FOLDER / name for name in OWN_PACKAGES)
LIBRARY_FOLDERS = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib"))
# Modules of cadre/envs that call an environment and are none themselves.
ENV_CALLERS = {"check.py", "spec.py"}


# ---- Functions that a setting names


def load_function(setting: str, reference: str, table: Mapping[str, Function]) -> Function:
    """Return the function of `table`, or of the user's file, that the `setting` names.

    An exception in the user's function becomes a ContractError with the setting and their lines. Raises ConfigError for
    an unknown name, a file that is missing or fails to load, and a name that the file does not define.
    """
    if reference in table:
        return table[reference]
    source, colon, name = reference.rpartition(":")
    if not colon or not source:
        raise ConfigError(f"{setting}: got {reference!r}; expected {_expected_names(reference, table)}")
    defined = vars(load_file(setting, Path(source)))
    functions = {key: value for key, value in defined.items() if callable(value)}
    if name not in functions:
        fault = f"has no function {name!r}"
        if name in defined:
            fault = f"has {name} as {type(defined[name]).__name__} and no function"
        raise ConfigError(
            f"{setting}: {source} {fault}; expected one that it defines. Fix the name.{nearest(name, functions)}"
        )
    function: Any = functions[name]
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async and setting not in AWAITED_SETTINGS:
        raise ConfigError(
            f"{setting}: {reference} is an async function, and its result would be a coroutine that is not awaited; "
            "expected a plain function. Write def in place of async def."
        )
    wrapped: Function = _with_described_errors(function, setting, reference)
    return wrapped


@lru_cache(maxsize=256)
def _with_described_errors(function: Any, setting: str, reference: str) -> Any:
    """Return the user's function with exceptions turned into ContractErrors. Classes and coroutines stay as they are.

    Cached, so that a function is the same object wherever it is loaded.
    """
    if inspect.isclass(function) or inspect.iscoroutinefunction(function):
        return function
    file, _, name = reference.rpartition(":")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        subject = f"{setting}: {Path(file).name}:{name}"
        with describe_errors(subject):
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                _check_parameters(subject, function, args, kwargs, error)
                raise

    return call


def _check_parameters(
    subject: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> None:
    """Raise ContractError if the function does not have the parameters that it is called with."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a built-in function
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        given = ", ".join([*(type(arg).__name__ for arg in args), *(f"{key}=..." for key in kwargs)])
        raise ContractError(
            f"{subject}: got the parameters {signature}; expected one for each argument of the call, ({given}). Change "
            "them in the file."
        ) from error


def count_positional(function: Callable[..., Any]) -> int:
    """Return how many arguments a function takes by position, 255 for `*arguments`."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 255
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters
    )


def plain_scalar(value: Any) -> Any:
    """Return a scalar of numpy or torch as Python's own; anything else as it is."""
    if isinstance(value, int | float) or not callable(item := getattr(value, "item", None)):
        return value
    try:
        return item()
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several numbers
        return value


def one_of(table: Mapping[str, Any]) -> AfterValidator:
    """Return the validator of a field that names a function of `table` or `file.py:function`; no file is loaded."""

    def check(reference: str) -> str:
        if reference not in table and ":" not in reference:
            raise ValueError(_expected_names(reference, table))
        return reference

    return AfterValidator(check)


def _expected_names(reference: str, table: Mapping[str, Any]) -> str:
    names = f"one of {', '.join(table)}, or " if table else ""
    return f"{names}file.py:function.{nearest(reference, table)}"


# ---- Files and modules


def load_file(setting: str, path: Path) -> ModuleType:
    """Return the module of the user's file. It runs once until it changes, and can import the files beside it.

    What it prints is logged. Raises ConfigError for all that it raises, SystemExit included.
    """
    check_code(setting, path)
    if (module := loaded_module(str(path))) is not None:
        return module
    try:
        read_bytes(path)
    except FileNotFoundError:
        raise ConfigError(f"{setting}: there is no file {path}; expected file.py:name. Fix the path.") from None
    except OSError as error:
        raise ConfigError(
            f"{setting}: {str(path)!r} cannot be read ({error.strerror}); expected file.py:name. Fix the path."
        ) from None
    with _import_errors(setting, str(path)):
        return import_file(str(path))


def load_module(setting: str, name: str) -> ModuleType:
    """Return a module of an installed package by its name.

    Raises ImportError if there is none, and ConfigError for an exception in the module itself.
    """
    with _import_errors(setting, name):
        return importlib.import_module(name)


def find_module_reference(reference: str, folder: Path) -> str | None:
    """Return `package.module:Name` as `file.py:Name` for a module below a folder.

    Returns None if there is no such file, or if Python imports the package from that folder anyway.
    """
    module, _, name = reference.rpartition(":")
    parts = module.split(".")
    if parts[0] in OWN_PACKAGES or not all(part.isidentifier() for part in parts):
        return None
    spec = importlib.util.find_spec(parts[0]) if parts[0] != "__main__" else None
    origins = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    top = Path(folder, parts[0]).resolve()
    if any(Path(origin).resolve() in (top, top.with_suffix(".py")) for origin in origins if origin):
        return None
    path = Path(folder, *parts).absolute()
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((f"{file}:{name}" for file in files if file.is_file()), None)


# ---- Importing without a command line, input or output


@contextlib.contextmanager
def _import_errors(setting: str, name: str) -> Iterator[None]:
    """Import the user's code within this context: any error there becomes one ConfigError."""
    try:
        with IMPORT_LOCK, _isolated_import(name):
            yield
    except CadreError as error:
        raise ConfigError(f"{setting}: {name} failed to load: {error}") from error
    except SystemExit as error:
        raise ConfigError(
            f"{setting}: {name} ends the program while it is loaded: SystemExit{error_location(error)}; expected a "
            'file that can be imported. Put what a script does under `if __name__ == "__main__":`.'
        ) from None
    except (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:
        # A module that does not exist at all is for the caller to report; one that it imports in vain is its error.
        missing = strip_namespaces(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        if missing and name.startswith(missing) and not name.endswith(".py"):
            raise
        # The file has been named already, so that `at line 3 of scoring.py` can do without it.
        location = re.sub(rf"(line \d+) of {re.escape(Path(name).name)}\b", r"\1", error_location(error))
        text = strip_namespaces(" ".join(str(error).split()))
        raise ConfigError(
            f"{setting}: {name} failed to load{location or ' at line ?'}: {type(error).__name__}: {text}. Fix the file."
        ) from None


@contextlib.contextmanager
def _isolated_import(name: str) -> Iterator[None]:
    """Import within this context without a command line and without input, and keep the output apart.

    Programs read what a command prints, so output at import is logged as a warning with its line. The descriptor is
    redirected as well, for extensions and child processes that write past `sys.stdout`.
    """
    argv, stdin = sys.argv, sys.stdin
    output = _ImportOutput()
    sys.argv, sys.stdin = _EmptyCommandLine([name]), io.StringIO()
    with tempfile.TemporaryFile() as descriptor_output:
        try:
            with contextlib.redirect_stdout(output), _redirect_descriptor(descriptor_output.fileno()):
                yield
        finally:
            sys.argv, sys.stdin = argv, stdin
            output.is_over = True
            descriptor_output.seek(0)
            text = output.getvalue() + descriptor_output.read(10 * MAX_OUTPUT_SHOWN).decode(errors="replace")
            if quoted := " ".join(text.split())[:MAX_OUTPUT_SHOWN]:
                log.warning(
                    "%s printed while it was loaded%s: %s. Expected no output, as programs read what a command prints; "
                    'put it under `if __name__ == "__main__":`, or log it.',
                    name,
                    output.location,
                    quoted.rstrip("."),
                )


class _EmptyCommandLine(list):
    """An empty `sys.argv` that argparse and optparse may not read: it would be the command line of cadre."""

    def __getitem__(self, index: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__")
        if isinstance(index, slice) and caller in ("argparse", "optparse"):
            raise ReadsCommandLine(
                "it reads the command line while it is loaded, which is that of cadre; expected settings of the "
                'recipe. Put that under `if __name__ == "__main__":`'
            )
        return super().__getitem__(index)


class ReadsCommandLine(Exception):
    """A file of the user that parses the command line while it is imported."""


class _ImportOutput(io.StringIO):
    """The output of a file while it is loaded.

    A handler of `logging` may keep the object for good: after the import it writes to the process's output.
    """

    def __init__(self) -> None:
        super().__init__()
        self.location, self.is_over = "", False

    def write(self, text: str) -> int:
        if self.is_over:
            return sys.stdout.write(text)
        if text.strip() and not self.location:
            # The innermost running line of the user's code: `, at line 3 of scoring.py`.
            frame = sys._getframe(1)
            while frame is not None and not is_user_module(str(frame.f_globals.get("__name__"))):
                frame = frame.f_back  # type: ignore[assignment]
            if frame is not None:
                self.location = f", at line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
        return super().write(text)

    def flush(self) -> None:
        if self.is_over:
            sys.stdout.flush()


@contextlib.contextmanager
def _redirect_descriptor(file: int) -> Iterator[None]:
    """Send the standard output of this process and of its children to a file within this context."""
    try:
        saved = os.dup(STDOUT)
    except OSError:
        yield  # the process has no output
        return
    try:
        os.dup2(file, STDOUT)
        yield
    finally:
        os.dup2(saved, STDOUT)
        os.close(saved)


# ---- Errors of the user's code in one paragraph


@contextlib.contextmanager
def describe_errors(subject: str, circumstances: str = "", advice: str = "Fix that line.") -> Iterator[None]:
    """Call the user's code within this context: an exception there becomes a ContractError about the `subject`.

    `circumstances` follows the error, such as the arguments of the call. Cadre's own errors pass.
    """
    try:
        yield
    except CadreError:
        raise
    except SystemExit as error:
        raise ContractError(
            f"{subject}: raised {describe_error(error)}, which would end the run{circumstances}; expected no exit. "
            "Return, or raise an error."
        ) from error
    except Exception as error:
        advice = "Fix that line." if _is_slip(error) else advice
        raise ContractError(
            f"{subject}: raised {describe_error(error)}{circumstances}; expected no error. {advice}"
        ) from error


def _is_slip(error: Exception) -> bool:
    """Return True for a name or an attribute that does not exist, which no input could mend. An attribute of None may
    be that of a match which the text does not have."""
    return isinstance(error, NameError | ImportError) or (isinstance(error, AttributeError) and error.obj is not None)


def describe_error(error: BaseException) -> str:
    """Return the error with the lines of the user's code that led to it, the innermost first.

    For example `KeyError: 'digit' at line 12 of my_file.py, in observe, called from line 30 of my_file.py, in step`.
    """
    text = strip_namespaces(" ".join(str(error).split()))
    return f"{type(error).__name__}{f': {text}' if text else ''}{error_location(error)}"


def error_location(error: BaseException) -> str:
    """Return ` at line 12 of my_file.py, in observe` with the lines that called it, or "" without a line of the user.

    If no file of the user is among the frames, the innermost line of a bundled environment stands for them.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f" at line {error.lineno} of {Path(error.filename).name}"
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    user_frames = [frame for frame in frames if is_user_file(frame.filename)]
    user_frames = user_frames or [frame for frame in frames if _is_environment_file(frame.filename)][:1]
    lines = [
        f"line {frame.lineno} of {Path(frame.filename).name}{'' if frame.name == '<module>' else f', in {frame.name}'}"
        for frame in user_frames
    ]
    if len(lines) > MAX_LINES_SHOWN:  # the innermost ones, and the call that all began with
        lines = [*lines[: MAX_LINES_SHOWN - 1], lines[-1]]
    return f" at {', called from '.join(lines)}" if lines else ""


def has_user_frames(error: BaseException) -> bool:
    """Return True if the error passed through a file that Cadre has loaded for the user."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    names = (frame.f_globals.get("__name__", "") for frame in frames)
    return any(isinstance(name, str) and is_user_module(name) for name in names)


def is_user_file(file: str) -> bool:
    """Return True if a file belongs neither to a library nor to Cadre."""
    path = Path(file).resolve()
    if file.startswith("<") or not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return False
    return not str(path).startswith((*LIBRARY_FOLDERS, *(f"{folder}/" for folder in OWN_FOLDERS)))


def _is_environment_file(file: str) -> bool:
    path = Path(file).resolve()
    bundled = INSTALL_FOLDER / "cadre_tasks"
    envs = INSTALL_FOLDER / "cadre" / "envs"
    if path.is_relative_to(bundled):
        return True
    return path.is_relative_to(envs) and not (path.parent == envs and path.name in ENV_CALLERS)
