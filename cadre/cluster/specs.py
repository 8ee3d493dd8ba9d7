"""Specifications of actors: their resources, and the engine or learner that each builds. Nothing here needs Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cadre.errors import ConfigError
from cadre.settings import PolicyConfig, VllmConfig
from cadre.settings.engines import ClusterConfig, PlacementConfig
from cadre.settings.section import apply_changes
from cadre.team import Learner

if TYPE_CHECKING:
    from cadre.engines.torch import TorchEngine, TrainingSettings
    from cadre.engines.torch.group import LearnerPart
    from cadre.engines.vllm import VllmSampler


@dataclass(frozen=True)
class Placement:
    """The resources of the actors of one base model.

    samplers        how many there are
    sampler_cards   GPUs of each; a fraction if they share the learner's
    learner_cards   GPUs of the learner
    together        whether all of them must be on one machine, on the same GPUs
    """

    samplers: int
    sampler_cards: float
    learner_cards: float
    together: bool


def plan_placement(config: ClusterConfig, policies: Sequence[str], trains: bool) -> Placement:
    """Return the placement of the base model of these policies. Raises ConfigError if their settings differ."""
    plain = PlacementConfig(**{name: getattr(config, name) for name in PlacementConfig.model_fields})
    settings = {name: apply_changes(plain, config.policies.get(name, PlacementConfig())) for name in policies}
    first = settings[policies[0]]
    for name, setting in settings.items():
        if setting != first:
            raise ConfigError(
                f"cluster.policies.{name}: got other numbers than for {policies[0]}, which is on the same base model "
                "and sampled and trained with it; expected the same. Name them once, or for both alike."
            )
    learner = float(first.learner_cards) if trains else 0.0
    if not first.colocated:
        return Placement(first.samplers, float(first.sampler_cards), learner, False)
    # The learner's GPUs in equal parts for all samplers and the learner.
    fraction = first.learner_cards / (first.samplers + trains)
    return Placement(first.samplers, fraction, fraction if trains else 0.0, True)


def check_policies(config: ClusterConfig, policies: Mapping[str, object]) -> None:
    """Raise ConfigError for the placement of an unknown policy."""
    for name in config.policies:
        if name not in policies:
            raise ConfigError(
                f"cluster.policies.{name}: there is no such policy; expected one of {', '.join(policies)}. Fix the "
                "name."
            )


@dataclass(frozen=True)
class TorchSpec:
    """A torch engine: the arguments of `TorchEngine`, the bytes that the prefix cache across turns may take, and
    whether decoding steps are replayed as CUDA graphs (None: if it is on a GPU)."""

    model: str
    policies: Mapping[str, PolicyConfig]
    seed: int
    memory: int | None = None
    sharing: int = 1
    turns: int | None = None
    graphs: bool | None = None

    def make(self) -> TorchEngine:
        """Build the engine in this process. Raises EngineError if the model or a setting cannot be used."""
        from cadre.engines.torch import TorchEngine
        from cadre.engines.torch.engine import graphs_for

        graphs = graphs_for(self.policies, self.graphs)
        engine = TorchEngine(self.model, self.policies, self.seed, self.memory, self.sharing)
        if self.turns is not None and engine.loaded.pictures is None:
            engine.prefix_cache.limit = self.turns
        engine.graphs = graphs
        return engine

    def with_memory(self, memory: int) -> TorchSpec:
        """Return the spec with batches that take so many bytes."""
        return replace(self, memory=memory)


@dataclass(frozen=True)
class VllmSpec:
    """A sampler on vLLM: the arguments of `VllmSampler` and its options."""

    model: str
    policies: Mapping[str, PolicyConfig]
    config: VllmConfig
    memory: int | None
    max_staleness: int
    deterministic: bool | None = None

    def make(self) -> VllmSampler:
        """Build the sampler, with vLLM in a process beside this one."""
        from cadre.engines.vllm import VllmSampler
        from cadre.engines.vllm.engine import Options

        options = Options(self.config, self.memory, self.max_staleness, self.deterministic)
        return VllmSampler(self.model, self.policies, options)

    def with_memory(self, memory: int) -> VllmSpec:
        """Return the same spec: vLLM decides itself what shares a batch."""
        return self


@dataclass(frozen=True)
class LearnerSpec:
    """The learner of an engine's policies, in one process or `ranks` of them.

    Ranks publish folders of weights, of which the latest `versions` are kept.
    """

    engine: TorchSpec
    training: TrainingSettings
    ranks: int
    versions: int

    def make(self, engine: TorchEngine | None) -> Learner:
        """Build the learner; without ranks it trains the `engine` in place."""
        from cadre.engines.torch import TorchLearner
        from cadre.engines.torch.group import GroupLearner

        if engine is not None and self.ranks == 1:
            return TorchLearner(engine, self.training)
        return GroupLearner(self.part, self.ranks)

    @property
    def part(self) -> LearnerPart:
        """The part of the learner that each rank builds."""
        from cadre.engines.torch.group import LearnerPart

        engine = self.engine
        return LearnerPart(engine.model, engine.policies, self.training, engine.seed, self.versions)


SamplerSpec = TorchSpec | VllmSpec
