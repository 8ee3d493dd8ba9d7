"""What of an experiment is on one base model, and its samplers and learner: in this process, or in its cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from cadre.cluster.placement import placement
from cadre.cluster.recipes import EngineRecipe, LearnerRecipe, VllmRecipe
from cadre.experiment.experiment import Experiment
from cadre.learn.token_notes import TokenNotes
from cadre.settings import CriticConfig
from cadre.settings.section import merged
from cadre.team import Learner, Sampler, closed_on_failure

if TYPE_CHECKING:
    from cadre.cluster.cluster import Cluster
    from cadre.engines.torch import TrainingSettings
    from cadre.engines.vllm import VllmSampler

GIB = 1 << 30


@dataclass(frozen=True)
class Base:
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
class Watched:
    """What learners leave for people to look at: in the folder `diverged` the sequence that made an update non-finite,
    if one does; and notes on single tokens."""

    diverged: Path | None = None
    notes: TokenNotes = field(default_factory=lambda: TokenNotes(0))


Placed = tuple[dict[str, Sampler], Learner | None]


def engines_of(experiment: Experiment) -> list[list[str]]:
    """The policies of each engine: adapters and frozen policies of one base together, at one precision and device."""
    engines: dict[tuple[str, str], list[str]] = {}
    for name, model in experiment.models.items():
        policy = experiment.policies[name]
        alike = f"{policy.dtype} on {policy.device}" if policy.shares_base else name
        engines.setdefault((model, alike), []).append(name)
    return list(engines.values())


def memory_setting(
    experiment: Experiment, names: Sequence[str], before: Mapping[str, float] = MappingProxyType({})
) -> int | None:
    """Bytes that policies of one engine may be sampled in: the least of what they are set to, or had before; None
    where that is left to the device."""
    config = experiment.config.sampling
    wanted = [merged(config, experiment.policies[name].sampling).memory or before.get(name) for name in names]
    return min((int(gib * GIB) for gib in wanted if gib is not None), default=None)


def turns_setting(experiment: Experiment, names: Sequence[str]) -> int | None:
    """Bytes that keys and values of earlier turns may take: the least that policies of one engine are set to, None
    where nobody says."""
    config = experiment.config.sampling
    wanted = [merged(config, experiment.policies[name].sampling).turns_memory for name in names]
    return min((int(gib * GIB) for gib in wanted if gib is not None), default=None)


def graphs_setting(experiment: Experiment, names: Sequence[str]) -> bool | None:
    """Whether decoding steps of an engine are replayed as CUDA graphs: if one of its policies asks for it, else not if
    one asks for that; None where nobody says."""
    config = experiment.config.sampling
    said = {merged(config, experiment.policies[name].sampling).graphs for name in names} - {None}
    return any(said) if said else None


def ranks_of(experiment: Experiment, names: Sequence[str]) -> int:
    """How many processes train the policies of one model; 0 where none of them is trained."""
    return max((experiment.learners[name].ranks for name in names if name in experiment.learners), default=0)


def sharing_of(experiment: Experiment) -> int:
    """How many engines share a device's memory: one a base model, or in a cluster its processes that are not on cards
    of their own."""
    return sum(_sharing(experiment, names) for names in engines_of(experiment))


def _sharing(experiment: Experiment, names: Sequence[str]) -> int:
    if experiment.config.cluster is None:
        return 1
    trains = ranks_of(experiment, names) > 0
    places = placement(experiment.config.cluster, names, trains)
    if places.together:
        return places.samplers + trains
    return 1 if places.sampler_cards else places.samplers


def base_of(
    experiment: Experiment, names: Sequence[str], training: TrainingSettings | None, memory: int | None
) -> Base:
    """The base of these policies."""
    config, policies = experiment.config, {name: experiment.policies[name] for name in names}
    served = [name for name in names if name in experiment.on_vllm]
    model, sharing = experiment.models[names[0]], sharing_of(experiment)
    ahead = config.train.max_staleness
    of_vllm = memory_setting(experiment, served)
    vllm = VllmRecipe(model, {name: policies[name] for name in served}, config.vllm, of_vllm, ahead)
    turns, graphs = turns_setting(experiment, names), graphs_setting(experiment, names)
    engine = EngineRecipe(model, policies, config.train.seed, memory, sharing, turns, graphs)
    return Base(
        engine=engine,
        served=served,
        vllm=vllm if served else None,
        learner=None if training is None else LearnerRecipe(engine, training, ranks_of(experiment, names), ahead + 2),
        colocated=config.vllm.colocated,
        at_once=ahead > 0,
    )


def training_of(experiment: Experiment, names: Sequence[str], watched: Watched) -> TrainingSettings:
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


def here(base: Base) -> Placed:
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
        learner = None if base.learner is None else _beside(base, base.learner.make(engine), vllm)
    return samplers, learner


def _beside(base: Base, learner: Learner, vllm: VllmSampler | None) -> Learner:
    """The learner as it takes its turn with the sampler that has its policies' weights in another process, if any."""
    if vllm is None:
        return learner
    from cadre.engines.vllm.beside import LearnerAtOnce, LearnerInTurns

    if base.colocated:
        return LearnerInTurns(learner, vllm)
    return LearnerAtOnce(learner) if base.at_once else learner


def in_cluster(cluster: Cluster, base: Base) -> Placed:
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
