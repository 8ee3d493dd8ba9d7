"""The engines that sample and train: by the name in `sampling.engine`, what each can do and how it is built.

The torch engine samples and trains. Any other one samples only, with weights of its own that the learner sends it. A
new one is an entry in SAMPLERS, a specification that builds it, and a package beside this file; nothing else names it
(docs/add_a_sampler.md). A specification can be sent to another process. Nothing here imports torch or a sampler's own
library before something is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from cadre.plugins import install_command
from cadre.settings import PolicyConfig, VllmConfig
from cadre.team import Learner, Sampler

if TYPE_CHECKING:
    from cadre.engines.torch import TorchEngine, TrainingSettings
    from cadre.engines.torch.group import LearnerPart
    from cadre.engines.vllm import VllmSampler

TORCH = "torch"


# ---- Specifications: what is built, in this process or in an actor's


class SamplerSpec(Protocol):
    """Builds a sampler of policies on one base model."""

    @property
    def model(self) -> str: ...

    @property
    def policies(self) -> Mapping[str, PolicyConfig]: ...

    def make(self) -> Sampler:
        """Build it in this process. Raises EngineError if the model or a setting cannot be used."""
        ...

    def with_memory(self, memory: int) -> SamplerSpec:
        """Return the specification with batches that take so many bytes, if they are the sampler's to choose."""
        ...


class SeparateSamplerSpec(SamplerSpec, Protocol):
    """Builds a sampler that has weights of its own."""

    def wrap_learner(self, learner: Learner, sampler: Any, colocated: bool) -> Learner:
        """Return the learner as it works beside the sampler: in turn on one GPU if `colocated`, or while it samples."""
        ...


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
        """Return the same specification: vLLM decides itself what shares a batch."""
        return self

    def wrap_learner(self, learner: Learner, sampler: Any, colocated: bool) -> Learner:
        """Return a learner that puts the sampler to sleep, or one that publishes copies if the two overlap."""
        from cadre.engines.vllm.weight_sync import AsyncLearner, ColocatedLearner

        if colocated:
            return ColocatedLearner(learner, sampler, self.config.sleep)
        return AsyncLearner(learner) if self.max_staleness > 0 else learner


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


# ---- Kinds of samplers: what each can do


@dataclass(frozen=True)
class SeparateSampling:
    """The policies of one base model that a sampler with weights of its own samples.

    memory         bytes for keys and values, None if no policy sets them
    max_staleness  updates that sampling may lag behind
    deterministic  batches follow from the work alone; None if that is left to the sampler
    settings       the sampler's own section of the configuration
    """

    model: str
    policies: Mapping[str, PolicyConfig]
    settings: Any
    memory: int | None
    max_staleness: int
    deterministic: bool | None


@dataclass(frozen=True)
class GpuUse:
    """What a sampler with weights of its own takes of a GPU, to estimate it before it starts.

    cache_bytes  returns the bytes of its KV cache that nobody sets, given its section, the context of the model, the
                 bytes of a token's keys and values, those of the weights, and those of the GPU
    sleep        the setting of its section that says what it frees while the learner works: none, cache, offload (the
                 weights wait on the CPU), discard (they are sent again), or auto, the first that leaves half free
    to_shrink    the setting that makes the cache smaller
    """

    cache_bytes: Callable[[Any, int, int, int, int], int]
    sleep: str
    to_shrink: str


@dataclass(frozen=True)
class SamplerKind:
    """A sampler with weights of its own: what it can do, as far as anybody else has to know.

    title           its name for people
    package         what must be importable, and `install` says how to get it
    section         its own section of the configuration
    unused          settings of sampling that it has no use for, and why
    dropping        settings of its section, and the value under which it forgets weights that no sync sends again if
                    they are a frozen base's
    reads_images    it can be given a conversation's images
    loads_adapters  it can begin from an adapter in a folder (`lora.path`)
    max_rank        the largest rank of an adapter
    gpu             what it takes of a GPU, None if that is unknown
    make_spec       makes the specification
    """

    title: str
    package: str
    install: Callable[[], str]
    section: str
    make_spec: Callable[[SeparateSampling], SeparateSamplerSpec]
    unused: Mapping[str, str] = field(default_factory=dict)
    dropping: Mapping[str, str] = field(default_factory=dict)
    reads_images: bool = False
    loads_adapters: bool = False
    max_rank: int = 1 << 30
    gpu: GpuUse | None = None


def _make_vllm_spec(sampling: SeparateSampling) -> VllmSpec:
    return VllmSpec(
        sampling.model,
        sampling.policies,
        sampling.settings,
        sampling.memory,
        sampling.max_staleness,
        sampling.deterministic,
    )


def _vllm_cache_bytes(config: VllmConfig, longest: int, token_bytes: int, weights: int, total: int) -> int:
    from cadre.engines.vllm.engine import estimate_cache_bytes

    return estimate_cache_bytes(config, longest, token_bytes, weights, total)


SAMPLERS: dict[str, SamplerKind] = {
    "vllm": SamplerKind(
        title="vLLM",
        package="vllm",
        install=lambda: (
            f"expected version 0.32 of it. Run {install_command('vllm')} (without a card: make vllm, in the clone)"
        ),
        section="vllm",
        make_spec=_make_vllm_spec,
        unused={
            "graphs": "which has graphs of its own (vllm.eager)",
            "turns_memory": "which keeps earlier turns within sampling.memory",
        },
        dropping={"sleep": "discard"},
        max_rank=512,
        gpu=GpuUse(_vllm_cache_bytes, sleep="sleep", to_shrink="vllm.context"),
    )
}
# What `sampling.engine: auto` tries, in order, before the torch engine.
PREFERRED = ("vllm",)
