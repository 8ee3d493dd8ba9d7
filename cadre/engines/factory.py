"""Specifications of samplers and learners: what is built, in this process or in an actor's.

The torch engine samples and trains. vLLM only samples, with weights of its own that the learner sends it. Nothing here
imports torch or vLLM before something is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cadre.settings import PolicyConfig, VllmConfig
from cadre.team import Learner

if TYPE_CHECKING:
    from cadre.engines.torch import TorchEngine, TrainingSettings
    from cadre.engines.vllm import VllmSampler


@dataclass(frozen=True)
class TorchSpec:
    """A torch engine: the arguments of `TorchEngine`, the bytes that the prefix cache across turns may take, and
    whether decoding steps are replayed as CUDA graphs (None: if it is on a GPU). An engine that is not trained, as in
    an evaluation, has the memory of gradients and moments for sampling."""

    model: str
    policies: Mapping[str, PolicyConfig]
    seed: int
    memory: int | None = None
    sharing: int = 1
    turns: int | None = None
    graphs: bool | None = None
    is_trained: bool = True

    def make(self) -> TorchEngine:
        """Build the engine in this process. Raises EngineError if the model or a setting cannot be used."""
        from cadre.engines.torch import TorchEngine
        from cadre.engines.torch.engine import graphs_for
        from cadre.engines.torch.kv_cache import run_eagerly

        graphs = graphs_for(self.policies, self.graphs)
        engine = TorchEngine(self.model, self.policies, self.seed, self.memory, self.sharing, self.is_trained)
        if self.turns is not None and engine.loaded.pictures is None:
            engine.prefix_cache.limit = self.turns
        if engine.record is not None and not graphs:
            engine.record = run_eagerly
        return engine


@dataclass(frozen=True)
class VllmSpec:
    """A sampler on vLLM of policies on one base model.

    memory         bytes for keys and values, None if no policy sets them
    max_staleness  updates that sampling may lag behind
    deterministic  batches follow from the work alone; None: on a CPU
    """

    model: str
    policies: Mapping[str, PolicyConfig]
    config: VllmConfig
    memory: int | None = None
    max_staleness: int = 0
    deterministic: bool | None = None

    def make(self) -> VllmSampler:
        """Build the sampler, with vLLM in a process beside this one. Raises EngineError if that cannot start."""
        from cadre.engines.vllm import VllmSampler
        from cadre.engines.vllm.engine import Options

        options = Options(self.config, self.memory, self.max_staleness, self.deterministic)
        return VllmSampler(self.model, self.policies, options)


SamplerSpec = TorchSpec | VllmSpec


@dataclass(frozen=True)
class LearnerSpec:
    """The learner of an engine's policies, in one process or `ranks` of them. Ranks publish folders of weights, of
    which the latest `versions` are kept."""

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
        return GroupLearner(self)
