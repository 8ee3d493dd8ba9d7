"""From an experiment to the team that plays it: here models load, and nowhere before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from cadre.errors import ConfigError, nearest
from cadre.experiment.config import Config
from cadre.experiment.experiment import Experiment
from cadre.experiment.trees.vocabulary import Vocabulary
from cadre.learn.token_notes import TokenNotes
from cadre.settings import CriticConfig
from cadre.settings.section import merged
from cadre.team import Learner, RewardModel, Sampler, Team, Weights
from cadre.types import Request, Sample

if TYPE_CHECKING:
    from cadre.engines.torch import TrainingSettings
    from cadre.engines.vllm import VllmSampler

GIB = 1 << 30


@dataclass(frozen=True)
class Watched:
    """What learners leave for people to look at: in the folder `diverged` the sequence that made an update non-finite,
    if one does; and notes on single tokens."""

    diverged: Path | None = None
    notes: TokenNotes = field(default_factory=lambda: TokenNotes(0))


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
    from cadre.engines.torch import TorchEngine, TorchLearner

    samplers: dict[str, Sampler] = _remote(experiment)
    learners: list[Learner] = []
    engines = engines_of(experiment)
    for names in engines:
        served = [name for name in names if name in experiment.on_vllm]
        vllm = _on_vllm(experiment, served) if served else None
        trained = train and any(name in experiment.learners for name in names)
        if vllm is not None:
            samplers |= dict.fromkeys(served, vllm)
        grouped = trained and ranks_of(experiment, names) > 1
        if len(served) < len(names) or (trained and not grouped):
            policies = {name: experiment.policies[name] for name in names}
            seed, most = experiment.config.train.seed, memory_setting(experiment, names, memory)
            engine = TorchEngine(experiment.models[names[0]], policies, seed, most, len(engines))
            samplers = dict.fromkeys(names, engine) | samplers
        if trained:
            settings = _training(experiment, names, watched or Watched())
            learner = _group(experiment, names, settings) if grouped else TorchLearner(engine, settings)
            learners.append(_beside(experiment, learner, vllm))
    roles, scorer = experiment.config.team.roles, _reward_model(experiment)
    return Team(roles, samplers, experiment.sampling, learners, scorer, _apart(experiment))


def ask_hub(experiment: Experiment) -> None:
    """Raises EngineError where a model of the hub cannot be had; asked before torch is imported."""
    names = [model for model in experiment.models.values() if not Path(model).is_dir()]
    if names:
        from cadre.engines import hub

        for name in names:
            hub.available(name)


def engines_of(experiment: Experiment) -> list[list[str]]:
    """The policies of each engine: adapters and frozen policies of one base together, at one precision and device."""
    engines: dict[tuple[str, str], list[str]] = {}
    for name, model in experiment.models.items():
        policy = experiment.policies[name]
        alike = f"{policy.dtype} on {policy.device}" if policy.shares_base else name
        engines.setdefault((model, alike), []).append(name)
    return list(engines.values())


def memory_setting(
    experiment: Experiment, names: list[str], before: Mapping[str, float] = MappingProxyType({})
) -> int | None:
    """Bytes that policies of one engine may be sampled in: the least of what they are set to, or had before; None
    where that is left to the device."""
    config = experiment.config.sampling
    wanted = [merged(config, experiment.policies[name].sampling).memory or before.get(name) for name in names]
    return min((int(gib * GIB) for gib in wanted if gib is not None), default=None)


def sampling_memory(team: Team) -> dict[str, float]:
    """GiB that each policy may be sampled in, of those that are sampled here."""
    from cadre.engines.torch import TorchEngine

    return {name: sampler.memory / GIB for name, sampler in team.samplers.items() if isinstance(sampler, TorchEngine)}


def _on_vllm(experiment: Experiment, names: list[str]) -> VllmSampler:
    """The sampler of the policies of one base that vLLM draws for."""
    from cadre.engines.vllm import VllmSampler
    from cadre.engines.vllm.arguments import Options

    policies = {name: experiment.policies[name] for name in names}
    options = Options(experiment.config.vllm, memory_setting(experiment, names), experiment.config.train.max_staleness)
    return VllmSampler(experiment.models[names[0]], policies, options)


def _apart(experiment: Experiment) -> bool:
    """Whether sampling goes on while the learners learn: where all that they train is drawn by vLLM, whose weights are
    its own, and which does not wait for their card, or is trained by ranks, which are other processes."""
    on_vllm = () if experiment.config.vllm.colocated else experiment.on_vllm
    trained = set(experiment.trained_roles.values()) - set(on_vllm)
    return all(experiment.learners[name].ranks > 1 for name in trained)


def _beside(experiment: Experiment, learner: Learner, vllm: VllmSampler | None) -> Learner:
    """The learner as it takes its turn with the sampler that has its policies' weights in another process, if any."""
    if vllm is None:
        return learner
    from cadre.engines.vllm.beside import LearnerAtOnce, LearnerInTurns

    if experiment.config.vllm.colocated:
        return LearnerInTurns(learner, vllm)
    return LearnerAtOnce(learner) if experiment.config.train.max_staleness else learner


def ranks_of(experiment: Experiment, names: list[str]) -> int:
    """How many processes train the policies of one model; 0 where none of them is trained."""
    return max((experiment.learners[name].ranks for name in names if name in experiment.learners), default=0)


def vocabulary(experiment: Experiment) -> Vocabulary:
    """What spells the tokens of every policy whose model is here."""
    from cadre.engines.spelling import Speller

    return Vocabulary({policy: Speller(source) for policy, source in experiment.models.items()})


def _training(experiment: Experiment, names: list[str], watched: Watched) -> TrainingSettings:
    """How the policies of one model learn."""
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


def _group(experiment: Experiment, names: list[str], settings: TrainingSettings) -> Learner:
    """Processes that train the policies of one model together."""
    from cadre.engines.torch.group import GroupLearner, LearnerPart

    policies, train = {name: experiment.policies[name] for name in names}, experiment.config.train
    part = LearnerPart(experiment.models[names[0]], policies, settings, train.seed, train.max_staleness + 2)
    return GroupLearner(part, ranks_of(experiment, names))


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
