"""From a name to an experiment: find the configuration that a user names, and resolve it once, before any model loads.

Nothing here imports torch, unless another sampler is installed and may be chosen.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from cadre.advantages.batch import Plan
from cadre.advantages.critic import required_heads
from cadre.algorithms import plan_of
from cadre.config.checks import EVALUATION, TRAINING, TREES, check_typed_are_read, raise_first
from cadre.config.experiment import TEACHER, Config, Experiment, load, parse
from cadre.config.recipes import is_adapter, names_beside, read_recipe, relocate
from cadre.config.trusted_runs import check_trusted
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, nearest
from cadre.plugins import embedded_models
from cadre.settings import LearnerConfig, PolicyConfig, SamplingConfig
from cadre.settings.models import MEDIA_MODELS, read_model_type
from cadre.settings.objective import merge_loss
from cadre.settings.section import apply_changes
from cadre.settings.team import LoraConfig
from cadre.settings.trust import only_reading
from cadre.settings.yaml_file import Raw, apply_overrides, flatten, merge_sections, read_yaml, typed_keys
from cadre.types import Sampling

DATA_SPLITS = ("train", "test")  # which are `data` if that is set
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # $MODELS/qwen is none
MAX_VLLM_RANK = 512  # of an adapter
LARGE_MODEL = 500_000_000  # bytes of weights from which a sampler of its own is worth its start
SMALL_MODEL = 100_000_000  # bytes of weights below which products in bfloat16 gain nothing

# ---- From a name to a configuration


@dataclass(frozen=True)
class Target:
    """A configuration, the class of its environment if it need not be searched for, the folder of the run whose weights
    play, if any, and the keys of the settings that the user typed."""

    config: Config
    env: type[Env] | None = None
    run: Path | None = None
    typed: Collection[str] = ()


def find_target(
    name: str,
    overrides: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    env: type[Env] | None = None,
    trust: bool = False,
) -> Target:
    """Return the target that `name` stands for, with `changes` merged into its configuration and `key=value` pairs set.

    A run is a folder with a config.yaml, a model one with a config.json, or a hub name such as Qwen/Qwen3-1.7B; a model
    plays every role of the environment that the changes name. The files that a run's configuration imports are named on
    stderr. Raises ConfigError if there is nothing of that name, and for code that a run folder brings with it and that
    the user does not `trust`.
    """
    folder = Path(name).expanduser()
    is_run = (folder / "config.yaml").is_file()
    is_path = folder.exists() or name.startswith((".", "/", "~")) or name.endswith((".yaml", ".yml"))
    if is_run:
        raw = relocate(read_yaml(folder / "config.yaml"), folder)
        saved = copy.deepcopy(raw)
    elif (folder / "config.json").is_file() or is_adapter(folder) or (name.count("/") == 1 and not is_path):
        # One policy in every role. The algorithm says here only that each role plays for itself.
        raw = {"team": name, "algorithm": "at_grpo"}
    else:
        raw = read_recipe(name)
    merge_sections(raw, changes or {})
    apply_overrides(raw, overrides)
    if "env" not in raw:
        if not folder.exists() and (folder.parent.is_dir() or name.startswith("runs/")):
            hint = nearest(name, names_beside(name)) or " Fix the name."
            raise ConfigError(f"{name}: there is no such folder; expected a run, a recipe, or a model with env=.{hint}")
        raise ConfigError(
            f"{name} is taken for a model, as there is no run or recipe of that name; expected the environment that it "
            "is to play. Fix the name, or add that, as in env=maths."
        )
    trained: dict[str, PolicyConfig] = {}
    if is_run:
        check_trusted(folder, raw, trust, user_settings({}, overrides, changes))
        with only_reading(), suppress(ConfigError):  # what the user has replaced may be a stranger's code
            trained = {key: policy for key, policy in parse(saved).team.policies.items() if not policy.frozen}
    config = parse(raw, env)
    for policy, old in trained.items():
        new = config.team.policies.get(policy)
        if new is not None and (new.frozen or _without_start(new.lora) != _without_start(old.lora)):
            got = f"got it frozen or with another adapter than {name} has trained; expected it as it was trained"
            raise ConfigError(f"team.policies.{policy}: {got}. Undo the change, or play that with --untrained.")
    typed = [*typed_keys(overrides), *(key for key, _ in flatten(changes or {}))]
    for key in typed:
        setting = key.partition(".")[2].partition(".")[0] if key.startswith("settings.") else ""
        for changed in {setting, *(DATA_SPLITS if setting == "data" else ())} & config.evaluate.settings.keys():
            used = f"evaluate.settings.{changed}"
            raise ConfigError(f"{key}: got it beside {used}, which held-out tasks have. Set {used} in its place.")
    return Target(config, env, folder if is_run else None, typed)


def user_settings(recipe: Raw, overrides: Sequence[str], changes: Mapping[str, Any] | None = None) -> Raw:
    """Return the settings that the user, and not a run folder, gives: a recipe with changes. A change of all names at
    once (`*`) names none, and is left out."""
    merge_sections(recipe, {name: value for name, value in (changes or {}).items() if "*" not in str(value)})
    return apply_overrides(recipe, [pair for pair in overrides if "*" not in pair.partition("=")[0]])


def _without_start(lora: LoraConfig | None) -> LoraConfig | None:
    """Return the settings that the weights of an adapter belong to: all but where it began, as the run has these."""
    return lora and lora.model_copy(update={"path": None})


# ---- From a configuration to an experiment


def resolve_recipe(recipe: str, overrides: Sequence[str] = ()) -> Experiment:
    """Return all that training a recipe with `key=value` pairs needs; raises as `resolve` does."""
    return resolve(load(recipe, overrides), typed=typed_keys(overrides))


def resolve(config: Config, env: type[Env] | None = None, typed: Collection[str] = ()) -> Experiment:
    """Return all that training needs. Raises ConfigError or DataError for what cannot be trained. `env` is the class
    that the configuration names, if it need not be searched for. `typed` are the dotted keys of the settings that the
    user gave in the command or the call, of which each must have an effect."""
    experiment = resolve_for_trees(config, env, typed)
    raise_first(experiment, TRAINING)
    return experiment


def resolve_for_trees(config: Config, env: type[Env] | None = None, typed: Collection[str] = ()) -> Experiment:
    """Return all that growing the trees of a training needs, for a team of which no policy need be trained."""
    experiment = _add_teacher(_add_critics(_add_opponents(_resolve_players(config, env))))
    check_typed_are_read(experiment, typed)
    raise_first(experiment, TREES)
    return experiment


def resolve_for_evaluation(config: Config, env: type[Env] | None = None, typed: Collection[str] = ()) -> Experiment:
    """Return all that playing held-out tasks needs: no critic, and the training split is not read."""
    experiment = _resolve_players(config, env)
    check_typed_are_read(experiment, typed)
    raise_first(experiment, EVALUATION)
    return experiment


def make_plan(config: Config) -> Plan:
    """Return the algorithm's plan, with the loss and the selection of samples that the configuration chooses."""
    plan = plan_of(config.algorithm)
    loss = merge_loss(plan.loss, config.loss)
    return replace(plan, loss=loss, selection=config.credit, teacher=config.teacher)


def _resolve_players(config: Config, env: type[Env] | None) -> Experiment:
    """Resolve the environment and the policies that play in it."""
    env_spec, held_out = resolve_environments(config, env or config.env)
    models = _find_models(config.team.policies)
    policies = choose_dtypes(config.team.policies, models)
    learners = _merge_learners(config, policies)
    samplers = {name: apply_changes(config.sampling, policy.sampling) for name, policy in policies.items()}
    engines = choose_engines(config, policies, models, samplers, learners)
    samplers = {name: sampler.model_copy(update={"engine": engines[name]}) for name, sampler in samplers.items()}
    # Memory, graphs and the engine say who samples; what remains is the distribution that is sampled from.
    distributions = {
        name: Sampling(**sampler.model_dump(exclude={"memory", "turns_memory", "graphs", "engine"}))
        for name, sampler in samplers.items()
    }
    return Experiment(
        config=config,
        env_spec=env_spec,
        held_out=held_out,
        plan=make_plan(config),
        policies=policies,
        models=models,
        heads={},
        learners=learners,
        samplers=samplers,
        sampling={role: distributions[name] for role, name in config.team.roles.items()},
        colocated=is_colocated(config, engines, learners),
    )


# ---- The engine of each policy, where settings leave it open


def choose_engines(
    config: Config,
    policies: Mapping[str, PolicyConfig],
    models: Mapping[str, str],
    samplers: Mapping[str, SamplingConfig],
    learners: Mapping[str, LearnerConfig],
) -> dict[str, str]:
    """Return the engine that samples each policy: `auto` is vLLM if that is installed, has a GPU and can do what is
    asked for, else the torch engine. Small models stay with torch, as vLLM takes a minute or two to start; so do those
    in a cluster, where vLLM is chosen by hand."""

    def suits_vllm(name: str, sampler: SamplingConfig) -> bool:
        policy, model = policies[name], models.get(name)
        return (
            model is not None
            and config.cluster is None
            and find_spec("vllm") is not None
            and not sampler.graphs
            and sampler.turns_memory is None
            and policy.dtype == "bfloat16"
            and policy.device in ("auto", "cuda", "cuda:0")
            and (policy.lora is None or (not policy.lora.path and policy.lora.rank <= MAX_VLLM_RANK))
            and (name not in learners or learners[name].ranks == 1)
            and read_model_type(Path(model)) not in MEDIA_MODELS
            and weight_bytes(model) >= LARGE_MODEL
            and count_gpus() > 0
        )

    chosen = {name: "vllm" if suits_vllm(name, sampler) else "torch" for name, sampler in samplers.items()}
    return {name: chosen[name] if sampler.engine == "auto" else sampler.engine for name, sampler in samplers.items()}


def is_colocated(config: Config, engines: Mapping[str, str], learners: Mapping[str, LearnerConfig]) -> bool:
    """Return True if vLLM takes turns with the learner in the memory of one GPU: if the setting says so, or is unset
    and both would use the only GPU."""
    if config.vllm.colocated is not None:
        return config.vllm.colocated
    names = [name for name, engine in engines.items() if engine == "vllm"]
    return (
        bool(names)
        and config.cluster is None
        and config.vllm.gpus == 1
        and all(config.team.policies[name].device != "cpu" for name in names)
        and all(learners[name].ranks == 1 for name in names if name in learners)
        and count_gpus() == 1
    )


def weight_bytes(model: str) -> int:
    """Return the size of a folder's weights; a model of the hub is taken to be large."""
    return (
        sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) if Path(model).is_dir() else LARGE_MODEL
    )


def choose_dtypes(policies: Mapping[str, PolicyConfig], models: Mapping[str, str]) -> dict[str, PolicyConfig]:
    """Return the policies with the data type that `auto` stands for on this machine. A processor gains by bfloat16 if
    it has instructions for it, and if the weights are rounded once: those of a model that is trained whole are rounded
    at every step."""

    def choose(policy: PolicyConfig, model: str) -> str:
        if weight_bytes(model) < SMALL_MODEL:
            return "float32"
        import torch

        if policy.device != "cpu" and count_gpus():
            has_instructions = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            has_instructions = policy.shares_base and torch.cpu.get_capabilities().get("avx512_bf16", False)
        return "bfloat16" if has_instructions else "float32"

    chosen = {name: choose(policies[name], model) for name, model in models.items() if policies[name].dtype == "auto"}
    return {
        name: policy.model_copy(update={"dtype": chosen[name]}) if name in chosen else policy
        for name, policy in policies.items()
    }


def count_gpus() -> int:
    """Return the number of GPUs that torch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def resolve_environments(config: Config, env: str | type[Env]) -> tuple[EnvSpec, EnvSpec]:
    """Return the environment to learn in, and that of held-out tasks. A data set that is held out is given to both, so
    that what leaks from it is left out of training."""
    changes = config.evaluate.settings
    make = partial(EnvSpec, env, central=config.algorithm.central, prompts=config.team.prompts)
    spec = make(config.settings)
    # One object for both, so that data are read once.
    if not changes:
        return spec, spec
    if "test" in changes and spec.declared.splits_data:
        spec = make({**config.settings, "test": changes["test"]})
    try:
        return spec, make({**config.settings, **changes})
    except ConfigError as error:
        raise ConfigError(f"evaluate.{error}") from None


def _add_opponents(players: Experiment) -> Experiment:
    """Return the experiment with a policy for each member of the pool, which is sampled as the one that learns is."""
    for name, member in product(players.policies, players.config.team.members):
        players = replace(
            players,
            policies={**players.policies, member: players.policies[name]},
            models={**players.models, member: players.models[name]},
            samplers={**players.samplers, member: players.samplers[name]},
        )
    return players


def _add_critics(players: Experiment) -> Experiment:
    """Return the experiment with its value heads, and with the policies that are only a critic. There are none of these
    if the critic is a head on the policies that it judges."""
    critic = players.plan.critic
    if critic is None:
        return players
    heads = required_heads(critic, players.trained_roles)
    if critic.config.policy is None:
        return replace(players, heads=heads)
    critics = dict.fromkeys(heads, critic.config.policy)
    models = _find_models(critics)
    sampler = apply_changes(players.config.sampling, critic.config.policy.sampling)
    return replace(
        players,
        heads=heads,
        policies={**players.policies, **choose_dtypes(critics, models)},
        models={**players.models, **models},
        learners={**players.learners, **_merge_learners(players.config, critics)},
        samplers={**players.samplers, **dict.fromkeys(heads, sampler)},
    )


def _add_teacher(players: Experiment) -> Experiment:
    """Return the experiment with the frozen policy that is only its teacher, if that is a model on this machine."""
    teacher = players.plan.teacher
    if teacher is None or teacher.model is None or teacher.model.url is not None:
        return players
    if TEACHER in players.policies:
        advice = f"Rename it, or set teacher.policy={TEACHER} if it is meant to teach."
        raise ConfigError(f"team.policies.{TEACHER}: the teacher's own policy has that name. {advice}")
    policies = {TEACHER: teacher.model}
    models = _find_models(policies)
    return replace(
        players,
        policies={**players.policies, **choose_dtypes(policies, models)},
        models={**players.models, **models},
        samplers={**players.samplers, TEACHER: players.config.sampling.model_copy(update={"engine": "torch"})},
    )


def _find_models(policies: Mapping[str, PolicyConfig]) -> dict[str, str]:
    return {name: find_model(name, policy) for name, policy in policies.items() if policy.url is None}


def _merge_learners(config: Config, policies: Mapping[str, PolicyConfig]) -> dict[str, LearnerConfig]:
    trained = {name: policy for name, policy in policies.items() if not policy.frozen}
    return {name: apply_changes(config.learner, policy.learner) for name, policy in trained.items()}


def find_model(name: str, policy: PolicyConfig) -> str:
    """Return the folder or the hub name of a policy's model; a folder must hold a config.json."""
    model = policy.model
    folder = embedded_models().get(model) or Path(model).expanduser()
    looks_local = model.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(model)
    if (folder / "config.json").is_file():
        from cadre.engines.model_folder import check_folder

        check_folder(model, folder)
        return str(folder)
    if model in embedded_models() or looks_local or folder.exists():
        expected = "expected seed, games, a checkpoint folder, or a hub name such as Qwen/Qwen3-1.7B"
        got = f"got {model!r}, but {folder} holds no config.json"
        raise ConfigError(f"the model of policy {name}: {got}; {expected}. Fix the path.")
    return model
