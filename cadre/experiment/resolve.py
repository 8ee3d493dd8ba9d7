"""From a configuration to what it comes to, once, before any model loads. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from cadre.advantages import critic_inputs
from cadre.advantages.plan import Plan
from cadre.algorithms import plan_of
from cadre.env import Env
from cadre.envs.from_data import FromData
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.experiment.config import Config
from cadre.experiment.experiment import Experiment
from cadre.experiment.refusals import EVALUATION, TRAINING
from cadre.experiment.refusals.learning import algorithm_k_of_one
from cadre.experiment.refusals.team import somebody_is_trained
from cadre.plugins import embedded_models
from cadre.settings import LearnerConfig, PolicyConfig, SamplingConfig
from cadre.settings.loss import chosen_loss
from cadre.settings.section import merged
from cadre.types import Sampling


def resolve(config: Config, env: type[Env] | None = None) -> Experiment:
    """All that training needs to know. Raises ConfigError or DataError for what cannot be trained.

    `env` is the class that the configuration names, where it need not be looked for.
    """
    experiment = resolve_for_trees(config, env)
    somebody_is_trained(experiment)
    algorithm_k_of_one(experiment)
    return experiment


def resolve_for_trees(config: Config, env: type[Env] | None = None) -> Experiment:
    """All that growing the trees of a training needs to know, by a team of which nobody need be trained."""
    experiment = _with_critics(_players(config, env))
    for refuse in TRAINING:
        refuse(experiment)
    return experiment


def resolve_for_evaluation(config: Config, env: type[Env] | None = None) -> Experiment:
    """All that playing held-out tasks needs to know: no critic, and nobody looks at the training split."""
    experiment = _players(config, env)
    for refuse in EVALUATION:
        refuse(experiment)
    return experiment


def chosen_plan(config: Config) -> Plan:
    """What the algorithm's name stands for, with the loss and the selection that the experiment chooses."""
    named = plan_of(config.algorithm)
    return replace(named, loss=chosen_loss(named.loss, config.loss), selection=config.credit)


def _players(config: Config, env: type[Env] | None) -> Experiment:
    """The experiment as far as its environment and those who play in it go."""
    policies, (trained, held_out) = config.team.policies, environments(config, env or config.env)
    sampling = {role: merged(config.sampling, policies[name].sampling) for role, name in config.team.roles.items()}
    return Experiment(
        config=config,
        env_spec=trained,
        held_out=held_out,
        plan=chosen_plan(config),
        policies=policies,
        models=_models(policies),
        heads={},
        learners=_learners(config, policies),
        sampling={role: _distribution(chosen) for role, chosen in sampling.items()},
    )


def environments(config: Config, env: str | type[Env]) -> tuple[EnvSpec, EnvSpec]:
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


def _distribution(chosen: SamplingConfig) -> Sampling:
    """What of the settings is about what is drawn, and not about who draws it."""
    return Sampling(**chosen.model_dump(exclude={"memory", "turns_memory", "graphs", "engine"}))


def _with_critics(players: Experiment) -> Experiment:
    """The experiment with its value heads, and the policies that only a critic is; there are none of these where the
    critic sits on the policies that it judges."""
    critic = players.plan.critic
    if critic is None:
        return players
    heads = critic_inputs.heads(critic, players.trained_roles)
    if critic.config.policy is None:
        return replace(players, heads=heads)
    critics = dict.fromkeys(heads, critic.config.policy)
    return replace(
        players,
        heads=heads,
        policies={**players.policies, **critics},
        models={**players.models, **_models(critics)},
        learners={**players.learners, **_learners(players.config, critics)},
    )


def _models(policies: Mapping[str, PolicyConfig]) -> dict[str, str]:
    return {name: find_model(name, policy) for name, policy in policies.items() if policy.url is None}


def _learners(config: Config, policies: Mapping[str, PolicyConfig]) -> dict[str, LearnerConfig]:
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
