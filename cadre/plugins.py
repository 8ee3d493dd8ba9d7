"""Entry points of installed packages: environments, recipes, embedded models, and a sandbox for programs.

A package declares them as entry points in its pyproject.toml; `cadre_tasks` does the same. For example

    [project.entry-points."cadre.environments"]
    my-task = "my_package.my_task:MyTask"       # then `env: my-task` works, and `cadre list` shows it

    [project.entry-points."cadre.recipes"]
    my_package = "my_package.recipes"           # a folder of YAML files; groups.yml in it groups names in `cadre list`

    [project.entry-points."cadre.models"]
    tiny = "my_package.models.tiny"             # a folder with a model; `model: tiny`. If it has read some tasks only,
                                                # trained_on.json in it names them: {"environments": ["my-task"],
                                                # "settings": {}}; others get a warning

    [project.entry-points."cadre.sandbox"]
    default = "my_package.sandbox"              # a module with the functions of `ProgramSandbox`

    [project.entry-points."cadre.commands"]
    my_package = "my_package.commands:COMMANDS"     # functions for typer by name, by panel of `cadre --help`

    [project.entry-points."cadre.cluster"]
    default = "my_package.cluster:Cluster"      # a class with the methods of `ActorCluster`, for the section `cluster`

Names of packages are read here and nothing is imported, except for the sandbox and the cluster, which are imported on
first use, and the commands, which `cadre` imports at its start.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, distribution, entry_points
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import unquote, urlsplit

from cadre.errors import ConfigError
from cadre.file_limits import read_json


class ProgramSandbox(Protocol):
    """The interface of a module that runs the programs of models for the environments of this process."""

    configure: Callable[..., None]  # configure(level, cgroup=...): choose the confinement, before the first program
    record: Callable[[], dict[str, Any]]  # how programs are confined, for the run's record of its environment
    table: Callable[[], Iterable[Any]]  # rows (name, given, detail) of what this machine can give


@functools.cache
def environments() -> dict[str, str]:
    """Return `module:Class` by name of every environment that an installed package declares."""
    return {name: point.value for name, point in _declared("cadre.environments").items()}


@functools.cache
def distributions() -> dict[str, str]:
    """Return the distribution of each environment, by the environment's name."""
    points = _declared("cadre.environments")
    return {name: point.dist.name if point.dist else "" for name, point in points.items()}


@functools.cache
def recipe_folders() -> dict[Path, str]:
    """Return the folders of recipes, each with its distribution."""
    points = _declared("cadre.recipes").values()
    return {_folder(point): point.dist.name if point.dist else "" for point in points}


@functools.cache
def embedded_models() -> dict[str, Path]:
    """Return the folders of embedded models, by name."""
    return {name: _folder(point) for name, point in _declared("cadre.models").items()}


@functools.cache
def trained_on(model: str) -> Mapping[str, Any] | None:
    """Return the only `environments`, and their `settings`, whose texts an embedded model was trained on; None for
    other models and if its folder does not say."""
    folder = embedded_models().get(model)
    if folder is None or not (folder / "trained_on.json").is_file():
        return None
    record: Mapping[str, Any] = read_json(folder / "trained_on.json")
    return record


@functools.cache
def program_sandbox() -> ProgramSandbox | None:
    """Return the module that runs programs of models, or None if no package has one."""
    point = next(iter(_declared("cadre.sandbox").values()), None)
    return None if point is None else cast(ProgramSandbox, point.load())


def configure_sandbox(level: str, cgroup: str) -> None:
    """Configure the confinement of programs of models in this process; without a sandbox do nothing."""
    if (sandbox := program_sandbox()) is not None:
        sandbox.configure(level, cgroup=cgroup)


def command_packages() -> list[dict[str, dict[str, Callable[..., None]]]]:
    """Return the commands of installed packages: functions for typer by name, by panel of `cadre --help`."""
    return [point.load() for point in _declared("cadre.commands").values()]


@functools.cache
def component(kind: str) -> Any:
    """Return what an installed package has as `cadre.KIND`: `cluster` is the class that runs samplers, learners and
    environments in other processes, `tinker` serves a model to Tinker's client. Raises ConfigError if none has it."""
    point = next(iter(_declared(f"cadre.{kind}").values()), None)
    if point is None:
        raise ConfigError(f"{kind}: no installed package has it; expected one. Install cadre-rl anew, or leave it out.")
    return point.load()


def _declared(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Raises ConfigError if two packages declare different ones."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        first = points.setdefault(point.name, point)
        if first.value != point.value:
            got = f"got {first.value} and {point.value} from two installed packages"
            raise ConfigError(f"{point.name!r} in {group}: {got}; expected one. Uninstall one of the packages.")
    return dict(sorted(points.items()))


def _folder(point: EntryPoint) -> Path:
    """Return the folder of an entry point `package.folder`."""
    spec = importlib.util.find_spec(point.value)
    if spec is None or not spec.submodule_search_locations:
        got = f"got {point.value}, which is no folder of an installed package"
        raise ConfigError(f"{point.name!r} in {point.group}: {got}; expected one. Install the package anew.")
    return Path(next(iter(spec.submodule_search_locations)))


# ---- Optional packages

DISTRIBUTION = "cadre-rl"


def install_command(*extras: str) -> str:
    """Return the command that adds extras to this installation: from the index, or from the checkout, the wheel or the
    repository that it was installed from."""
    names = f"[{','.join(extras)}]"
    origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if origin.get("dir_info", {}).get("editable"):
        requirement = f"-e {shlex.quote(unquote(urlsplit(url).path) + names)}"
    else:
        address = f" @ {'git+' if 'vcs_info' in origin else ''}{url}" if url else ""
        requirement = shlex.quote(f"{DISTRIBUTION}{names}{address}")
    return f"{shlex.quote(sys.executable or 'python')} -m pip install {requirement}"


def package(module: str, extra: str = "", where: str = "") -> Any:
    """Return the module of an optional package. Raises ConfigError, with the command that installs it or the extra that
    has it, if it is missing. `where` names what needs it, `env: EXTRA` by default."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name, command = module.partition(".")[0], install_command(extra) if extra else f"pip install {module}"
        got = f"needs the package {name}, which cannot be imported ({error})"
        raise ConfigError(f"{where or f'env: {extra}'} {got}; expected it to be installed. Run: {command}") from None
