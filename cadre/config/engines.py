"""Build the team of an experiment: samplers and learners, in this process or in a Ray cluster. Models load here.

Policies with adapters and frozen policies of one base model share an engine; a policy that is trained whole has its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from cadre.cluster.placement import placement
from cadre.cluster.recipes import EngineRecipe, LearnerRecipe, VllmRecipe
from cadre.config.engine_validation import check_vision_learner
from cadre.config.experiment import Config, Experiment, count_ranks, group_policies
from cadre.errors import ConfigError, nearest
from cadre.learn.token_notes import TokenNotes
from cadre.settings import CriticConfig
from cadre.settings.section import merged
from cadre.team import Learner, RewardModel, Sampler, Team, Weights, closed_on_failure
from cadre.types import Request, Sample

if TYPE_CHECKING:
    from cadre.cluster.cluster import Cluster
    from cadre.engines.torch import TrainingSettings
    from cadre.engines.vllm import VllmSampler


GIB = 1 << 30


@dataclass(frozen=True)
class EngineSpec:
    """One base model with the policies on it.

    engine     the torch engine that holds all of them
    vllm       what draws those that are `served` by vLLM, if some are
    learner    what trains them, None where nobody is trained
    colocated  whether vLLM and the learner take turns in one card's memory
    at_once    whether sampling goes on while the learner learns
    """

    engine: EngineRecipe
    served: Sequence[str]
    vllm: VllmRecipe | None
    learner: LearnerRecipe | None
    colocated: bool
    at_once: bool

    @property
    def drawn_by_torch(self) -> list[str]:
        """The policies that the torch engine samples."""
        return [name for name in self.engine.policies if name not in self.served]


@dataclass(frozen=True)
class Diagnostics:
    """What learners leave for people to look at: in the folder `diverged` the sequence that made an update non-finite,
    if one does; and notes on single tokens."""

    diverged: Path | None = None
    notes: TokenNotes = field(default_factory=lambda: TokenNotes(0))


SamplersAndLearner = tuple[dict[str, Sampler], Learner | None]


def sampling_memory_setting(
    experiment: Experiment, names: Sequence[str], before: Mapping[str, float] = MappingProxyType({})
) -> int | None:
    """Bytes that policies of one engine may be sampled in: the least of what they are set to, or had before; None
    where that is left to the device."""
    config = experiment.config.sampling
    wanted = [merged(config, experiment.policies[name].sampling).memory or before.get(name) for name in names]
    return min((int(gib * GIB) for gib in wanted if gib is not None), default=None)


def turns_memory_setting(experiment: Experiment, names: Sequence[str]) -> int | None:
    """Bytes that keys and values of earlier turns may take: the least that policies of one engine are set to, None
    where nobody says."""
    config = experiment.config.sampling
    wanted = [merged(config, experiment.policies[name].sampling).turns_memory for name in names]
    return min((int(gib * GIB) for gib in wanted if gib is not None), default=None)


def cuda_graphs_setting(experiment: Experiment, names: Sequence[str]) -> bool | None:
    """Whether decoding steps of an engine are replayed as CUDA graphs: if one of its policies asks for it, else not if
    one asks for that; None where nobody says."""
    config = experiment.config.sampling
    said = {merged(config, experiment.policies[name].sampling).graphs for name in names} - {None}
    return any(said) if said else None


def count_memory_sharers(experiment: Experiment) -> int:
    """How many engines share a device's memory: one a base model, or in a cluster its processes that are not on cards
    of their own."""
    return sum(_sharers_of_engine(experiment, names) for names in group_policies(experiment))


def _sharers_of_engine(experiment: Experiment, names: Sequence[str]) -> int:
    if experiment.config.cluster is None:
        return 1
    trains = count_ranks(experiment, names) > 0
    places = placement(experiment.config.cluster, names, trains)
    if places.together:
        return places.samplers + trains
    return 1 if places.sampler_cards else places.samplers


def make_engine_spec(
    experiment: Experiment, names: Sequence[str], training: TrainingSettings | None, memory: int | None
) -> EngineSpec:
    """The base of these policies."""
    config, policies = experiment.config, {name: experiment.policies[name] for name in names}
    served = [name for name in names if name in experiment.on_vllm]
    model, sharing = experiment.models[names[0]], count_memory_sharers(experiment)
    ahead = config.train.max_staleness
    of_vllm = sampling_memory_setting(experiment, served)
    vllm = VllmRecipe(model, {name: policies[name] for name in served}, config.vllm, of_vllm, ahead)
    turns, graphs = turns_memory_setting(experiment, names), cuda_graphs_setting(experiment, names)
    engine = EngineRecipe(model, policies, config.train.seed, memory, sharing, turns, graphs)
    return EngineSpec(
        engine=engine,
        served=served,
        vllm=vllm if served else None,
        learner=None
        if training is None
        else LearnerRecipe(engine, training, count_ranks(experiment, names), ahead + 2),
        colocated=config.vllm.colocated,
        at_once=ahead > 0,
    )


def training_settings(experiment: Experiment, names: Sequence[str], watched: Diagnostics) -> TrainingSettings:
    """How these policies of one engine are trained."""
    from cadre.engines.torch import TrainingSettings

    critic = experiment.plan.critic
    return TrainingSettings(
        learners={name: learner for name, learner in experiment.learners.items() if name in names},
        loss=experiment.plan.loss,
        total_steps=experiment.config.train.steps,
        heads={name: heads for name, heads in experiment.heads.items() if name in names},
        critic=critic.config if critic else CriticConfig(),
        diverged_folder=watched.diverged,
        notes=watched.notes,
    )


def build_in_process(base: EngineSpec) -> SamplersAndLearner:
    """The samplers by policy and the learner, in this process and the ranks that it starts."""
    with closed_on_failure() as failed:
        vllm = base.vllm.make() if base.vllm else None
        samplers: dict[str, Sampler] = dict.fromkeys(base.served, vllm) if vllm else {}
        if vllm is not None:
            failed.callback(vllm.close)
        in_place = base.learner is not None and base.learner.ranks == 1
        engine = base.engine.make() if base.drawn_by_torch or in_place else None
        if engine is not None:
            failed.callback(engine.close)
            samplers |= dict.fromkeys(base.drawn_by_torch, engine)
        learner = None if base.learner is None else _coordinate_with_vllm(base, base.learner.make(engine), vllm)
    return samplers, learner


def _coordinate_with_vllm(base: EngineSpec, learner: Learner, vllm: VllmSampler | None) -> Learner:
    """The learner as it takes its turn with the sampler that has its policies' weights in another process, if any."""
    if vllm is None:
        return learner
    from cadre.engines.vllm.beside import LearnerAtOnce, LearnerInTurns

    if base.colocated:
        return LearnerInTurns(learner, vllm)
    return LearnerAtOnce(learner) if base.at_once else learner


def build_in_cluster(cluster: Cluster, base: EngineSpec) -> SamplersAndLearner:
    """The samplers by policy and the learner, as actors."""
    samplers: dict[str, Sampler] = {}
    with closed_on_failure() as failed:
        learner = None if base.learner is None else cluster.learner(base.learner)
        if learner is not None:
            failed.callback(learner.close)
        for recipe, names in ((base.vllm, base.served), (base.engine, base.drawn_by_torch)):
            if recipe is not None and names:
                pool = cluster.pool(recipe, learner is not None)
                failed.callback(pool.close)
                samplers |= dict.fromkeys(names, pool)
    return samplers, learner


def build_team(
    experiment: Experiment,
    train: bool = False,
    watched: Diagnostics | None = None,
    memory: Mapping[str, float] = MappingProxyType({}),
) -> Team:
    """Load the models. Adapters and frozen policies of one base share an engine; a model trained whole has its own.

    Only to `train` are there learners, with their optimisers. `watched` says what they leave for people to look at.
    `memory` are GiB that policies were sampled in before, for those without a setting.
    """
    check_hub_models(experiment)
    roles, samplers, learners = experiment.config.team.roles, _remote_samplers(experiment), list[Learner]()
    team = Team(roles, samplers, experiment.sampling, learners, apart=_can_sample_while_learning(experiment))
    place = _builder(experiment)
    with closed_on_failure() as failed:
        failed.callback(team.close)  # what there is of it by then
        for names in group_policies(experiment):
            trained = train and any(name in experiment.learners for name in names)
            training = training_settings(experiment, names, watched or Diagnostics()) if trained else None
            drawn_by, learner = place(
                make_engine_spec(experiment, names, training, sampling_memory_setting(experiment, names, memory))
            )
            samplers |= drawn_by
            learners += [learner] if learner is not None else []
        scorer = _load_reward_model(experiment)
    return replace(team, reward_model=scorer)


def _builder(experiment: Experiment) -> Callable[[EngineSpec], SamplersAndLearner]:
    """Where samplers and learners are made: in the experiment's cluster, or in this process."""
    if experiment.config.cluster is None:
        return build_in_process
    from cadre.cluster.cluster import Cluster

    return partial(build_in_cluster, Cluster(experiment.config.cluster))


def _can_sample_while_learning(experiment: Experiment) -> bool:
    """Whether sampling goes on while the learners learn: in a cluster, and where all that they train is drawn by vLLM,
    whose weights are its own, and which does not wait for their card, or is trained by ranks, which are other
    processes."""
    if experiment.config.cluster is not None:
        return True
    on_vllm = () if experiment.config.vllm.colocated else experiment.on_vllm
    trained = set(experiment.trained_roles.values()) - set(on_vllm)
    return all(experiment.learners[name].ranks > 1 for name in trained)


def host_environments(experiment: Experiment) -> Experiment:
    """The experiment with environments that step in its cluster, if that has processes for them."""
    config = experiment.config.cluster
    if config is None or not config.environments:
        return experiment
    from cadre.cluster.cluster import Cluster

    return replace(experiment, env_spec=Cluster(config).hosted(experiment.env_spec, experiment.config.sandbox))


def check_hub_models(experiment: Experiment) -> None:
    """Raises EngineError where a model of the hub cannot be had, and ConfigError where it reads pictures and its
    learner cannot be what was asked for; asked before torch is imported."""
    names = {name: model for name, model in experiment.models.items() if not Path(model).is_dir()}
    if names:
        from cadre.engines import hub

        for name, model in names.items():
            source = hub.available(model)
            if name in experiment.learners:
                check_vision_learner(experiment, name, partial(hub.model_type, source))


def measured_sampling_memory(team: Team) -> dict[str, float]:
    """GiB that each policy may be sampled in, of those that torch samples."""
    from cadre.cluster.sampler_pool import SamplerPool
    from cadre.engines.torch import TorchEngine

    here = {name: sampler for name, sampler in team.samplers.items() if isinstance(sampler, TorchEngine | SamplerPool)}
    return {name: sampler.memory / GIB for name, sampler in here.items() if sampler.memory is not None}


def _load_reward_model(experiment: Experiment) -> RewardModel | None:
    if experiment.plan.reward_model is None:
        return None
    from cadre.engines.torch.reward_model import RewardModel as TorchRewardModel

    return TorchRewardModel.load(Path(experiment.plan.reward_model).expanduser())


def _remote_samplers(experiment: Experiment) -> dict[str, Sampler]:
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


def parse_assignment(config: Config, text: str) -> dict[str, str]:
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


def parse_untrained_roles(config: Config, text: str) -> list[str]:
    """The roles in `left,right`. Raises ConfigError for one that there is not."""
    names, known = text.split(",") if text else [], config.team.roles
    for role in names:
        if role not in known:
            raise ConfigError(f"--untrained: got {role!r}; expected roles of {', '.join(known)}.{nearest(role, known)}")
    return names


def add_untrained(experiment: Experiment, team: Team, roles: str) -> Team:
    """The team with the named roles played by their models as they were before training."""
    names = parse_untrained_roles(experiment.config, roles)
    fresh = build_team(experiment)
    renamed = {
        f"untrained {policy}": RenamedPolicySampler(sampler, policy) for policy, sampler in fresh.samplers.items()
    }
    changes = {role: f"untrained {team.assignment[role]}" for role in names}
    return replace(team, samplers={**team.samplers, **renamed}).assigned(changes)


@dataclass(frozen=True)
class RenamedPolicySampler:
    """A sampler whose policy goes by another name in this team."""

    sampler: Sampler
    policy: str

    async def sample(self, request: Request) -> list[Sample]:
        return await self.sampler.sample(replace(request, policy=self.policy))

    async def load(self, weights: Weights) -> None:
        await self.sampler.load(replace(weights, policy=self.policy))

    def close(self) -> None:
        self.sampler.close()
