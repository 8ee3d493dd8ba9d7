"""From a name to an experiment: find the configuration that a user names, and resolve it once, before any model loads.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cadre.advantages.batch import Plan
from cadre.advantages.critic import required_heads
from cadre.algorithms import plan_of
from cadre.config.adapters import is_adapter
from cadre.config.experiment import Config, Experiment, parse
from cadre.config.paths import relocate
from cadre.config.recipes import read_recipe
from cadre.config.validation import EVALUATION_CHECKS, TRAINING_CHECKS, check_group_size, check_some_policy_trained
from cadre.env import Env
from cadre.envs.from_data import FromData
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.plugins import embedded_models
from cadre.settings import LearnerConfig, PolicyConfig, SamplingConfig
from cadre.settings.loss import chosen_loss
from cadre.settings.section import merged
from cadre.settings.trust import admit, note_imports
from cadre.settings.yaml_file import Raw, merge, overridden, override, parse_yaml, read
from cadre.types import Sampling

DATA_SPLITS = ("train", "test")  # which are `data` where that is set


@dataclass(frozen=True)
class Target:
    """A configuration, the class of its environment where it need not be looked for, and the folder of the run whose
    weights play, if one does."""

    config: Config
    env: type[Env] | None = None
    run: Path | None = None


def find_target(
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
        raw = relocate(read(folder / "config.yaml"), folder)
    else:
        raw = _model_config(name) if _is_model(name, folder) else read_recipe(name)
    merge(raw, changes or {})
    _prefer_user_settings(raw, [*(f"settings.{name}" for name in (changes or {}).get("settings", {})), *overrides])
    overridden(raw, overrides)
    if "env" not in raw:
        raise ConfigError(
            f"{name} is taken for a model, as there is no run or recipe of that name; expected the environment that a "
            "model is to play beside it, as in env=maths. Fix the name, or add that."
        )
    note_imports(admit(folder, raw, trust, user_settings({}, overrides, changes)) if is_run else [])
    config = parse(raw, env)
    for policy in _newly_frozen(folder, config) if is_run else ():
        raise ConfigError(
            f"team.policies.{policy}.frozen: got true for a policy that {name} has trained, which would play as it was "
            f"before; expected it as it was trained. Undo the change, or play that with --untrained."
        )
    return Target(config, env, folder if is_run else None)


def user_settings(recipe: Raw, overrides: Sequence[str], changes: Mapping[str, Any] | None = None) -> Raw:
    """Return what the user says beside a run: a recipe with changes. A change of every name that there is (`*`) names
    none, and is left out."""
    merge(recipe, {name: value for name, value in (changes or {}).items() if "*" not in str(value)})
    return overridden(recipe, [pair for pair in overrides if "*" not in pair.partition("=")[0]])


def _newly_frozen(run: Path, config: Config) -> Iterator[str]:
    """The policies that a run has trained, and that are frozen in another configuration of it."""
    team = read(run / "config.yaml").get("team")
    before = team.get("policies") if isinstance(team, dict) else None
    for name, policy in before.items() if isinstance(before, dict) else ():
        was = isinstance(policy, dict) and policy.get("frozen", False)
        if not was and name in config.team.policies and config.team.policies[name].frozen:
            yield name


def _prefer_user_settings(raw: Raw, chosen: Sequence[str]) -> None:
    """A setting that is chosen for this evaluation counts above what the experiment changes on held-out tasks: it is
    left out of those changes, or set in them where it is a part of one."""
    evaluated = raw.get("evaluate")
    changed = evaluated.get("settings") if isinstance(evaluated, dict) else None
    if not isinstance(changed, dict):
        return  # nothing is changed, or `parse` says what is wrong with it
    for pair in chosen:
        key, _, value = pair.partition("=")
        section, *path = key.split(".")
        whole = _parse_settings(value) if key == "settings" else None
        names = list(whole) if isinstance(whole, dict) else path[:1] if section == "settings" else []
        if len(path) > 1 and names and names[0] in changed:
            override(raw, f"evaluate.{pair}")
            continue
        for name in [*names, *(DATA_SPLITS if "data" in names else ())]:
            changed.pop(name, None)


def _parse_settings(value: str) -> object:
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


def _model_config(name: str) -> Raw:
    """One policy in every role; the algorithm says nothing here but that each role plays for itself."""
    return {"team": name, "algorithm": "at_grpo"}


def resolve(config: Config, env: type[Env] | None = None) -> Experiment:
    """All that training needs to know. Raises ConfigError or DataError for what cannot be trained.

    `env` is the class that the configuration names, where it need not be looked for.
    """
    experiment = resolve_for_trees(config, env)
    check_some_policy_trained(experiment)
    check_group_size(experiment)
    return experiment


def resolve_for_trees(config: Config, env: type[Env] | None = None) -> Experiment:
    """All that growing the trees of a training needs to know, by a team of which nobody need be trained."""
    experiment = _add_critics(_resolve_players(config, env))
    for refuse in TRAINING_CHECKS:
        refuse(experiment)
    return experiment


def resolve_for_evaluation(config: Config, env: type[Env] | None = None) -> Experiment:
    """All that playing held-out tasks needs to know: no critic, and nobody looks at the training split."""
    experiment = _resolve_players(config, env)
    for refuse in EVALUATION_CHECKS:
        refuse(experiment)
    return experiment


def make_plan(config: Config) -> Plan:
    """What the algorithm's name stands for, with the loss and the selection that the experiment chooses."""
    named = plan_of(config.algorithm)
    return replace(named, loss=chosen_loss(named.loss, config.loss), selection=config.credit)


def _resolve_players(config: Config, env: type[Env] | None) -> Experiment:
    """The experiment as far as its environment and those who play in it go."""
    policies, (trained, held_out) = config.team.policies, resolve_environments(config, env or config.env)
    sampling = {role: merged(config.sampling, policies[name].sampling) for role, name in config.team.roles.items()}
    return Experiment(
        config=config,
        env_spec=trained,
        held_out=held_out,
        plan=make_plan(config),
        policies=policies,
        models=_find_models(policies),
        heads={},
        learners=_merge_learners(config, policies),
        sampling={role: _sampling_distribution(chosen) for role, chosen in sampling.items()},
    )


def resolve_environments(config: Config, env: str | type[Env]) -> tuple[EnvSpec, EnvSpec]:
    """The environment that is learned in, and that of held-out tasks.

    A set that is held out is known to both, so that what leaks from it is left out of training.
    """
    changes = config.evaluate.settings
    make = partial(EnvSpec, env, central=config.algorithm.central, prompts=config.team.prompts)
    spec = make(config.settings)
    if not changes:
        return spec, spec
    if "test" in changes and issubclass(spec.declared, FromData):
        spec = make({**config.settings, "test": changes["test"]})
    try:
        return spec, make({**config.settings, **changes})
    except ConfigError as error:
        raise ConfigError(f"evaluate.{error}") from None


def _sampling_distribution(chosen: SamplingConfig) -> Sampling:
    """What of the settings is about what is drawn, and not about who draws it."""
    return Sampling(**chosen.model_dump(exclude={"memory", "turns_memory", "graphs", "engine"}))


def _add_critics(players: Experiment) -> Experiment:
    """The experiment with its value heads, and the policies that only a critic is; there are none of these where the
    critic sits on the policies that it judges."""
    critic = players.plan.critic
    if critic is None:
        return players
    heads = required_heads(critic, players.trained_roles)
    if critic.config.policy is None:
        return replace(players, heads=heads)
    critics = dict.fromkeys(heads, critic.config.policy)
    return replace(
        players,
        heads=heads,
        policies={**players.policies, **critics},
        models={**players.models, **_find_models(critics)},
        learners={**players.learners, **_merge_learners(players.config, critics)},
    )


def _find_models(policies: Mapping[str, PolicyConfig]) -> dict[str, str]:
    return {name: find_model(name, policy) for name, policy in policies.items() if policy.url is None}


def _merge_learners(config: Config, policies: Mapping[str, PolicyConfig]) -> dict[str, LearnerConfig]:
    return {name: merged(config.learner, policy.learner) for name, policy in policies.items() if not policy.frozen}


def find_model(name: str, policy: PolicyConfig) -> str:
    """The folder or the hub name of a policy's model; a folder must hold a config.json."""
    model = policy.model
    folder = embedded_models().get(model) or Path(model).expanduser()
    looks_local = model.startswith((".", "/", "~")) or model.count("/") != 1
    if (folder / "config.json").is_file():
        from cadre.engines.model_folder import check_folder

        check_folder(model, folder)
        return str(folder)
    if model in embedded_models() or looks_local or folder.exists():
        raise ConfigError(
            f"the model of policy {name}: got {model!r}, but {folder} holds no config.json; expected seed, games, a "
            "checkpoint folder, or a hub name such as Qwen/Qwen3-1.7B. Fix the path."
        )
    return model
