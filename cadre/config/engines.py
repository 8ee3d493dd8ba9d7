"""Build the team of an experiment: samplers and learners, in this process or in a Ray cluster. Models load here.

Policies with adapters and frozen policies of one base model share an engine; a policy that is trained whole has its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

from cadre.config.checks import media_learner
from cadre.config.experiment import TEACHER, Experiment
from cadre.engines.factory import LearnerSpec, SamplerSpec, TorchSpec, VllmSpec
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, nearest
from cadre.learn.token_notes import TokenNotes
from cadre.plugins import component
from cadre.settings import CriticConfig, SandboxConfig
from cadre.team import BatchMemory, Learner, Sampler, Teacher, Team, Weights, closed_on_failure
from cadre.types import Request, Sample

if TYPE_CHECKING:
    from cadre.engines.torch import TrainingSettings

GIB = 1 << 30


class Cluster(Protocol):
    """Runs samplers, learners and environments in other processes; made with the section `cluster` of a recipe."""

    def make_pool(self, spec: SamplerSpec, trains: bool) -> Sampler:
        """Return a sampler of the spec's policies; `trains` means that a learner is beside it."""

    def make_learner(self, spec: LearnerSpec) -> Learner:
        """Return the learner of the spec's policies."""

    def host_environment(self, spec: EnvSpec, sandbox: SandboxConfig) -> EnvSpec:
        """Return the environment, stepped in other processes if the section asks for them."""


@dataclass(frozen=True)
class EngineSpec:
    """One base model with the policies on it.

    engine   the torch engine that holds all of them
    vllm     the sampler of those that vLLM samples, None if there are none
    learner  the learner, None if no policy is trained
    """

    engine: TorchSpec
    vllm: VllmSpec | None
    learner: LearnerSpec | None

    @property
    def vllm_names(self) -> list[str]:
        """The policies that vLLM samples."""
        return [] if self.vllm is None else list(self.vllm.policies)

    @property
    def torch_names(self) -> list[str]:
        """The policies that the torch engine samples."""
        return [name for name in self.engine.policies if name not in self.vllm_names]


SamplersAndLearner = tuple[dict[str, Sampler], Learner | None]


def build_team(
    experiment: Experiment,
    train: bool = False,
    notes: TokenNotes | None = None,
    memory: Mapping[str, float] = MappingProxyType({}),
    start: Mapping[str, str] | None = None,
) -> Team:
    """Load the models. With `train` there are learners too, with their optimizers, which put statistics of tokens into
    `notes`.

    `memory` are GiB that policies were sampled in before a resume, for those without a setting. `start` are the folders
    of the weights that the reference has (`cadre.training.checkpoint.find_start`), None for the base models.
    """
    check_hub_models(experiment)
    if train:
        check_teacher_vocabulary(experiment)
    samplers: dict[str, Sampler] = {}
    learners: list[Learner] = []
    for name, policy in experiment.policies.items():
        if policy.url is not None:
            from cadre.engines.openai import OpenAISampler

            samplers[name] = OpenAISampler(policy.model, policy.url, policy.key_variable, policy.enable_thinking)
    team = Team(
        experiment.roles, samplers, experiment.sampling, learners, own_weights=_can_sample_while_learning(experiment)
    )
    cluster: Cluster | None = None
    if experiment.config.cluster is not None:
        cluster = component("cluster")(experiment.config.cluster)
    with closed_on_failure() as failed:
        failed.callback(team.close)  # the samplers and learners built by then
        for names in experiment.engines:
            is_trained = train and any(name in experiment.learners for name in names)
            training = training_settings(experiment, names, notes or TokenNotes(0), start) if is_trained else None
            spec = make_engine_spec(experiment, names, training, sampling_memory_setting(experiment, names, memory))
            engine_samplers, learner = build_in_process(spec) if cluster is None else build_in_cluster(cluster, spec)
            samplers |= engine_samplers
            learners += [learner] if learner is not None else []
        if train:
            team = replace(team, teacher=make_teacher(experiment, samplers))
        if experiment.plan.reward_model is not None:
            from cadre.engines.torch.reward_model import RewardModel

            return replace(team, reward_model=RewardModel.load(Path(experiment.plan.reward_model).expanduser()))
    return team


def make_teacher(experiment: Experiment, samplers: Mapping[str, Sampler]) -> Teacher | None:
    """Return the teacher if it is a model that is not trained here; learners score for one that is."""
    config = experiment.plan.teacher
    if config is None or config.is_self or config.policy in experiment.learners:
        return None
    if config.model is not None and config.model.url is not None:
        from cadre.engines.openai import OpenAITeacher

        return OpenAITeacher(config.model.model, config.model.url, config.model.key_variable)
    from cadre.engines.torch.engine import TorchEngine
    from cadre.engines.torch.teacher import TorchTeacher

    name = config.policy or TEACHER
    engine = samplers[name]
    if not isinstance(engine, TorchEngine):
        got = f"got {name}, which {type(engine).__name__} samples; expected a policy of the torch engine"
        raise ConfigError(f"teacher.policy: {got}. Name its model under teacher.model.")
    return TorchTeacher(engine, name)


def check_teacher_vocabulary(experiment: Experiment) -> None:
    """Raise EngineError if a teacher on this machine has other tokens than a policy that it teaches."""
    config = experiment.plan.teacher
    name = TEACHER if config is None else config.policy or TEACHER
    if config is None or config.is_self or name not in experiment.models:
        return
    from cadre.engines.text.model import check_same_vocabulary

    sources = {**experiment.models, **experiment.hub_models}
    for student in dict.fromkeys(experiment.trained_roles.values()):
        if sources[student] != sources[name]:
            trusted = any(experiment.policies[policy].trust_remote_code for policy in (student, name))
            check_same_vocabulary(student, sources[student], sources[name], trusted)


def check_hub_models(experiment: Experiment) -> None:
    """Raise EngineError for a model of the hub that cannot be had, and ConfigError for one that reads images if its
    learner does not support that. Runs before torch is imported."""
    for name, source in experiment.hub_models.items():
        if name in experiment.learners:
            from cadre.engines import model_folder

            for fault in media_learner(name, experiment.learners[name], partial(model_folder.model_type, source)):
                raise ConfigError(fault)


def _can_sample_while_learning(experiment: Experiment) -> bool:
    """Return True if sampling need not wait for the learners. That is so in a cluster, and if every trained policy is
    sampled with other weights than the learner's and does not wait for the learner's GPU, or is trained by ranks, which
    are other processes."""
    if experiment.config.cluster is not None:
        return True
    separate = [] if experiment.colocated else experiment.vllm_policies
    trained = {*experiment.trained_roles.values()} - {*separate}
    return all(experiment.learners[name].ranks > 1 for name in trained)


# ---- One engine: its specification, and its samplers and learner


def make_engine_spec(
    experiment: Experiment, names: Sequence[str], training: TrainingSettings | None, memory: int | None
) -> EngineSpec:
    """Return the specification of the engine of these policies. `memory` are bytes to sample in."""
    policies = {name: experiment.policies[name] for name in names}
    model, staleness = experiment.models[names[0]], experiment.config.train.max_staleness
    vllm_names = [name for name in names if name in experiment.vllm_policies]
    vllm = VllmSpec(
        model=model,
        policies={name: policies[name] for name in vllm_names},
        config=experiment.config.vllm.model_copy(update={"colocated": experiment.colocated}),
        # It has memory of its own, set by the policies that it samples.
        memory=sampling_memory_setting(experiment, vllm_names),
        max_staleness=staleness,
        deterministic=experiment.config.train.deterministic,
    )
    graphs = {experiment.samplers[name].graphs for name in names} - {None}  # of one engine: if any policy asks for it
    engine = TorchSpec(
        model,
        policies,
        experiment.config.train.seed,
        memory,
        count_memory_sharers(experiment),
        _least_bytes(experiment.samplers[name].turns_memory for name in names),
        any(graphs) if graphs else None,
        is_trained=training is not None,
    )
    # Weights of as many updates as sampling may be behind are kept, and two more: the present and the next ones.
    learner = None if training is None else LearnerSpec(engine, training, experiment.ranks(names), staleness + 2)
    return EngineSpec(engine, vllm if vllm_names else None, learner)


def training_settings(
    experiment: Experiment, names: Sequence[str], notes: TokenNotes, start: Mapping[str, str] | None = None
) -> TrainingSettings:
    """Return how these policies of one engine are trained."""
    from cadre.engines.torch import TrainingSettings

    critic = experiment.plan.critic
    return TrainingSettings(
        learners={name: learner for name, learner in experiment.learners.items() if name in names},
        loss=experiment.plan.loss,
        total_steps=experiment.config.train.steps,
        heads={name: heads for name, heads in experiment.heads.items() if name in names},
        critic=critic.config if critic else CriticConfig(),
        notes=notes,
        start=None if start is None else {name: folder for name, folder in start.items() if name in names},
    )


def sampling_memory_setting(
    experiment: Experiment, names: Sequence[str], earlier: Mapping[str, float] = MappingProxyType({})
) -> int | None:
    """Return the bytes that policies of one engine may be sampled in: the least of their settings, or of what they had
    before (`earlier`); None if that is left to the device."""
    return _least_bytes(experiment.samplers[name].memory or earlier.get(name) for name in names)


def _least_bytes(settings: Iterable[float | None]) -> int | None:
    return min((int(gib * GIB) for gib in settings if gib is not None), default=None)


def count_memory_sharers(experiment: Experiment) -> int:
    """Return how many engines share a device's memory: one per base model, or in a cluster one per process that has no
    GPU of its own."""
    config = experiment.config.cluster
    if config is None:
        return len(experiment.engines)
    sharers = 0
    for names in experiment.engines:
        is_trained = experiment.ranks(names) > 0
        placed = config.place(names, is_trained)
        if placed.together:
            sharers += placed.samplers + is_trained
        else:
            sharers += 1 if placed.sampler_gpus else placed.samplers
    return sharers


def measured_sampling_memory(team: Team) -> dict[str, float]:
    """Return the GiB that each policy may be sampled in, of those whose sampler splits batches by memory."""
    return {
        name: sampler.memory / GIB
        for name, sampler in team.samplers.items()
        if isinstance(sampler, BatchMemory) and sampler.memory is not None
    }


def build_in_process(spec: EngineSpec) -> SamplersAndLearner:
    """Return the samplers by policy and the learner, in this process and the ranks that it starts."""
    samplers: dict[str, Sampler] = {}
    with closed_on_failure() as failed:
        if spec.vllm is not None:
            vllm = spec.vllm.make()
            failed.callback(vllm.close)
            samplers |= dict.fromkeys(spec.vllm_names, vllm)
        # The learner of one rank trains the engine's own weights.
        in_place = spec.learner is not None and spec.learner.ranks == 1
        engine = spec.engine.make() if spec.torch_names or in_place else None
        if engine is not None:
            failed.callback(engine.close)
            samplers |= dict.fromkeys(spec.torch_names, engine)
        learner: Learner | None = None if spec.learner is None else spec.learner.make(engine)
        if learner is not None and spec.vllm is not None:
            from cadre.engines.vllm.weight_sync import AsyncLearner, ColocatedLearner

            if spec.vllm.config.colocated:
                learner = cast(Learner, ColocatedLearner(learner, vllm, spec.vllm.config.sleep))
            elif spec.vllm.max_staleness > 0:
                learner = cast(Learner, AsyncLearner(learner))
    return samplers, learner


def build_in_cluster(cluster: Cluster, spec: EngineSpec) -> SamplersAndLearner:
    """Return the samplers by policy and the learner, as Ray actors."""
    samplers: dict[str, Sampler] = {}
    with closed_on_failure() as failed:
        learner = None if spec.learner is None else cluster.make_learner(spec.learner)
        if learner is not None:
            failed.callback(learner.close)
        for part, names in ((spec.vllm, spec.vllm_names), (spec.engine, spec.torch_names)):
            if part is not None and names:
                pool = cluster.make_pool(part, learner is not None)
                failed.callback(pool.close)
                samplers |= dict.fromkeys(names, pool)
    return samplers, learner


def host_environments(experiment: Experiment) -> Experiment:
    """Return the experiment with environments that step in its cluster, if that has processes for them."""
    config = experiment.config.cluster
    if config is None or not config.environments:
        return experiment
    cluster: Cluster = component("cluster")(config)
    return replace(experiment, env_spec=cluster.host_environment(experiment.env_spec, experiment.config.sandbox))


# ---- Other policies for roles: `cadre eval --assign` and `--untrained`


def parse_assignment(experiment: Experiment, text: str) -> dict[str, str]:
    """Parse `tool=planner,planner=tool`: the policy to play each role, by name or by the role that it trained in."""
    policies, roles = experiment.playing, experiment.roles
    names = dict.fromkeys([*experiment.policies, *roles])
    assignment: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        role, _, name = pair.partition("=")
        policy = roles.get(name, name)
        if role not in roles or policy not in policies:
            raise ConfigError(
                f"--assign: got {pair!r}; expected ROLE=POLICY with a role of {', '.join(roles)} and a "
                f"policy of {', '.join(names)}.{nearest(name, names)}"
            )
        if role in assignment:
            raise ConfigError(f"--assign: got {role} twice; expected one policy for a role. Remove one of them.")
        assignment[role] = policy
    return assignment


def parse_untrained_roles(roles: Mapping[str, str], text: str) -> list[str]:
    """Return the roles in `left,right`. Raises ConfigError for one that does not exist."""
    names = text.split(",") if text else []
    for role in names:
        if role not in roles:
            raise ConfigError(f"--untrained: got {role!r}; expected roles of {', '.join(roles)}.{nearest(role, roles)}")
    return names


def add_untrained(experiment: Experiment, team: Team, roles: str) -> Team:
    """Return the team with the named roles played by their models as they were before training."""
    names = parse_untrained_roles(experiment.roles, roles)
    # A second team, since a sampler holds one set of weights per policy.
    fresh = build_team(experiment)
    renamed = {
        f"untrained {policy}": RenamedPolicySampler(sampler, policy) for policy, sampler in fresh.samplers.items()
    }
    changes = {role: f"untrained {team.assignment[role]}" for role in names}
    return replace(team, samplers={**team.samplers, **renamed}).assigned(changes)


@dataclass(frozen=True)
class RenamedPolicySampler:
    """A sampler whose policy has another name in this team."""

    sampler: Sampler
    policy: str

    async def sample(self, request: Request) -> list[Sample]:
        return await self.sampler.sample(replace(request, policy=self.policy))

    async def load(self, weights: Weights) -> None:
        await self.sampler.load(replace(weights, policy=self.policy))

    def close(self) -> None:
        self.sampler.close()
