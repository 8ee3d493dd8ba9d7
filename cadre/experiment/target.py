"""What is to be played, by what a user calls it: a run, a recipe or a YAML file, or a model by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadre.env import Env
from cadre.errors import ConfigError
from cadre.experiment.adapters import is_adapter
from cadre.experiment.config import Config, parse
from cadre.experiment.paths import relocated
from cadre.experiment.recipes import read_recipe
from cadre.settings.trust import admit, note_imports
from cadre.settings.yaml_file import Raw, merge, overridden, override, parse_yaml, read

OF_DATA = ("train", "test")  # which are `data` where that is set


@dataclass(frozen=True)
class Target:
    """A configuration, the class of its environment where it need not be looked for, and the folder of the run whose
    weights play, if one does."""

    config: Config
    env: type[Env] | None = None
    run: Path | None = None


def find(
    name: str,
    overrides: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    env: type[Env] | None = None,
    trust: bool = False,
) -> Target:
    """The target that `name` stands for, with `changes` merged into its configuration and `key=value` pairs set in it.

    A run is a folder with a config.yaml, a model one with a config.json, or a hub name such as Qwen/Qwen3-1.7B; a model
    plays every role of the environment that the changes name. The files that a run's configuration imports are named on
    stderr. Raises ConfigError where there is nothing of that name, and for code that a run folder brings with it and
    that the user does not `trust`.
    """
    folder = Path(name).expanduser()
    is_run = (folder / "config.yaml").is_file()
    if is_run:
        raw = relocated(read(folder / "config.yaml"), folder)
    else:
        raw = _model(name) if _is_model(name, folder) else read_recipe(name)
    merge(raw, changes or {})
    _chosen_here(raw, [*(f"settings.{name}" for name in (changes or {}).get("settings", {})), *overrides])
    overridden(raw, overrides)
    if "env" not in raw:
        raise ConfigError(
            f"{name} is taken for a model, as there is no run or recipe of that name; expected the environment that a "
            "model is to play beside it, as in env=maths. Fix the name, or add that."
        )
    note_imports(admit(folder, raw, trust, own_settings({}, overrides, changes)) if is_run else [])
    config = parse(raw, env)
    for policy in _frozen_since(folder, config) if is_run else ():
        raise ConfigError(
            f"team.policies.{policy}.frozen: got true for a policy that {name} has trained, which would play as it was "
            f"before; expected it as it was trained. Undo the change, or play that with --untrained."
        )
    return Target(config, env, folder if is_run else None)


def own_settings(recipe: Raw, overrides: Sequence[str], changes: Mapping[str, Any] | None = None) -> Raw:
    """Return what the user says beside a run: a recipe with changes. A change of every name that there is (`*`) names
    none, and is left out."""
    merge(recipe, {name: value for name, value in (changes or {}).items() if "*" not in str(value)})
    return overridden(recipe, [pair for pair in overrides if "*" not in pair.partition("=")[0]])


def _frozen_since(run: Path, config: Config) -> Iterator[str]:
    """The policies that a run has trained, and that are frozen in another configuration of it."""
    team = read(run / "config.yaml").get("team")
    before = team.get("policies") if isinstance(team, dict) else None
    for name, policy in before.items() if isinstance(before, dict) else ():
        was = isinstance(policy, dict) and policy.get("frozen", False)
        if not was and name in config.team.policies and config.team.policies[name].frozen:
            yield name


def _chosen_here(raw: Raw, chosen: Sequence[str]) -> None:
    """A setting that is chosen for this evaluation counts above what the experiment changes on held-out tasks: it is
    left out of those changes, or set in them where it is a part of one."""
    evaluated = raw.get("evaluate")
    changed = evaluated.get("settings") if isinstance(evaluated, dict) else None
    if not isinstance(changed, dict):
        return  # nothing is changed, or `parse` says what is wrong with it
    for pair in chosen:
        key, _, value = pair.partition("=")
        section, *path = key.split(".")
        whole = _whole(value) if key == "settings" else None
        names = list(whole) if isinstance(whole, dict) else path[:1] if section == "settings" else []
        if len(path) > 1 and names and names[0] in changed:
            override(raw, f"evaluate.{pair}")
            continue
        for name in [*names, *(OF_DATA if "data" in names else ())]:
            changed.pop(name, None)


def _whole(value: str) -> object:
    """All settings as one; nothing where they are no YAML, which is refused where they are set."""
    try:
        return parse_yaml(value)
    except ValueError:
        return None


def _is_model(name: str, folder: Path) -> bool:
    if (folder / "config.json").is_file() or is_adapter(folder):
        return True
    is_path = folder.exists() or name.startswith((".", "/", "~")) or name.endswith((".yaml", ".yml"))
    return not is_path and name.count("/") == 1


def _model(name: str) -> Raw:
    """One policy in every role; the algorithm says nothing here but that each role plays for itself."""
    return {"team": name, "algorithm": "at_grpo"}
