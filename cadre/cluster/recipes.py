"""What an actor makes when it begins, as records that travel to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cadre.settings import PolicyConfig, VllmConfig
from cadre.team import Learner

if TYPE_CHECKING:
    from cadre.engines.torch import TorchEngine, TrainingSettings
    from cadre.engines.torch.group import LearnerPart
    from cadre.engines.vllm import VllmSampler


@dataclass(frozen=True)
class EngineRecipe:
    """A torch engine: its arguments, as `TorchEngine` has them, the bytes that earlier turns may take, and whether its
    decoding steps are replayed as CUDA graphs; None: if it is on a card."""

    model: str
    policies: Mapping[str, PolicyConfig]
    seed: int
    memory: int | None = None
    sharing: int = 1
    turns: int | None = None
    graphs: bool | None = None

    def make(self) -> TorchEngine:
        """The engine, in this process. Raises EngineError where the model cannot be used, or not as asked."""
        from cadre.engines.torch import TorchEngine
        from cadre.engines.torch.engine import graphs_for

        graphs = graphs_for(self.policies, self.graphs)
        engine = TorchEngine(self.model, self.policies, self.seed, self.memory, self.sharing)
        if self.turns is not None and engine.loaded.pictures is None:
            engine.prefix_cache.limit = self.turns
        engine.graphs = graphs
        return engine

    def within(self, memory: int) -> EngineRecipe:
        """The same, whose batches take so many bytes."""
        return replace(self, memory=memory)


@dataclass(frozen=True)
class VllmRecipe:
    """A sampler by vLLM: its arguments, as `VllmSampler` and its options have them."""

    model: str
    policies: Mapping[str, PolicyConfig]
    config: VllmConfig
    memory: int | None
    max_staleness: int

    def make(self) -> VllmSampler:
        """The sampler, with vLLM in a process beside this one."""
        from cadre.engines.vllm import VllmSampler
        from cadre.engines.vllm.arguments import Options

        return VllmSampler(self.model, self.policies, Options(self.config, self.memory, self.max_staleness))

    def within(self, memory: int) -> VllmRecipe:
        """The same: vLLM decides for itself what shares a batch."""
        return self


@dataclass(frozen=True)
class LearnerRecipe:
    """What trains the policies of an engine: this process, or so many `ranks`, which hand over folders of weights, of
    which `kept` versions lie ready."""

    engine: EngineRecipe
    training: TrainingSettings
    ranks: int
    kept: int

    def make(self, engine: TorchEngine | None) -> Learner:
        """The learner; without ranks it trains the `engine` in place."""
        from cadre.engines.torch import TorchLearner
        from cadre.engines.torch.group import GroupLearner

        if engine is not None and self.ranks == 1:
            return TorchLearner(engine, self.training)
        return GroupLearner(self.part, self.ranks)

    @property
    def part(self) -> LearnerPart:
        """What the ranks train."""
        from cadre.engines.torch.group import LearnerPart

        of = self.engine
        return LearnerPart(of.model, of.policies, self.training, of.seed, self.kept)


SamplerRecipe = EngineRecipe | VllmRecipe
