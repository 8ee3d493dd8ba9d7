"""Find recipes by name: bundled files, a user's YAML file, and tasks of real size composed with a model and a level.

`plan-path-qwen3-1.7b-L1` is no file: it is `recipes/real/plan-path.yaml` (the task with the prompts and settings of its
paper) with Qwen3-1.7B at level L1. Levels are those of AT-GRPO (arXiv 2510.11062): L0 one model for all roles, L1 one
adapter per role on one frozen model, L2 one whole model per role, which is the default. A variant of the task goes in
between: `plan-path-single-agent-qwen3-8b` is its environment `plan-path-single-agent`. A bundled file of the same name
comes first.

Relative paths in a YAML file start from its folder, all others from the current folder. A run stores absolute paths, so
that it can be resumed from any folder, and beside them the folder that it was started in (`root`) and its own path from
there, so that it can be resumed after both were moved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from cadre.algorithms import ALGORITHMS
from cadre.envs.rows import FILES as ROW_FILES
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, RunError, nearest, reject_name
from cadre.files import OpenRecord, Text, read_record
from cadre.plugins import embedded_models, environments, recipe_folders
from cadre.settings.models import KNOWN_MODELS
from cadre.settings.trust import find_module_reference
from cadre.settings.yaml_file import Raw, merge_sections, read_yaml

LEVELS = {"L0": "one shared model", "L1": "an adapter per role", "L2": "a model per role"}
DEFAULT_LEVEL = "L2"
ROWS = "rows"  # the environment of rows and reward functions
LORA = {"rank": 16, "alpha": 32}
HEAD = ("env", "settings", "team")  # sections that stand first in a composed recipe
LORA_RATE_FACTOR = 10  # an adapter's learning rate over that of the whole model


def recipes() -> dict[str, Path]:
    """Return the bundled recipes that are files, by name."""
    return {path.stem: path for folder in recipe_folders() for path in sorted(folder.glob("*.yaml"))}


def real_tasks() -> dict[str, Path]:
    """Return the tasks of real size by name, which have to be composed with a model."""
    return {path.stem: path for folder in recipe_folders() for path in sorted((folder / "real").glob("*.yaml"))}


def _read_real_task(task: str) -> Raw:
    file = real_tasks()[task]
    return merge_with_base(read_yaml(file), file)


def task_variants(task: str) -> dict[str, str]:
    """Return the environment of every variant of a task that a text model can play: `plan-path` and, among others,
    `plan-path-single-agent`."""
    env = _read_real_task(task)["env"]
    names = (name for name in environments() if name == env or name.startswith(f"{env}-"))
    return {task + name.removeprefix(env): name for name in names if not name.endswith("-picture")}


def example_recipe() -> str:
    """Return the name of a recipe for messages: that of the first task in a group which has one."""
    tasks = (task for groups in task_groups().values() for members in groups.values() for task in members)
    return next((task for task in tasks if task in recipes()), "my_task.yaml")


def compose_recipe(name: str) -> Raw | None:
    """Return the recipe of a name that is composed of task, model and level; None if it names no known model."""
    stem, _, ending = name.rpartition("-")
    level = ending if ending in LEVELS else DEFAULT_LEVEL
    stem = stem if ending in LEVELS else name
    model = next((known for known in KNOWN_MODELS if stem.endswith(f"-{known}")), None)
    if model is None:
        return None
    variant = stem.removesuffix(f"-{model}")
    variants = {form: (task, env) for task in real_tasks() for form, env in task_variants(task).items()}
    if variant not in variants:
        got = f"recipe: got {name!r}, and {variant!r} is no task to be played by {model}"
        raise ConfigError(reject_name(got, f"expected one of {', '.join(variants)}.", nearest(variant, variants)))
    task, env = variants[variant]
    raw = _read_real_task(task)
    central = ALGORITHMS[raw["algorithm"]["name"]].central
    roles = EnvSpec(env, raw["settings"], central=central).roles
    policy: Raw = {"model": KNOWN_MODELS[model].hub, "dtype": "bfloat16"}
    if level == "L0":
        team = {"policies": {"shared": policy}, "roles": dict.fromkeys(roles, "shared")}
    else:
        policy |= {"lora": LORA} if level == "L1" else {}
        team = {"policies": {role: dict(policy) for role in roles}, "roles": {role: role for role in roles}}
    if level == "L1":
        rate = float(f"{LORA_RATE_FACTOR * raw['learner']['learning_rate']:.6g}")
        raw["learner"] = {**raw["learner"], "learning_rate": rate}
    return {"env": env, "settings": raw["settings"], "team": team, **{k: v for k, v in raw.items() if k not in HEAD}}


def task_groups() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return, by distribution, the groups of tasks that it declares in `groups.yml` beside its recipes.

    They are for `cadre list`. A task stands for all names of its distribution that are its own or continue it.
    """
    files = {distribution: folder / "groups.yml" for folder, distribution in recipe_folders().items()}
    return {
        distribution: {group: tuple(tasks) for group, tasks in read_yaml(file).items()}
        for distribution, file in files.items()
        if file.is_file()
    }


def read_recipe(recipe: str, chain: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the sections of a recipe: a bundled name, a composed one, or the path of a YAML file.

    A file of rows is played by one agent under GRPO; `FILE.py:NAME`, a team's function or an environment class, by
    AT-GRPO: what is still missing has to be set beside it.

    A recipe with a `base` has all sections of that recipe, overridden by its own: a section that names what it is (an
    algorithm's name, a team's policies and roles) replaces the base's, any other is merged key by key. `chain`
    are the recipes that led here. Raises ConfigError for an unknown name or a base that leads back to the recipe.
    """
    if Path(recipe).suffix in ROW_FILES:
        return {"env": ROWS, "settings": {"tasks": recipe}, "algorithm": "grpo"}
    if FILE_AND_NAME.fullmatch(recipe):
        return {"env": recipe, "algorithm": "at_grpo"}
    bundled = recipes()
    path = bundled.get(recipe, Path(recipe))
    is_folder = os.path.isdir(path)
    if os.path.exists(path) and not is_folder:  # unlike Path's own, these take a name that is too long for one
        raw = read_yaml(Path(path))
        if recipe not in bundled and is_run_config(Path(path)):
            return relocate(raw, Path(path).parent)
        located = resolve_from_file(raw, Path(path)) if recipe not in bundled else raw
        return merge_with_base(located, Path(path), (*chain, recipe))
    if not is_folder and (real := compose_recipe(recipe)) is not None:
        return real
    problem = "a folder" if is_folder else "neither a bundled recipe nor a file"
    beside = names_beside(recipe)
    if recipe.endswith((".yaml", ".yml")) or (os.sep in recipe and not is_folder):
        raise ConfigError(
            f"{'base' if chain else 'recipe'}: got {recipe!r}, which is {problem}; expected a YAML file or a run that "
            f"exists, or a name of `cadre list`.{nearest(recipe, beside) or ' Fix the path.'}"
        )
    got = f"{'base' if chain else 'recipe'}: got {recipe!r}, which is {problem}"
    expected = f"expected one of {', '.join(bundled)}, one of TASK-MODEL (cadre list), or the path of a YAML file."
    raise ConfigError(reject_name(got, expected, nearest(recipe, [*bundled, *_possible_names(recipe), *beside])))


def names_beside(name: str) -> list[str]:
    """Return the YAML files and runs in the folder of a path that does not exist, as the user would write them."""
    folder = os.path.dirname(name)
    try:
        entries = sorted(os.listdir(os.path.expanduser(folder) or "."))
    except (OSError, ValueError):
        return []
    paths = (os.path.join(folder, entry) for entry in entries)
    recipe_ends = (".yaml", ".yml")
    return [p for p in paths if p.endswith(recipe_ends) or os.path.isfile(f"{os.path.expanduser(p)}/config.yaml")]


def merge_with_base(raw: Raw, path: Path, chain: tuple[str, ...] = ()) -> Raw:
    """Return the sections of the recipe at `path`, merged into those of its `base`."""
    if "base" not in raw:
        return raw
    base = raw["base"]
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"base: got {base!r} in {path}; expected a bundled recipe or the path of a YAML file, such as base: "
            f"{example_recipe()}. Fix or remove it."
        )
    is_path = base not in recipes() and base.endswith((".yaml", ".yml"))
    base = str(path.absolute().parent / Path(base).expanduser()) if is_path else base
    if base in chain:
        raise ConfigError(
            f"base: {' -> '.join([*chain, base])} leads back to where it began; expected a chain of recipes that "
            "ends. Remove one base."
        )
    merged = read_recipe(base, chain)
    merge_sections(merged, {key: value for key, value in raw.items() if key != "base"})
    return merged


def is_run_config(path: Path) -> bool:
    """Return True if a YAML file is the configuration that Cadre wrote for a run, whose paths are absolute."""
    return path.name == "config.yaml" and any(
        (path.parent / name).exists() for name in ("command.json", "state.json", "manifest.json", "metrics.jsonl")
    )


def _possible_names(name: str) -> Iterator[str]:
    """Yield the names that can be composed of the tasks and variants that a name begins with."""
    variants = [form for task in real_tasks() for form in task_variants(task) if name.startswith(f"{form}-")]
    for form, model in product(variants, KNOWN_MODELS):
        yield from (f"{form}-{model}", *(f"{form}-{model}-{level}" for level in LEVELS))


# ---- Relative paths in a configuration

FILE_AND_NAME = re.compile(r"[^:\s][^:\n]*\.py:\w+")
MODULE_AND_NAME = re.compile(r"[^\W\d][\w.]*:\w+")
# Settings of an environment are any text: what has a folder or an ending may be a file's name.
FILE_LIKE = re.compile(r"[~.]?[^\n]*/[^\n]*|[^\n/]*[^\n/.]\.[A-Za-z]\w{0,7}")
Key = tuple[str, ...]


def resolve_from_file(raw: Mapping[str, Any], recipe: Path) -> dict[str, Any]:
    """Return the content of a YAML file with absolute paths for the files that it names, relative to its own folder."""
    folder = recipe.absolute().parent.resolve()

    def find(key: Key, name: str) -> str | None:
        # A missing file of code is an error that should name where it was expected.
        is_relative = FILE_AND_NAME.fullmatch(name) and not name.startswith(("/", "~"))
        return _existing_path(key, name, folder) or (str(folder / name) if is_relative else None)

    return _replace_paths(raw, find)


def resolve_from_folder(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a configuration with absolute paths for what exists in a folder."""
    return _replace_paths(raw, lambda key, name: _existing_path(key, name, folder))


def describe_root(run: Path) -> dict[str, str]:
    """Return what a run that is started here stores about that: the current folder, and the run's path from there."""
    folder, path = Path.cwd().resolve(), run.absolute().parent.resolve() / run.name
    return {"root": str(folder), "run": os.path.relpath(path, folder)}


def find_roots(run: Path) -> tuple[Path, Path] | None:
    """Return the folder that a run was started in, and where that is now.

    They differ if the folder was moved together with the run, which then has the same path in it still. None if the run
    stores no root.
    """
    try:
        record = read_record(run / "command.json", RootRecord)
    except RunError:
        return None
    old, run_path = Path(record.root), Path(record.run)
    path = run.resolve()
    is_inside = run_path.parts and ".." not in run_path.parts and not run_path.is_absolute()
    if is_inside and path.parts[-len(run_path.parts) :] == run_path.parts:
        return old, Path(*path.parts[: -len(run_path.parts)])
    return old, old


def relocate(raw: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Return the configuration of a run with the new paths of files that were moved together with it: of each that no
    longer exists, and that exists at the same path below the new root."""
    roots = find_roots(run)
    if roots is None or roots[0] == roots[1]:
        return dict(raw)
    old, new = roots

    def find(key: Key, name: str) -> str | None:
        if _existing_path(key, name, new) is not None or not name.startswith(f"{old}/"):
            return None
        return _existing_path(key, f"{new}/{name.removeprefix(f'{old}/')}", new)

    return _replace_paths(raw, find)


def _replace_paths(raw: Mapping[str, Any], find: Callable[[Key, str], str | None]) -> dict[str, Any]:
    """Return a configuration with what `find` returns for each setting that may be a path, if that is not None."""
    return {name: _walk(value, (str(name),), find) for name, value in raw.items()}


def _walk(value: Any, key: Key, find: Callable[[Key, str], str | None]) -> Any:
    if isinstance(value, Mapping):
        is_policy = (key[:2] == ("team", "policies") and len(key) == 3) or key == ("teacher", "model")
        is_remote = is_policy and value.get("url") is not None
        return {
            name: inner if is_remote and name == "model" else _walk(inner, (*key, str(name)), find)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_walk(inner, (*key, "[]"), find) for inner in value]
    if isinstance(value, str) and _is_path_setting(key, value):
        return find(key, value) or value
    return value


def _is_path_setting(key: Key, value: str) -> bool:
    match key:
        case ("team", "prompts", *_):
            return False
        case ("env",):
            return value not in environments() and bool(
                FILE_AND_NAME.fullmatch(value) or MODULE_AND_NAME.fullmatch(value)
            )
        case ("team",) | ("team", "policies", _) | ("team", "policies", _, "model"):
            return value not in embedded_models()
        case ("algorithm", "critic", "policy") | ("algorithm", "critic", "policy", "model"):
            return value not in embedded_models()
        case ("teacher", "model") | ("teacher", "model", "model"):
            return value not in embedded_models()
        case (*_, "lora", "path" | "adapter") | ("algorithm", "reward_model"):
            return True
        case ("settings", "source") | ("evaluate", "settings", "source"):
            return value not in ("hub", "example")
        case ("settings", "run", "[]"):
            return True
        case ("settings", *_) | ("evaluate", "settings", *_):
            return bool(FILE_LIKE.fullmatch(value) or FILE_AND_NAME.fullmatch(value))
    return bool(FILE_AND_NAME.fullmatch(value))


def _existing_path(key: Key, name: str, folder: Path) -> str | None:
    """Return the absolute path of what `name` is from a folder, or None if nothing exists there."""
    if key == ("env",) and not FILE_AND_NAME.fullmatch(name):
        return find_module_reference(name, folder)
    file, colon, attribute = name.rpartition(":") if FILE_AND_NAME.fullmatch(name) else (name, "", "")
    path = Path(folder, Path(file).expanduser())
    if key[:1] == ("settings",) and key[-1] == "[]" and not path.is_file():
        return None  # a word of a command, such as the program `python`, is no folder
    try:
        return f"{path.absolute()}{colon}{attribute}" if file and path.exists() else None
    except OSError:
        return None  # too long for a name


class RootRecord(OpenRecord):
    """The folder that a run was started in and the run's path from there, in `command.json`."""

    root: Text
    run: Text
