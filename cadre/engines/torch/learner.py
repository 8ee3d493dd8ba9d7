"""The learner's side of a torch engine: trains the engine's policies in place, in the engine's thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from cadre.engines.torch import storage
from cadre.engines.torch.engine import TorchEngine
from cadre.engines.torch.forward import MicroBatchRunner, Scorer
from cadre.engines.torch.logprobs import check_projection
from cadre.engines.torch.model import check_torch_defaults, is_fully_trained, load_reference
from cadre.engines.torch.prefix_tree import check_flex_attention
from cadre.engines.torch.trainer import PolicyOptimiser, Trainer, TrainingSettings
from cadre.learn.loss import ValueHeads
from cadre.team import Metrics, Weights
from cadre.types import Message, Tool, TrainingSequence

# Updates on one GPU take turns, as each chooses its micro-batches by all the memory that is free.
_device_locks: dict[torch.device, threading.Lock] = {}


class TorchLearner:
    """A `Learner` of the policies of one engine that are not frozen. Lives as long as the engine.

    Raises EngineError if the model cannot be trained with these settings.
    """

    def __init__(self, engine: TorchEngine, settings: TrainingSettings) -> None:
        self.engine = engine
        engine.work(self._prepare, settings)

    def _prepare(self, settings: TrainingSettings) -> None:
        engine, model = self.engine, self.engine.loaded.model
        check_flex_attention(settings.learners, model.device)
        model.requires_grad_(any(is_fully_trained(policy) for policy in engine.policies.values()))
        self._heads = ValueHeads(settings.heads, model.config.get_text_config().hidden_size, model.device)
        self._optimisers = {
            name: PolicyOptimiser(engine.loaded, self._heads, settings, name)
            for name, policy in engine.policies.items()
            if not policy.frozen
        }
        learners = list(settings.learners.values())
        self._runner = MicroBatchRunner(engine.loaded, engine.dtype, self._heads, learners)
        self._trainer = Trainer(self._runner, self._optimisers, settings, engine.seed)
        self._reference: Scorer | None = None
        self._start = settings.start
        self._start_adapters = storage.copy_adapters(engine.loaded.adapters, settings.start or {})
        if self._optimisers:
            check_projection(model)

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained here; frozen ones are sampled from only."""
        return tuple(self._optimisers)

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Make one update of every policy that has sequences; return metrics by policy. Raises DivergedError."""
        return await self.engine.run(self._update, data)

    async def publish(self, policy: str) -> Weights:
        """Return the very tensors that the policy is sampled and trained with."""
        return Weights(policy, self._optimisers[policy].updates, tensors=self.engine.parameters(policy))

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return log-probabilities of the masked tokens under the reference; T a sequence.

        It is the base with its adapters off, or with those of the start of reinforcement learning, or for a fully
        trained model a frozen copy that is loaded once.
        """
        if self._start_adapters:
            return self.engine.work(self._score_start_adapters, data)
        if self._reference is None:
            has_adapters = bool(self.engine.loaded.adapters.pairs)
            self._reference = self._runner.scorer if has_adapters else self.engine.work(self._load_reference)
        return self.engine.work(self._runner.compute_logprobs, data, self._reference)

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return log-probabilities of the masked tokens under the policies as they are now; T a sequence."""
        return self.engine.work(self._runner.compute_logprobs, data)

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation that the policy would answer next."""
        return self.engine.encode(policy, messages, tools)

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return the outputs of the value heads at the positions in `targets`, a tuple a sequence."""
        return self.engine.work(self._runner.compute_values, data)

    def save(self, folder: Path) -> None:
        """Write `folder/POLICY` for each trained policy: its `export`, `optimiser/`, and `heads/` if it has some."""
        self.engine.work(self._save, folder)

    def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote."""
        self.engine.work(self._load, folder)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre, as `TorchEngine.export` does."""
        self.engine.work(self.engine.export, policy, folder, merge)

    def close(self) -> None:
        """Close the engine, whose thread this is too."""
        self.engine.close()

    def _update(self, sequences: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        check_torch_defaults()
        with _device_locks.setdefault(self.engine.loaded.model.device, threading.Lock()):
            metrics = self._trainer.update(sequences)
        self._set_versions()
        return metrics

    def _save(self, folder: Path) -> None:
        for name, optimiser in self._optimisers.items():
            self.engine.export(name, folder / name)
            optimiser.save(folder / name)

    def _load(self, folder: Path) -> None:
        for name, optimiser in self._optimisers.items():
            self.engine.restore(name, folder / name)
            optimiser.load(folder / name)
        self._set_versions()

    def _set_versions(self) -> None:
        # In the thread that samples, so that no batch is drawn between a change of the weights and their new version.
        self.engine.prefix_cache.clear()
        self.engine.versions |= {name: optimiser.updates for name, optimiser in self._optimisers.items()}

    def _score_start_adapters(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        with self.engine.loaded.adapters.replaced(self._start_adapters):
            return self._runner.compute_logprobs(data)

    def _load_reference(self) -> Scorer:
        loaded = self.engine.loaded
        original = load_reference(loaded.source, self.engine.policies, self._start)
        return Scorer(original.to(loaded.model.device))
