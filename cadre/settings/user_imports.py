"""Import a file of the user so that it finds the modules beside it, and no library finds them by accident.

Every folder with user files is a package of its own, such as `cadre_user_1a2b3c4d`, whose modules import each other by
their plain names, as a script does. `sys.path` stays as it is: a file `types.py` or `datasets.py` beside the user's is
never imported by a library, and two folders may each have a `scoring.py`. The name of the package depends on the folder
alone, so that another process which has loaded the same file finds the same classes by name (pickle).

Imports the standard library only: the processes that start the user's programs load this file by its path.
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
# Hexadecimal digits of the folder's hash in the name of its package.
HASH_DIGITS = 8
# The packages of this distribution: their modules are never taken for the user's.
OWN_PACKAGES = ("cadre", "cadre_analysis", "cadre_programs", "cadre_ray", "cadre_sandbox", "cadre_tasks")
# Python 3.9 has no list of all its modules.
STDLIB_MODULES = getattr(sys, "stdlib_module_names", frozenset(sys.builtin_module_names))
# Files that mark the top folder of a project.
PROJECT_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
# Environment variable that tells processes spawned by the user's code which folders the packages stand for.
FOLDERS_VARIABLE = "CADRE_USER_FOLDERS"
# Modules that import a module by a name that they are given.
IMPORTS_BY_NAME = ("importlib", "pydoc", "pkgutil", "pickle", "_pickle")

# Number of runs in this process that go on with the files as they were at their beginning.
_frozen_count = 0


# ---- Import a file, and again when it has changed


def import_file(path: str) -> ModuleType:
    """Return the module of the user's file; import it again if it or an imported neighbour has changed since."""
    path = os.path.realpath(path)
    if FOLDER_FINDER not in sys.meta_path:
        _install_finders()
    folder, parts = _split_package(path)
    package = _make_package(folder)
    name = ".".join([package, *parts])
    if _has_changed(package):
        _unload(package)
    if name in sys.modules:
        return sys.modules[name]
    importlib.invalidate_caches()
    try:
        if len(parts) > 1 and _imports_own_package(path, parts[0]):
            return importlib.import_module(name)  # runs the package's __init__.py first
        # Otherwise the file is loaded by itself: it does not need its package's __init__.py.
        spec = importlib.util.spec_from_file_location(name, path, loader=UserLoader(name, path))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return sys.modules[name]
    except BaseException:
        _unload(package)  # a neighbour that loaded would keep classes of the module that did not
        raise


def loaded_module(path: str) -> ModuleType | None:
    """Return the module of a file if it is imported and neither it nor a neighbour has changed since."""
    if "\0" in path:
        return None
    folder, parts = _split_package(os.path.realpath(path))
    package = _make_package(folder)
    module = sys.modules.get(".".join([package, *parts]))
    return None if module is None or _has_changed(package) else module


@contextlib.contextmanager
def frozen_files() -> Iterator[None]:
    """Import no changed file again within this context, so that a run goes on with the code it began with."""
    global _frozen_count
    _frozen_count += 1
    try:
        yield
    finally:
        _frozen_count -= 1


def freeze_files() -> None:
    """Import no changed file again in this process, which serves one run."""
    global _frozen_count
    _frozen_count += 1


def is_user_module(name: str) -> bool:
    """Return True if a module of this name is a file of the user."""
    return name.startswith(PREFIX)


def strip_namespaces(text: str) -> str:
    """Return a text, such as an error, with modules under the names that the user gave them."""
    while PREFIX in text:
        start = text.index(PREFIX)
        end = start + len(PREFIX) + HASH_DIGITS
        text = text[:start] + text[end:].removeprefix(".")
    return text


def _has_changed(package: str) -> bool:
    """Return True if an imported file of the folder is no longer what it was when it was imported."""
    if _frozen_count:
        return False
    for name, module in list(sys.modules.items()):
        changed_at = getattr(module, "__cadre_changed__", None) if name.startswith(f"{package}.") else None
        if changed_at is not None:
            try:
                if os.stat(module.__file__).st_mtime_ns != changed_at:  # type: ignore[arg-type]
                    return True
            except OSError:
                return True
    return False


def _unload(package: str) -> None:
    """Remove the modules of a folder, under all their names, so that the next import runs them again."""
    modules = {id(module) for name, module in list(sys.modules.items()) if name.startswith(f"{package}.")}
    for name, module in list(sys.modules.items()):
        if id(module) in modules:
            del sys.modules[name]
    _find_neighbour.cache_clear()


# ---- Packages that stand for folders


def _split_package(path: str) -> tuple[str, list[str]]:
    """Return (folder, parts): the folder above a file's outermost package, and the parts of its module name there."""
    folder, file = os.path.split(path)
    parts = [os.path.splitext(file)[0]]
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    return (folder, parts[:-1]) if parts[-1] == "__init__" else (folder, parts)


def _package_name(folder: str) -> str:
    return PREFIX + hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:HASH_DIGITS]


def _make_package(folder: str) -> str:
    """Return the name of the package that stands for a folder; create the package if there is none."""
    name = _package_name(folder)
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [folder]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
        folders = os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)
        if folder not in folders:
            os.environ[FOLDERS_VARIABLE] = os.pathsep.join([*filter(None, folders), folder])
    return name


def _imports_own_package(path: str, package: str) -> bool:
    """Return True if a file of a package imports from that package, which then has to be imported first."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (SyntaxError, ValueError):
        return False  # the import reports it with its line
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == package):
            return True
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == package for alias in node.names):
            return True
    return False


# ---- Finders and loaders


class UserLoader(SourceFileLoader):
    """Run a user's file with an `import` that looks beside the file first.

    The source is compiled in each process: no `__pycache__` appears in the user's folder, and none is read there, which
    would hide an edit of equal length within the same second.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _make_import(module)}
        module.__dict__["__cadre_changed__"] = os.stat(self.path).st_mtime_ns
        super().exec_module(module)


class FolderFinder:
    """Find the packages that stand for folders, and the modules below them, before Python's own finder does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not is_user_module(name):
            return None
        if path is None:
            # The process that spawned this one has imported from the folder and pickled names of its modules.
            for folder in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep):
                if folder and name == _package_name(folder):
                    spec = ModuleSpec(name, None, is_package=True)
                    spec.submodule_search_locations = [folder]
                    return spec
            return None
        module_spec = PathFinder.find_spec(name, path, target)
        if module_spec is not None and type(module_spec.loader) is SourceFileLoader:
            module_spec.loader = UserLoader(name, module_spec.loader.path)
        return module_spec


class NeighbourFinder:
    """Find a neighbour that `importlib.import_module` is asked for, by the user's file or by a library that it calls.

    Comes last in `sys.meta_path`: it finds only what nothing else does.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        importer = _importing_module() if path is None else None
        package = None if importer is None else _find_neighbour(importer, name)
        if package is None:
            return None
        return ModuleSpec(name, AliasLoader(importlib.import_module(f"{package}.{name}")))


class AliasLoader(Loader):
    """Give a module that is imported already its plain name beside its full one."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


FOLDER_FINDER, NEIGHBOUR_FINDER = FolderFinder(), NeighbourFinder()


def _install_finders() -> None:
    sys.meta_path.insert(0, FOLDER_FINDER)  # type: ignore[arg-type]
    sys.meta_path.append(NEIGHBOUR_FINDER)  # type: ignore[arg-type]


def _importing_module() -> str | None:
    """Return the name of the user's module that asked for the import in progress, from the frames of the stack.

    The `import` statement of a library asks for no module of the user. A library that imports by a name it was given
    does so for the user's module that called it.
    """
    frame: Any = sys._getframe(2)
    by_name = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if is_user_module(name) and name != __name__:
            return name
        is_import_machinery = "importlib._bootstrap" in frame.f_code.co_filename or name == __name__
        by_name = by_name or (name in IMPORTS_BY_NAME and frame.f_code.co_name != "find_spec")
        if not is_import_machinery and not by_name:
            return None
        frame = frame.f_back
    return None


# ---- The `import` of the user's modules


def _make_import(module: ModuleType) -> Any:
    """Return the `__import__` of one of the user's modules: its neighbours first, then Python's own."""

    def import_neighbour(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        top = name.partition(".")[0]
        package = None if level else _find_neighbour(module.__name__, top)
        if package is None or (top in STDLIB_MODULES and not _hides_library(name, fromlist, package)):
            return builtins.__import__(name, globals, locals, fromlist, level)
        if fromlist:
            return builtins.__import__(f"{package}.{name}", globals, locals, fromlist, 0)
        importlib.import_module(f"{package}.{name}")
        return sys.modules[f"{package}.{top}"]

    return import_neighbour


def _hides_library(name: str, fromlist: Any, package: str) -> bool:
    """Return True if the neighbour is meant although the standard library has a module of its name.

    That is so only if the import names something that the library's module does not have; otherwise the user gets a
    warning, since the neighbour is out of reach.
    """
    try:
        library = builtins.__import__(name, {}, {}, tuple(fromlist or ()), 0)
    except ImportError:
        return True
    if fromlist and not all(attribute == "*" or hasattr(library, attribute) for attribute in fromlist):
        return True
    file = os.path.join(sys.modules[package].__path__[0], name.partition(".")[0])
    warnings.warn(
        f"{file}: has the name of a module of the standard library, which `import {name}` means; rename it to import "
        "it.",
        stacklevel=3,
    )
    return False


@functools.cache
def _find_neighbour(importer: str, top: str) -> str | None:
    """Return the package below which a module of the user finds what it calls `top`, or None if that is no neighbour.

    The order of the search: modules beside the outermost package and beside the file, the folders above it of that name
    and its project; then all that Python finds itself; last, folders without __init__.py, as Python ranks them too.
    """
    if top in OWN_PACKAGES or is_user_module(top):
        return None
    file = getattr(sys.modules.get(importer), "__file__", None)
    search = [*sys.modules[importer.split(".")[0]].__path__]
    namespace_search = list(search)
    if file is not None:
        folder = os.path.dirname(file)
        namespace_search.append(folder)
        above = _parents(folder)
        marked = [path for path in above if any(os.path.exists(os.path.join(path, mark)) for mark in PROJECT_MARKERS)]
        working = os.path.realpath(os.getcwd())
        search += [folder, *_folders_above(folder, top), *marked[:1]]
        # The working folder counts where the file lies below it, unless it is the root of the file system.
        search += [working] if working in above and working != os.path.dirname(working) else []
    for path in dict.fromkeys(search):
        module = os.path.join(path, top)
        if os.path.isfile(f"{module}.py") or os.path.isfile(os.path.join(module, "__init__.py")):
            return _make_package(path)
    if top in sys.modules or top in sys.builtin_module_names or PathFinder.find_spec(top) is not None:
        return None
    for path in dict.fromkeys([*namespace_search, *_folders_above(namespace_search[-1], top)]):
        if os.path.isdir(os.path.join(path, top)):
            return _make_package(path)
    return None


def _folders_above(folder: str, top: str) -> list[str]:
    """Return the parents of the folders called `top` that contain `folder`, so that `top` can import itself by name."""
    return [os.path.dirname(path) for path in _parents(folder) if os.path.basename(path) == top]


def _parents(folder: str) -> list[str]:
    """Return the folder and all folders that contain it, the innermost first."""
    folders = [folder]
    while os.path.dirname(folders[-1]) != folders[-1]:
        folders.append(os.path.dirname(folders[-1]))
    return folders


if os.environ.get(FOLDERS_VARIABLE):
    _install_finders()  # this process was spawned by the user's code
