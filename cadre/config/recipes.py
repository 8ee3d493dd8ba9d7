"""Find recipes by name: bundled files, a user's YAML file, and tasks of real size composed with a model and a level.

`plan-path-qwen3-1.7b-L1` is no file: it is `recipes/real/plan-path.yaml` (the task with the prompts and settings of its
paper) with Qwen3-1.7B at level L1. Levels are those of AT-GRPO (arXiv 2510.11062): L0 one model for all roles, L1 one
adapter per role on one frozen model, L2 one whole model per role, which is the default. A variant of the task goes in
between: `plan-path-single-agent-qwen3-8b` is its environment `plan-path-single-agent`. A bundled file of the same name
comes first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from cadre.algorithms import ALGORITHMS
from cadre.config.paths import relocate, resolve_from_file
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, nearest, reject_name
from cadre.plugins import environments, recipe_folders
from cadre.settings.models import KNOWN_MODELS, KnownModel
from cadre.settings.yaml_file import Raw, dump_yaml, merge_sections, read_yaml

LEVELS = {"L0": "one shared model", "L1": "an adapter per role", "L2": "a model per role"}
DEFAULT_LEVEL = "L2"
LORA = {"rank": 16, "alpha": 32}
LORA_RATE_FACTOR = 10  # an adapter's learning rate over that of the whole model
# Bytes per weight: trained whole (master, gradient, two moments), and of a frozen base in bfloat16.
TRAINED_BYTES, FROZEN_BYTES = 16, 2
# Gigabytes of usual GPUs, and of the activations, scores and samples beside the weights.
GPU_GIGABYTES, ACTIVATION_GIGABYTES = (24, 48, 80, 141, 192), 12


@dataclass(frozen=True)
class RealRecipe:
    """A task of real size, played by a known model at a level; `env` is the environment of the chosen variant."""

    task: str
    env: str
    model: str
    level: str

    @cached_property
    def base(self) -> Raw:
        """The sections of the task's own file, for the chosen variant."""
        return {**_read_real_task(self.task), "env": self.env}

    @property
    def roles(self) -> tuple[str, ...]:
        central = ALGORITHMS[self.base["algorithm"]["name"]].central
        return EnvSpec(self.env, self.base["settings"], central=central).roles

    @property
    def known(self) -> KnownModel:
        return KNOWN_MODELS[self.model]

    def raw(self) -> Raw:
        """Return the whole configuration."""
        base, learner = self.base, self.base["learner"]
        if self.level == "L1":
            learner = {**learner, "learning_rate": float(f"{LORA_RATE_FACTOR * learner['learning_rate']:.6g}")}
        head = {name: base[name] for name in ("env", "settings")}
        return {**head, "team": self.team(), **{k: v for k, v in base.items() if k not in head}, "learner": learner}

    def team(self) -> Raw:
        policy: Raw = {"model": self.known.hub, "dtype": "bfloat16"}
        if self.level == "L0":
            return {"policies": {"shared": policy}, "roles": dict.fromkeys(self.roles, "shared")}
        if self.level == "L1":
            policy["lora"] = LORA
        return {"policies": {role: dict(policy) for role in self.roles}, "roles": {role: role for role in self.roles}}

    @property
    def gigabytes(self) -> float:
        """Gigabytes of weights, gradients and moments together, without those of adapters."""
        copies = len(self.roles) if self.level == "L2" else 1
        return copies * self.known.parameters * (FROZEN_BYTES if self.level == "L1" else TRAINED_BYTES) / 1e9

    @property
    def card(self) -> int | None:
        """Gigabytes of the smallest usual GPU that it fits, None if it fits none."""
        return next((size for size in GPU_GIGABYTES if size >= self.gigabytes + ACTIVATION_GIGABYTES), None)

    def about(self) -> str:
        """Return one line on what it trains and which GPU it fits."""
        task = real_tasks()[self.task].read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        needs = f"for no single card: {self.gigabytes:.0f} GB with gradients and moments"
        fits = f"for one card of {self.card} GB" if self.card else needs
        return f"{task} {self.env} by {self.model}, {LEVELS[self.level]}: {fits}. Dry run only."

    def text(self) -> str:
        """Return it as the text of a YAML file."""
        return f"# {self.about()}\n{dump_yaml(self.raw(), default_flow_style=None, width=110)}"


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


def compose_recipe(name: str) -> RealRecipe | None:
    """Return the recipe of a name that is composed of task, model and level; None if it names no known model."""
    stem, _, ending = name.rpartition("-")
    level = ending if ending in LEVELS else DEFAULT_LEVEL
    stem = stem if ending in LEVELS else name
    model = next((name for name in KNOWN_MODELS if stem.endswith(f"-{name}")), None)
    if model is None:
        return None
    variant = stem.removesuffix(f"-{model}")
    variants = {form: (task, env) for task in real_tasks() for form, env in task_variants(task).items()}
    if variant not in variants:
        got = f"recipe: got {name!r}, and {variant!r} is no task to be played by {model}"
        raise ConfigError(reject_name(got, f"expected one of {', '.join(variants)}.", nearest(variant, variants)))
    return RealRecipe(*variants[variant], model, level)


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

    A recipe with a `base` has all sections of that recipe, overridden by its own: a section that names what it is (an
    algorithm's name, a team's policies and roles) replaces the base's, any other is merged key by key. `chain`
    are the recipes that led here. Raises ConfigError for an unknown name or a base that leads back to the recipe.
    """
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
        return real.raw()
    problem = "a folder" if is_folder else "neither a bundled recipe nor a file"
    nearby = names_beside(recipe)
    if recipe.endswith((".yaml", ".yml")) or (os.sep in recipe and not is_folder):
        raise ConfigError(
            f"{'base' if chain else 'recipe'}: got {recipe!r}, which is {problem}; expected a YAML file or a run that "
            f"exists, or a name of `cadre list`.{nearest(recipe, nearby) or ' Fix the path.'}"
        )
    got = f"{'base' if chain else 'recipe'}: got {recipe!r}, which is {problem}"
    expected = f"expected one of {', '.join(bundled)}, one of TASK-MODEL (cadre list), or the path of a YAML file."
    raise ConfigError(reject_name(got, expected, nearest(recipe, [*bundled, *_possible_names(recipe), *nearby])))


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
