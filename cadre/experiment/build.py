"""From an experiment to the team that plays it: here models load, and nowhere before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from cadre.errors import ConfigError, nearest
from cadre.experiment.bases import (
    GIB,
    Base,
    Placed,
    Watched,
    base_of,
    engines_of,
    here,
    in_cluster,
    memory_setting,
    training_of,
)
from cadre.experiment.config import Config
from cadre.experiment.experiment import Experiment
from cadre.experiment.refusals.learning import refuse_of_vision
from cadre.experiment.trees.vocabulary import Vocabulary
from cadre.team import Learner, RewardModel, Sampler, Team, Weights, closed_on_failure
from cadre.types import Request, Sample


def build_team(
    experiment: Experiment,
    train: bool = False,
    watched: Watched | None = None,
    memory: Mapping[str, float] = MappingProxyType({}),
) -> Team:
    """Load the models. Adapters and frozen policies of one base share an engine; a model trained whole has its own.

    Only to `train` are there learners, with their optimisers. `watched` says what they leave for people to look at.
    `memory` are GiB that policies were sampled in before, for those without a setting.
    """
    ask_hub(experiment)
    roles, samplers, learners = experiment.config.team.roles, _remote(experiment), list[Learner]()
    team = Team(roles, samplers, experiment.sampling, learners, apart=_apart(experiment))
    place = _place(experiment)
    with closed_on_failure() as failed:
        failed.callback(team.close)  # what there is of it by then
        for names in engines_of(experiment):
            trained = train and any(name in experiment.learners for name in names)
            training = training_of(experiment, names, watched or Watched()) if trained else None
            drawn_by, learner = place(base_of(experiment, names, training, memory_setting(experiment, names, memory)))
            samplers |= drawn_by
            learners += [learner] if learner is not None else []
        scorer = _reward_model(experiment)
    return replace(team, reward_model=scorer)


def _place(experiment: Experiment) -> Callable[[Base], Placed]:
    """Where samplers and learners are made: in the experiment's cluster, or in this process."""
    if experiment.config.cluster is None:
        return here
    from cadre.cluster.cluster import Cluster

    return partial(in_cluster, Cluster(experiment.config.cluster))


def _apart(experiment: Experiment) -> bool:
    """Whether sampling goes on while the learners learn: in a cluster, and where all that they train is drawn by vLLM,
    whose weights are its own, and which does not wait for their card, or is trained by ranks, which are other
    processes."""
    if experiment.config.cluster is not None:
        return True
    on_vllm = () if experiment.config.vllm.colocated else experiment.on_vllm
    trained = set(experiment.trained_roles.values()) - set(on_vllm)
    return all(experiment.learners[name].ranks > 1 for name in trained)


def hosted(experiment: Experiment) -> Experiment:
    """The experiment with environments that step in its cluster, if that has processes for them."""
    config = experiment.config.cluster
    if config is None or not config.environments:
        return experiment
    from cadre.cluster.cluster import Cluster

    return replace(experiment, env_spec=Cluster(config).hosted(experiment.env_spec, experiment.config.sandbox))


def ask_hub(experiment: Experiment) -> None:
    """Raises EngineError where a model of the hub cannot be had, and ConfigError where it reads pictures and its
    learner cannot be what was asked for; asked before torch is imported."""
    names = {name: model for name, model in experiment.models.items() if not Path(model).is_dir()}
    if names:
        from cadre.engines import hub

        for name, model in names.items():
            source = hub.available(model)
            if name in experiment.learners:
                refuse_of_vision(experiment, name, partial(hub.model_type, source))


def sampling_memory(team: Team) -> dict[str, float]:
    """GiB that each policy may be sampled in, of those that torch samples."""
    from cadre.cluster.sampler_pool import SamplerPool
    from cadre.engines.torch import TorchEngine

    here = {name: sampler for name, sampler in team.samplers.items() if isinstance(sampler, TorchEngine | SamplerPool)}
    return {name: sampler.memory / GIB for name, sampler in here.items() if sampler.memory is not None}


def vocabulary(experiment: Experiment) -> Vocabulary:
    """What spells the tokens of every policy whose model is here."""
    from cadre.engines.spelling import Speller

    trusted = {name: policy.trust_remote_code for name, policy in experiment.policies.items()}
    return Vocabulary({name: Speller(source, trusted[name]) for name, source in experiment.models.items()})


def _reward_model(experiment: Experiment) -> RewardModel | None:
    if experiment.plan.reward_model is None:
        return None
    from cadre.engines.torch.reward_model import RewardModel as TorchRewardModel

    return TorchRewardModel.load(Path(experiment.plan.reward_model).expanduser())


def _remote(experiment: Experiment) -> dict[str, Sampler]:
    """The samplers of the policies that an endpoint serves."""
    remote = {name: policy for name, policy in experiment.policies.items() if policy.url is not None}
    if not remote:
        return {}
    from cadre.engines.openai import OpenAISampler

    return {
        name: OpenAISampler(policy.model, policy.url, policy.key_variable, policy.enable_thinking)
        for name, policy in remote.items()
        if policy.url is not None
    }


def assignment(config: Config, text: str) -> dict[str, str]:
    """`tool=planner,planner=tool`: for each role the policy to play it, by name or by the role it trained in."""
    changes: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        role, _, name = pair.partition("=")
        policy = config.team.roles.get(name, name)
        if role not in config.team.roles or policy not in config.team.policies:
            known = ", ".join({**config.team.policies, **config.team.roles})
            raise ConfigError(
                f"--assign: got {pair!r}; expected ROLE=POLICY with a role of {', '.join(config.team.roles)} and a "
                f"policy of {known}.{nearest(name, {**config.team.policies, **config.team.roles})}"
            )
        if role in changes:
            raise ConfigError(f"--assign: got {role} twice; expected one policy for a role. Remove one of them.")
        changes[role] = policy
    return changes


def untrained_roles(config: Config, text: str) -> list[str]:
    """The roles in `left,right`. Raises ConfigError for one that there is not."""
    names, known = text.split(",") if text else [], config.team.roles
    for role in names:
        if role not in known:
            raise ConfigError(f"--untrained: got {role!r}; expected roles of {', '.join(known)}.{nearest(role, known)}")
    return names


def beside_untrained(experiment: Experiment, team: Team, roles: str) -> Team:
    """The team with the named roles played by their models as they were before training."""
    names = untrained_roles(experiment.config, roles)
    fresh = build_team(experiment)
    renamed = {f"untrained {policy}": Renamed(sampler, policy) for policy, sampler in fresh.samplers.items()}
    changes = {role: f"untrained {team.assignment[role]}" for role in names}
    return replace(team, samplers={**team.samplers, **renamed}).assigned(changes)


@dataclass(frozen=True)
class Renamed:
    """A sampler whose policy goes by another name in this team."""

    sampler: Sampler
    policy: str

    async def sample(self, request: Request) -> list[Sample]:
        return await self.sampler.sample(replace(request, policy=self.policy))

    async def load(self, weights: Weights) -> None:
        await self.sampler.load(replace(weights, policy=self.policy))

    def close(self) -> None:
        self.sampler.close()
