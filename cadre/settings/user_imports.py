"""How a file of the user's is imported: it finds its neighbours, and nothing else does.

Every folder of user files is a package of its own, `cadre_user_1a2b3c4d`, whose modules import what lies beside them
by its plain name, as a script would. `sys.path` stays as it is, so that a neighbour called `types.py` or `datasets.py`
is never imported by a library, and two folders may each have a `scoring.py`. The names depend on the folder alone:
another process that has loaded the same file finds the same classes by them.

The standard library alone is imported here, as processes that start the user's programs load this file, too.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

PREFIX = "cadre_user_"
# The packages of this distribution: their modules are never taken for the user's.
OWN = ("cadre", "cadre_tasks", "cadre_sandbox")
# Python 3.9 does not list its modules.
LIBRARY = getattr(sys, "stdlib_module_names", frozenset(sys.builtin_module_names))
# Files that mark the folder above which nothing of a project lies.
OF_PROJECTS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


# Tells the processes that the user's code spawns which folders the packages stand for.
FOLDERS = "CADRE_USER_FOLDERS"
# Modules whose functions import what they are given the name of.
BY_NAME = ("importlib", "pydoc", "pkgutil", "pickle", "_pickle")
# How many runs use the files as they were when they began.
_held = [0]


@contextlib.contextmanager
def files_held() -> Iterator[None]:
    """Within it a file that changes is not imported again: a run goes on with what it began with."""
    _held[0] += 1
    try:
        yield
    finally:
        _held[0] -= 1


def hold_files() -> None:
    """Let a process that serves one run go on with the files as they were when it began."""
    _held[0] += 1


def loaded_file(path: str) -> ModuleType | None:
    """Return the module of a file that is imported, and has not changed since nor has a neighbour; None otherwise."""
    if "\0" in path:
        return None
    folder, parts = _package_of(os.path.realpath(path))
    name = ".".join([_namespace(folder), *parts])
    module = sys.modules.get(name)
    return None if module is None or _has_changed(name) else module


def import_file(path: str) -> ModuleType:
    """Import the user's file once, and again where it, or a neighbour that it has imported, has changed since."""
    path = os.path.realpath(path)
    _install()
    folder, parts = _package_of(path)
    name = ".".join([_namespace(folder), *parts])
    if _has_changed(name):
        _forget(_namespace(folder))
    if name in sys.modules:
        return sys.modules[name]
    importlib.invalidate_caches()
    try:
        if len(parts) > 1 and _imports_its_package(path, parts[0]):
            return importlib.import_module(name)
        return _load(importlib.util.spec_from_file_location(name, path, loader=UserLoader(name, path)))
    except BaseException:
        _forget(_namespace(folder))  # a neighbour that was whole would keep classes of the module that was not
        raise


def is_user_module(name: str) -> bool:
    """Return whether a module of this name is a file of the user's."""
    return name.startswith(PREFIX)


def plain_name(text: str) -> str:
    """Return a text, such as an error, with modules under the names that the user gave them."""
    while PREFIX in text:
        start = text.index(PREFIX)
        end = start + len(PREFIX) + 8
        text = text[:start] + text[end:].removeprefix(".")
    return text


class UserLoader(SourceFileLoader):
    """Runs a user's file with an `import` that looks beside it first.

    The source is compiled anew in each process: no `__pycache__` appears in the user's folder, and none is read there,
    which would hide an edit of equal length within the same second.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import_for(module)}
        module.__dict__["__cadre_changed__"] = os.stat(self.path).st_mtime_ns
        super().exec_module(module)


class _OfFolders:
    """Finds modules below the package of a folder, before Python's own finder does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not is_user_module(name):
            return None
        if path is None:
            return _spec_of_folder(name)
        found = PathFinder.find_spec(name, path, target)
        if found is not None and type(found.loader) is SourceFileLoader:
            found.loader = UserLoader(name, found.loader.path)
        return found


def _spec_of_folder(name: str) -> ModuleSpec | None:
    """The package of a folder that the process which spawned this one has imported from, as it pickles its names."""
    for folder in os.environ.get(FOLDERS, "").split(os.pathsep):
        if folder and name == _name_of_folder(folder):
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [folder]
            return spec
    return None


class _OfNeighbours:
    """Finds neighbours that are asked for by `importlib.import_module`, by the user's file or by a library that it
    calls, where nothing else does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        asking = _asking_module() if path is None else None
        package = None if asking is None else _neighbour(asking, name)
        if package is None:
            return None
        return ModuleSpec(name, _Same(importlib.import_module(f"{package}.{name}")))


class _Same(Loader):
    """Gives a module that is imported already its plain name beside its own."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


FIRST, LAST = _OfFolders(), _OfNeighbours()


def _install() -> None:
    if FIRST not in sys.meta_path:
        sys.meta_path.insert(0, FIRST)  # type: ignore[arg-type]
        sys.meta_path.append(LAST)  # type: ignore[arg-type]


def _asking_module() -> str | None:
    """The name of the user's module that asked for an import, from the calls that led here. A library's own `import`
    asks for none of the user's; where it imports a name that it was given, the user's module that called it does."""
    frame: Any = sys._getframe(2)
    by_name = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if is_user_module(name) and name != __name__:
            return name
        is_python = "importlib._bootstrap" in frame.f_code.co_filename or name == __name__
        by_name = by_name or (name in BY_NAME and frame.f_code.co_name != "find_spec")
        if not is_python and not by_name:
            return None
        frame = frame.f_back
    return None


def _name_of_folder(folder: str) -> str:
    return PREFIX + hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:8]


def _namespace(folder: str) -> str:
    """The package whose modules are those of the folder, made where there is none."""
    name = _name_of_folder(folder)
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [folder]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
        known = os.environ.get(FOLDERS, "").split(os.pathsep)
        if folder not in known:
            os.environ[FOLDERS] = os.pathsep.join([*filter(None, known), folder])
    return name


def _package_of(path: str) -> tuple[str, list[str]]:
    """The folder that a file is imported from, and its name there: that of its outermost package."""
    folder, file = os.path.split(path)
    parts = [os.path.splitext(file)[0]]
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    return (folder, parts[:-1]) if parts[-1] == "__init__" else (folder, parts)


def _imports_its_package(path: str, package: str) -> bool:
    """Whether a file of a package imports from it, so that the package has to be imported first."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (SyntaxError, ValueError):
        return False  # which importing it says with the line
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == package):
            return True
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == package for alias in node.names):
            return True
    return False


def _load(spec: ModuleSpec | None) -> ModuleType:
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    return sys.modules[spec.name]


def _has_changed(name: str) -> bool:
    """Whether the file, or another of its folder that is imported, is no longer what it was."""
    if _held[0]:
        return False
    package = name.split(".")[0]
    for each, module in list(sys.modules.items()):
        changed_at = getattr(module, "__cadre_changed__", None) if each.startswith(f"{package}.") else None
        if changed_at is not None:
            try:
                if os.stat(module.__file__).st_mtime_ns != changed_at:  # type: ignore[arg-type]
                    return True
            except OSError:
                return True
    return False


def _forget(package: str) -> None:
    """Import the modules of a folder anew when they are next asked for."""
    gone = {id(module): None for name, module in list(sys.modules.items()) if name.startswith(f"{package}.")}
    for name, module in list(sys.modules.items()):
        if id(module) in gone:
            del sys.modules[name]
    _neighbour.cache_clear()


def _import_for(module: ModuleType) -> Any:
    """The `import` of one of the user's modules."""

    def import_beside(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        package = None if level else _neighbour(module.__name__, name.partition(".")[0])
        if package is not None and _is_theirs(name, fromlist, package):
            if fromlist:
                return builtins.__import__(f"{package}.{name}", globals, locals, fromlist, 0)
            importlib.import_module(f"{package}.{name}")
            return sys.modules[f"{package}.{name.partition('.')[0]}"]
        return builtins.__import__(name, globals, locals, fromlist, level)

    return import_beside


@functools.cache
def _neighbour(asking: str, top: str) -> str | None:
    """The package below which a module of the user's finds what it calls `top`; None for what is no neighbour."""
    if top in OWN or is_user_module(top):
        return None
    file = getattr(sys.modules.get(asking), "__file__", None)
    folders = [*sys.modules[asking.split(".")[0]].__path__]
    bare = list(folders)
    if file is not None:
        own = os.path.dirname(file)
        above = _above(own)
        # A folder of files without __init__.py that import each other by its name.
        folders += [own, *(os.path.dirname(each) for each in above if os.path.basename(each) == top)]
        folders += _project(above)
        bare += [own]
    for folder in dict.fromkeys(folders):
        if _is_module(folder, top):
            return _namespace(folder)
    if top in sys.modules or top in sys.builtin_module_names or PathFinder.find_spec(top) is not None:
        return None
    for folder in dict.fromkeys([*bare, *(os.path.dirname(e) for e in _above(bare[-1]) if os.path.basename(e) == top)]):
        if os.path.isdir(os.path.join(folder, top)):  # a package without __init__.py, which counts least, as in Python
            return _namespace(folder)
    return None


def _above(folder: str) -> list[str]:
    """The folder and those that it lies in, the innermost first."""
    found = [folder]
    while os.path.dirname(found[-1]) != found[-1]:
        found.append(os.path.dirname(found[-1]))
    return found


def _project(above: list[str]) -> list[str]:
    """The folder of the project that a file is part of, and the current one where it is below that."""
    marked = [each for each in above if any(os.path.exists(os.path.join(each, mark)) for mark in OF_PROJECTS)]
    here = os.path.realpath(os.getcwd())
    return [*marked[:1], *([here] if here in above and here != os.path.dirname(here) else [])]


def _is_module(folder: str, top: str) -> bool:
    return os.path.isfile(os.path.join(folder, f"{top}.py")) or os.path.isfile(os.path.join(folder, top, "__init__.py"))


def _is_theirs(name: str, fromlist: Any, package: str) -> bool:
    """Whether the neighbour is meant where the standard library has a module of its name: only where names are asked
    for that the library does not have."""
    top = name.partition(".")[0]
    if top not in LIBRARY:
        return True
    try:
        library = builtins.__import__(name, {}, {}, tuple(fromlist or ()), 0)
    except ImportError:
        return True
    if fromlist and not all(each == "*" or hasattr(library, each) for each in fromlist):
        return True
    file = os.path.join(sys.modules[package].__path__[0], top)
    warnings.warn(
        f"{file}: has the name of a module of the standard library, which `import {name}` means; rename it to import "
        "it.",
        stacklevel=3,
    )
    return False


if os.environ.get(FOLDERS):
    _install()  # a process that the user's code has spawned
