"""Find recipes by name: bundled files, a user's YAML file, and tasks of real size composed with a model and a level.

`plan-path-qwen3-1.7b-L1` is no file: it is `recipes/real/plan-path.yaml` (the task with the prompts and settings of its
paper) with Qwen3-1.7B at level L1 of AT-GRPO (arXiv 2510.11062): L0 one model for all roles, L1 one adapter per role on
one frozen model, L2, the default, one whole model per role. A bundled file of the same name comes first.

Relative paths in a YAML file start from its folder, all others from the current folder. A run stores absolute paths,
and beside them the folder that it was started in (`root`) and its own path from there, so that both may be moved.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cadre.algorithms import ALGORITHMS
from cadre.envs.rows import FILES as ROW_FILES
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, RunError, nearest, reject_name
from cadre.file_limits import read_json
from cadre.files import OpenRecord, Text, read_record, validation_message
from cadre.plugins import embedded_models, environments, recipe_folders
from cadre.settings.models import KNOWN_MODELS
from cadre.settings.trust import find_module_reference
from cadre.settings.yaml_file import ONLY_POLICY, Raw, merge_sections, read_yaml

LEVELS = {"L0": "one shared model", "L1": "an adapter per role", "L2": "a model per role"}
DEFAULT_LEVEL = "L2"
ROWS = "rows"  # the environment of rows and reward functions
MIXTURE = "mixture"  # the environment of several
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
    return dict(expand_mixture(merge_with_base(read_yaml(file), file)))


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
    model = next((name for name in KNOWN_MODELS if stem.endswith(f"-{name}")), None)
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
    named = raw.get("team", {}).get("roles", {})  # roles of a mixture that one policy plays
    played = {role: "shared" if level == "L0" else named.get(role, role) for role in roles}
    team: Raw = {"policies": {}, "roles": played}
    for name in dict.fromkeys(played.values()):
        lora = {"lora": dict(LORA)} if level == "L1" else {}
        team["policies"][name] = {"model": KNOWN_MODELS[model].hub, "dtype": "bfloat16", **lora}
    if level == "L1":
        rate = float(f"{LORA_RATE_FACTOR * raw['learner']['learning_rate']:.6g}")
        raw["learner"] = {**raw["learner"], "learning_rate": rate}
    return {"env": env, "settings": raw["settings"], "team": team, **{k: v for k, v in raw.items() if k not in HEAD}}


def task_groups() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return, by distribution, the groups of tasks that it declares in `groups.yml` beside its recipes. They are for
    `cadre list`. A task stands for all names of its distribution that are its own or continue it."""
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
    unknown = "a setting; a recipe stands before it" if "=" in recipe else "neither a bundled recipe nor a file"
    problem = "a folder" if is_folder else unknown
    got, nearby = f"{'base' if chain else 'recipe'}: got {recipe!r}, which is {problem}", names_beside(recipe)
    if recipe.endswith((".yaml", ".yml")) or (os.sep in recipe and not is_folder):
        hint = nearest(recipe, nearby) or " Fix the path."
        raise ConfigError(f"{got}; expected a YAML file or a run that exists, or a name of `cadre list`.{hint}")
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
        expected = f"expected a bundled recipe or the path of a YAML file, such as base: {example_recipe()}"
        raise ConfigError(f"base: got {base!r} in {path}; {expected}. Fix or remove it.")
    is_path = base not in recipes() and base.endswith((".yaml", ".yml"))
    base = str(path.absolute().parent / Path(base).expanduser()) if is_path else base
    if base in chain:
        loop = " -> ".join([*chain, base])
        raise ConfigError(f"base: {loop} leads back to where it began; expected a chain that ends. Remove one base.")
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
    """Return the folder that a run was started in, and where that is now. They differ if the folder was moved together
    with the run, which then has the same path in it still. None if the run stores no root."""
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
    return {name: _walk(value, (str(name),), find) for name, value in expand_mixture(raw).items()}


def expand_mixture(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration whose `env` is a list as one whose `env` is the mixture of these environments."""
    settings = raw.get("settings", {})
    if not isinstance(raw.get("env"), list) or not isinstance(settings, Mapping):
        return raw
    return {**raw, "env": MIXTURE, "settings": {**settings, "envs": raw["env"]}}


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
        case ("algorithm", "critic", "policy", *_) | ("teacher", "model", *_) if key[-1] in ("policy", "model"):
            return value not in embedded_models()
        case ("settings", "source") | ("evaluate", "settings", "source"):
            return value not in ("hub", "example")
        case (*_, "lora", "path" | "adapter") | ("algorithm", "reward_model") | ("settings", "run", "[]"):
            return True
        case ("settings", *_) | ("evaluate", "settings", *_) | ("curriculum", "levels", *_):
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


# ---- Policies that start from a LoRA adapter: a PEFT folder, such as `cadre export` writes for them
#
# The folder's settings (base, rank, alpha, modules) are read before any model loads and become the policy's own
# settings. Its weights are read later, by `cadre.engines.torch`.

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
# What makes an adapter something other than two matrices beside each of some linear layers.
UNSUPPORTED_OPTIONS = (
    *("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "layer_replication", "rank_pattern"),
    *("alpha_pattern", "fan_in_fan_out", "alora_invocation_tokens", "target_parameters", "use_qalora", "arrow_config"),
    *("use_bdlora", "kasa_config", "monteclora_config", "layers_to_transform", "exclude_modules"),
)
# These change the base's weights when they begin, so that the adapter belongs to another base than it names.
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


class PeftConfig(OpenRecord):
    """The part of `adapter_config.json` that every plain LoRA has; other fields are looked at by name."""

    peft_type: Literal["LORA"]
    r: Annotated[int, Field(ge=1)]
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    target_modules: list[str]


def is_adapter(folder: Path) -> bool:
    """Return True if a folder holds an adapter and no model."""
    return (folder / CONFIG_FILE).is_file() and not (folder / "config.json").is_file()


def apply_adapter_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose policies on adapters name the base, and their lora as the folder has it."""
    changed = dict(raw)
    team, algorithm = raw.get("team"), raw.get("algorithm")
    if isinstance(team, str) and is_adapter(Path(team).expanduser()):
        team = {"policies": {ONLY_POLICY: team}}
    if isinstance(team, Mapping) and isinstance(team.get("policies"), Mapping):
        policies = {
            name: _policy_with_adapter(f"team.policies.{name}", policy) for name, policy in team["policies"].items()
        }
        changed["team"] = {**team, "policies": policies}
    critic = algorithm.get("critic") if isinstance(algorithm, Mapping) else None
    if isinstance(critic, Mapping) and "policy" in critic:
        policy = _policy_with_adapter("algorithm.critic.policy", critic["policy"])
        changed["algorithm"] = {**algorithm, "critic": {**critic, "policy": policy}}  # type: ignore[dict-item]
    teacher = raw.get("teacher")
    if isinstance(teacher, Mapping) and "model" in teacher:
        changed["teacher"] = {**teacher, "model": _policy_with_adapter("teacher.model", teacher["model"])}
    return changed


def _policy_with_adapter(key: str, policy: Any) -> Any:
    """Return the policy with the settings of its adapter's folder, if it names one."""
    written = {"model": policy} if isinstance(policy, str) else policy
    if not isinstance(written, Mapping) or written.get("url") is not None:
        return policy
    lora, model = written.get("lora"), written.get("model")
    lora = dict(lora) if isinstance(lora, Mapping) else {}
    setting = f"{key}.lora.path"
    if lora.get("path") is None and isinstance(model, str) and is_adapter(Path(model).expanduser()):
        lora["path"], model, setting = model, None, f"{key}.model"
    if not isinstance(lora.get("path"), str):
        return policy
    folder = Path(lora["path"]).expanduser()
    described = read_adapter(setting, folder)
    base, settings = _base_model(setting, folder, described, model), _lora_settings(key, folder, described, lora)
    return {**written, "model": base, "lora": settings}


def read_adapter(setting: str, folder: Path) -> dict[str, Any]:
    """Return the configuration of an adapter's folder. Raises ConfigError unless it is a plain LoRA in safetensors."""

    def fault(got: str, advice: str) -> ConfigError:
        expected = f"expected a PEFT folder of a plain LoRA, {CONFIG_FILE} and {WEIGHTS_FILE}"
        return ConfigError(f"{setting}: {folder} {got}; {expected}. {advice}")

    if not (folder / CONFIG_FILE).is_file():
        raise fault(f"holds no {CONFIG_FILE}" if folder.is_dir() else "is no folder", "Fix the path.")
    try:
        described = PeftConfig.model_validate(read_json(folder / CONFIG_FILE)).model_dump()
    except (OSError, ValueError) as error:
        reason = validation_message(error) if isinstance(error, ValidationError) else str(error)
        raise fault(f"has an {CONFIG_FILE} that cannot be read ({reason})", "Take it from its origin.") from None
    init = described.get("init_lora_weights")
    unsupported = {name: described.get(name) for name in UNSUPPORTED_OPTIONS}
    unsupported |= {"bias": described.get("bias", "none") != "none" and described["bias"]}
    unsupported |= {"init_lora_weights": isinstance(init, str) and init.startswith(BASE_CHANGING_INITS) and init}
    for name, value in unsupported.items():
        if value:
            raise fault(f"has {name}={value!r}", "Merge it into its base with PEFT (merge_and_unload), and name that.")
    if not (folder / WEIGHTS_FILE).is_file():
        raise fault(f"holds no {WEIGHTS_FILE}", "Save it with save_pretrained(safe_serialization=True).")
    return described


def _base_model(setting: str, folder: Path, described: Mapping[str, Any], model: Any) -> Any:
    """Return the base model: the policy's, which has to be the adapter's, or the one that the adapter names."""
    base = described.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        return model  # without one the setting is missing
    if model is None:
        return next((name for name, home in embedded_models().items() if _is_same(base, str(home))), base)
    if isinstance(model, str) and not _is_same(base, str(embedded_models().get(model, model))):
        got = f"the adapter in {folder} is for {base}, and the policy's model is {model}"
        advice = f"Fix the model, or, where it has two names, base_model_name_or_path in {folder / CONFIG_FILE}."
        raise ConfigError(f"{setting}: {got}; expected the same. {advice}")
    return model


def _is_same(base: str, model: str) -> bool:
    """Return True if two names are of one model: the same folder, or a hub's and its local copy's."""
    if Path(base).expanduser().resolve() == Path(model).expanduser().resolve():
        return True
    return base.rstrip("/").rpartition("/")[2].lower() == model.rstrip("/").rpartition("/")[2].lower()


def _lora_settings(key: str, folder: Path, described: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy's lora with the folder's values; settings beside the path have to be equal to these."""
    rank, alpha = described["r"], described["lora_alpha"]
    if described.get("use_rslora"):  # scaled by alpha / sqrt(rank), and here by alpha / rank
        alpha *= math.sqrt(rank)
    lora = {"rank": rank, "alpha": alpha, "targets": sorted(described["target_modules"])}
    for name, value in lora.items():
        setting = written.get(name, value)
        if setting != "all-linear" and (sorted(setting) if isinstance(setting, list) else setting) != value:
            got = f"got {setting!r} beside path, and the adapter in {folder} has {value}"
            raise ConfigError(f"{key}.lora.{name}: {got}; expected the same. Remove it.")
    return {**written, "path": str(folder.absolute()), **lora}
