"""Load code of the user that a setting names, and describe the errors it raises.

A setting names a function of a table, or `my_file.py:name` in a file of the user. The file runs in this process when it
is first needed, since it is the user's own code; programs that a model wrote never come here. Every error of such code
is reported as one paragraph with the lines of the user's files that led to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from pydantic import AfterValidator

import cadre
from cadre.errors import CadreError, ConfigError, ContractError, nearest
from cadre.file_limits import read_bytes
from cadre.settings.trust import OWN_PACKAGES, check_code

Function = TypeVar("Function", bound=Callable[..., Any])
log = logging.getLogger("cadre.settings")
# One import at a time, as imports change `sys.path` and the output of the whole process.
IMPORT_LOCK = threading.RLock()
# Settings whose function may be a coroutine.
AWAITED_SETTINGS = ("settings.run", "settings.reward", "settings.turn_reward", "reward")
# Lines of the user's files that are listed with an error.
MAX_LINES_SHOWN = 4

INSTALL_FOLDER = Path(cadre.__file__).parents[1].resolve()
OWN_FOLDERS = tuple(INSTALL_FOLDER / name for name in OWN_PACKAGES)
LIBRARY_FOLDERS = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib"))


# ---- Functions that a setting names

# Begins the reference of an object that no file has at its top, such as a function of a notebook's cell.
NOTEBOOK = "notebook:"
# What Python code passed where a setting names something in a file, by its reference.
_objects: dict[str, Any] = {}


def reference_to(value: Any, name: str) -> str:
    """Return the reference by which settings name an object of Python code, and keep the object for it. It is
    `FILE.py:NAME` for what stands at the top of a file of the user, `notebook:NAME` for anything else."""
    qualified, module = getattr(value, "__qualname__", ""), sys.modules.get(getattr(value, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    own_name = getattr(value, "__name__", name)
    reference = NOTEBOOK + (name if own_name == "<lambda>" else own_name)
    if file and is_user_file(file) and qualified.isidentifier():
        reference = f"{Path(file).resolve()}:{qualified}"
    _objects[reference] = value
    return reference


def sources_of(references: Iterable[str]) -> dict[str, str]:
    """Return the source of the objects of Python code among these references, as far as it is known; of data, a
    digest."""
    sources = {}
    for reference in references:
        if (value := _objects.get(reference)) is not None:
            try:
                sources[reference] = inspect.getsource(value)
            except (OSError, TypeError):
                is_data = isinstance(value, list | tuple | dict)  # the repr of another object may have an address
                digest = hashlib.sha256(repr(value).encode()).hexdigest() if is_data else ""
                sources[reference] = f"{type(value).__name__} {digest}"
    return sources


def find_object(setting: str, value: Any) -> Any:
    """Return the object that a reference names, from Python code or a file; any other value as it is. Raises
    ConfigError for an object of another process, and for a name that the file does not define."""
    if not isinstance(value, str):
        return value
    if value in _objects:
        return _objects[value]
    source, colon, name = value.rpartition(":")
    if value.startswith(NOTEBOOK):
        got = f"got {value}, which Python code passed to another process; expected the same object again"
        raise ConfigError(f"{setting}: {got}. Pass it: {setting.rpartition('.')[2]}={name}; or name FILE.py:NAME.")
    if not (colon and source.endswith(".py")):
        return value
    defined = vars(load_file(setting, Path(source)))
    if name not in defined:
        hint = nearest(name, defined)
        raise ConfigError(f"{setting}: {source} has no {name!r}; expected one that it defines. Fix the name.{hint}")
    return defined[name]


def load_function(setting: str, reference: str, table: Mapping[str, Function]) -> Function:
    """Return the function of `table`, or of the user's file, that the `setting` names.

    An exception in the user's function becomes a ContractError with the setting and their lines. Raises ConfigError for
    an unknown name, a file that is missing or fails to load, and a name that the file does not define.
    """
    if reference in table:
        return table[reference]
    function: Any = find_object(setting, reference)
    if function is reference:
        raise ConfigError(f"{setting}: got {reference!r}; expected {_expected_names(reference, table)}")
    if not callable(function):
        source, _, name = reference.rpartition(":")
        got = f"{source} has {name} as {type(function).__name__} and no function"
        raise ConfigError(f"{setting}: {got}; expected a function. Name one.")
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async and setting not in AWAITED_SETTINGS:
        got = f"{reference} is an async function, whose result would not be awaited"
        raise ConfigError(f"{setting}: {got}; expected a plain function. Write def in place of async def.")
    wrapped: Function = _with_described_errors(function, setting, reference)
    return wrapped


@lru_cache(maxsize=256)
def _with_described_errors(function: Any, setting: str, reference: str) -> Any:
    """Return the user's function with exceptions turned into ContractErrors. Classes and coroutines stay as they are.
    Cached, so that a function is the same object wherever it is loaded."""
    if inspect.isclass(function) or inspect.iscoroutinefunction(function):
        return function
    file, _, name = reference.rpartition(":")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with describe_errors(f"{setting}: {Path(file).name}:{name}"):
            return function(*args, **kwargs)

    return call


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

# Folders that the user's files are imported from; all are on `sys.path`.
_folders: list[str] = []
# The modules of the files that were named, by their paths.
_modules: dict[str, ModuleType] = {}
# When each imported file was last changed at its import, and when files were last looked at, in nanoseconds.
_changed_at: dict[str, int] = {}
_looked_at = time.time_ns()
# Number of runs in this process that continue with the files as they were at their beginning.
_frozen_count = 0


class _SourceLoader(SourceFileLoader):
    """Compiles the file in each process: the byte code of an edit within the same second would be the old one's."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_file(setting: str, path: Path) -> ModuleType:
    """Return the module of the user's file, imported as `python FILE.py` imports: its folder is first on `sys.path`.

    It runs once, and again when it or another of the user's files has changed. What it prints goes to stderr, since
    programs read what a command prints. Raises ConfigError for all that it raises, SystemExit included.
    """
    check_code(setting, path)
    try:
        read_bytes(path)
    except FileNotFoundError:
        raise ConfigError(f"{setting}: there is no file {path}; expected file.py:name. Fix the path.") from None
    except OSError as error:
        got = f"{str(path)!r} cannot be read ({error.strerror})"
        raise ConfigError(f"{setting}: {got}; expected file.py:name. Fix the path.") from None
    file = os.path.realpath(path)
    with IMPORT_LOCK:
        if not _frozen_count and _look_for_changes():
            _forget_modules(list(sys.modules))
            _modules.clear()
            _changed_at.clear()
        if file not in _modules:
            with _import_errors(setting, str(path)), contextlib.redirect_stdout(sys.stderr):
                _modules[file] = _import_file(file)
        return _modules[file]


def load_module(setting: str, name: str) -> ModuleType:
    """Return a module of an installed package by its name. Raises ImportError if there is none, and ConfigError for an
    exception in the module itself."""
    with _import_errors(setting, name):
        return importlib.import_module(name)


def _import_file(file: str) -> ModuleType:
    """Import a file: alone under its own name, or as a module of its package if there is an `__init__.py` beside it."""
    folder, stem = os.path.split(os.path.splitext(file)[0])
    name, top = stem, folder
    while os.path.isfile(os.path.join(top, "__init__.py")) and os.path.dirname(top) != top:
        top, package = os.path.split(top)
        name = f"{package}.{name}".removesuffix(".__init__")
    # Imports find first what lies beside the file or its package, and last what lies in the working folder: only if the
    # file lies below it, as it may be a stranger's.
    working = os.path.realpath(os.getcwd())
    last = [folder, working] if folder.startswith(f"{working}{os.sep}") else [folder]
    sys.path[:] = [top, *(entry for entry in sys.path if entry != top)]
    sys.path += [entry for entry in last if entry not in sys.path]
    _folders.extend(entry for entry in (top, *last) if entry not in _folders)
    importlib.invalidate_caches()
    _make_room(top, name.partition(".")[0])
    loaded = set(sys.modules)
    try:
        if (module := sys.modules.get(name)) is None and top != folder:
            module = importlib.import_module(name)
        elif module is None:
            spec = importlib.util.spec_from_file_location(name, file, loader=_SourceLoader(name, file))
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except BaseException:
        # A neighbour that was imported would keep classes of the module that was not.
        _forget_modules([name for name in sys.modules if name not in loaded])
        raise
    _look_for_changes()
    return module


def _make_room(folder: str, module: str) -> None:
    """Forget modules that come from other folders of the user and have the name of one in this folder. Raises
    ConfigError if a library's module has the name of the file itself."""
    entries = set(os.listdir(folder))
    for name, loaded in list(sys.modules.items()):
        top, file = name.partition(".")[0], getattr(loaded, "__file__", None)
        if entries.isdisjoint((top, f"{top}.py")) or not file:
            continue
        path = os.path.join(folder, top)
        if _lies_at(path, file) or _lies_at(path, os.path.realpath(file)):
            continue
        if is_user_module(name):
            text = "%s: takes the place of %s, which has the same module name. Rename one of them if a run uses both."
            log.warning(text, path, file)
            del sys.modules[name]
        elif top == module:
            raise ConfigError(f"{top} is the name of a module of Python's too, {file}; expected another. Rename it.")


def _lies_at(path: str, file: str) -> bool:
    return file == f"{path}.py" or file.startswith(f"{path}{os.sep}")


def is_user_module(name: str) -> bool:
    """Return True if a module was imported from a folder of the user's files."""
    file = getattr(sys.modules.get(name), "__file__", None)
    prefixes = _prefixes(name.partition(".")[0], tuple(_folders))
    return isinstance(file, str) and file.startswith(prefixes) and is_user_file(file)


@lru_cache(maxsize=10_000)  # each import of a user's file asks this of thousands of modules
def _prefixes(top: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return how the files of a module or a package begin, if it is in one of these folders."""
    return tuple(os.path.join(folder, f"{top}{end}") for folder in folders for end in (".py", os.sep))


def _look_for_changes() -> bool:
    """Return True if one of the user's files is no longer what it was when it was imported."""
    global _looked_at
    looked_at, _looked_at = _looked_at, time.time_ns()
    files = {str(sys.modules[name].__file__) for name in list(sys.modules) if is_user_module(name)}
    has_changed = False
    for file in files | set(_changed_at):
        try:
            changed_at = os.stat(file).st_mtime_ns
        except OSError:
            return True
        # A function may have imported the file since: then it counts as changed if it is newer than the last look.
        has_changed |= changed_at > looked_at if file not in _changed_at else changed_at != _changed_at[file]
        _changed_at.setdefault(file, changed_at)
    return has_changed


def _forget_modules(names: Iterable[str]) -> None:
    """Remove the user's modules among these, so that the next import runs them again."""
    for name in [name for name in names if is_user_module(name)]:
        del sys.modules[name]


def freeze_files() -> None:
    """Import no changed file again in this process, which serves one run."""
    global _frozen_count
    _frozen_count += 1


@contextlib.contextmanager
def frozen_files() -> Iterator[None]:
    """Import no changed file again within this context, so that a run goes on with the code it began with."""
    global _frozen_count
    freeze_files()
    try:
        yield
    finally:
        _frozen_count -= 1


@contextlib.contextmanager
def _import_errors(setting: str, name: str) -> Iterator[None]:
    """Import the user's code within this context: any error there becomes one ConfigError."""
    try:
        yield
    except CadreError as error:
        raise ConfigError(f"{setting}: {name} failed to load: {error}") from error
    except SystemExit as error:
        got = f"{name} ends the program while it is loaded: SystemExit{error_location(error)}"
        advice = 'Put what a script does under `if __name__ == "__main__":`.'
        raise ConfigError(f"{setting}: {got}; expected a file that can be imported. {advice}") from None
    except (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:
        # A module that does not exist at all is for the caller to report; one that it imports in vain is its error.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and name.startswith(missing) and not name.endswith(".py"):
            raise
        # The file has been named already, so that `at line 3 of scoring.py` can do without it.
        location = re.sub(rf"(line \d+) of {re.escape(Path(name).name)}\b", r"\1", error_location(error))
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"{setting}: {name} failed to load{location}: {text}. Fix the file.") from None


# ---- Errors of the user's code in one paragraph


@contextlib.contextmanager
def describe_errors(subject: str, circumstances: str = "", advice: str = "Fix that line.") -> Iterator[None]:
    """Call the user's code within this context: an exception there becomes a ContractError about the `subject`.
    `circumstances` follows the error, such as the arguments of the call. Cadre's own errors pass."""
    try:
        yield
    except CadreError:
        raise
    except SystemExit as error:
        got = f"raised {describe_error(error)}, which would end the run{circumstances}"
        raise ContractError(f"{subject}: {got}; expected no exit. Return, or raise an error.") from error
    except Exception as error:
        # A name that does not exist is no matter of the input; an attribute of None may be that of a failed match.
        is_slip = isinstance(error, AttributeError) and error.obj is not None
        advice = "Fix that line." if is_slip or isinstance(error, NameError | ImportError) else advice
        got = f"raised {describe_error(error)}{circumstances}"
        raise ContractError(f"{subject}: {got}; expected no error. {advice}") from error


def describe_error(error: BaseException) -> str:
    """Return the error with the lines of the user's code that led to it, the innermost first. For example
    `KeyError: 'digit' at line 12 of my_file.py, in observe, called from line 30 of my_file.py, in step`."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}{error_location(error)}"


def error_location(error: BaseException) -> str:
    """Return ` at line 12 of my_file.py, in observe` with the lines that called it, or "" without a line of the
    user."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f" at line {error.lineno} of {Path(error.filename).name}"
    return describe_frames(traceback.extract_tb(error.__traceback__))


def describe_frames(stack: traceback.StackSummary) -> str:
    """Return the user's lines of a stack as `error_location` does."""
    frames = [frame for frame in stack[::-1] if is_user_file(frame.filename)]
    # Without a line of the user, the innermost one of a bundled environment.
    frames = frames or [frame for frame in stack[::-1] if "cadre_tasks" in Path(frame.filename).parts][:1]
    lines = []
    for frame in frames:
        path, function = Path(frame.filename), "" if frame.name == "<module>" else f", in {frame.name}"
        # The file of a cell has a number for a name, so the line itself is quoted.
        in_cell = path.parent.name.startswith("ipykernel_")
        lines.append(f"line {frame.lineno} of {f'the cell ({frame.line})' if in_cell else path.name}{function}")
    if len(lines) > MAX_LINES_SHOWN:  # the innermost ones, and the call that all began with
        lines = [*lines[: MAX_LINES_SHOWN - 1], lines[-1]]
    return f" at {', called from '.join(lines)}" if lines else ""


def has_user_frames(error: BaseException) -> bool:
    """Return True if the error passed through a file that Cadre has loaded for the user."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(file.startswith(f"{folder}{os.sep}") and is_user_file(file) for file in files for folder in _folders)


def is_user_file(file: str) -> bool:
    """Return True if a file belongs neither to a library nor to Cadre."""
    return not file.startswith("<") and _is_user_path(os.path.abspath(file))


@lru_cache(maxsize=10_000)  # each import of a user's file asks this of the modules of its working folder
def _is_user_path(file: str) -> bool:
    path = Path(file).resolve()
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return False
    return not str(path).startswith((*LIBRARY_FOLDERS, *(f"{folder}/" for folder in OWN_FOLDERS)))
