"""The learner's side of a torch engine: trains the engine's policies where they lie, in the engine's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from cadre.engines.torch.base import loading, storage
from cadre.engines.torch.base.loading import Loaded
from cadre.engines.torch.engine import TorchEngine
from cadre.engines.torch.learning.forward import Forward, Scorer
from cadre.engines.torch.learning.lm_head import check_projection
from cadre.engines.torch.learning.policy_optimiser import PolicyOptimiser
from cadre.engines.torch.learning.settings import TrainingSettings
from cadre.engines.torch.learning.trainer import Trainer
from cadre.errors import EngineError
from cadre.learn.optimiser import Optimiser
from cadre.learn.value_heads import ValueHeads
from cadre.settings import LearnerConfig
from cadre.settings.critic import learner_of_heads
from cadre.team import Metrics, Weights
from cadre.types import Message, TrainingSequence

# Updates on the CPU take turns: each would take all cores, and threads that outnumber them wait for each other.
_ON_CPU = threading.Lock()


class TorchLearner:
    """A `Learner` of the policies of one engine that are not frozen. Lives as long as the engine.

    Raises EngineError where the model cannot be trained as asked.
    """

    def __init__(self, engine: TorchEngine, settings: TrainingSettings) -> None:
        model = engine.loaded.model
        check_flex(settings.learners, model.device)
        self.engine = engine
        model.requires_grad_(any(loading.trains_whole(policy) for policy in engine.policies.values()))
        self._heads = ValueHeads(settings.heads, model.config.get_text_config().hidden_size, model.device)
        self._optimisers = {
            name: policy_optimiser(engine.loaded, self._heads, settings, name)
            for name, policy in engine.policies.items()
            if not policy.frozen
        }
        learners = list(settings.learners.values())
        self._forward = Forward(engine.loaded, engine.dtype, self._heads, learners)
        self._trainer = Trainer(self._forward, self._optimisers, settings, engine.seed)
        self._reference: Any = None
        if self._optimisers:
            engine.work(check_projection, model)

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained here; frozen ones are sampled from only."""
        return tuple(self._optimisers)

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """One update of every policy that has data; metrics by policy. Raises DivergedError."""
        return await self.engine.run(self._update, data)

    async def publish(self, policy: str) -> Weights:
        """The very tensors that the policy is sampled and trained with."""
        return Weights(policy, self._optimisers[policy].updates, tensors=self.engine.parameters(policy))

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Log-probabilities of the masked tokens under the policies as they were before any training; T a datum.

        The base with its adapters off, or a frozen copy of a model that is trained whole, loaded when first asked for.
        """
        if self._reference is None:
            with_adapters = bool(self.engine.loaded.adapters.pairs)
            self._reference = self._forward.root if with_adapters else self.engine.work(self._original)
        return self.engine.work(self._forward.logprobs, data, self._reference)

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation that the policy would answer next."""
        return self.engine.encode(policy, messages)

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """What the heads named in `targets` say at their places, a tuple a datum."""
        return self.engine.work(self._forward.values, data)

    def save(self, folder: Path) -> None:
        """`folder/POLICY` for each trained policy: what `export` writes, `optimiser/`, and `heads/` if it has some."""
        self.engine.work(self._save, folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, exactly."""
        self.engine.work(self._load, folder)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre, as `TorchEngine.export` does."""
        self.engine.work(self.engine.export, policy, folder, merge)

    def close(self) -> None:
        """Close the engine, whose thread this is too."""
        self.engine.close()

    def _update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        loading.check_defaults()
        with _ON_CPU if self.engine.loaded.model.device.type == "cpu" else nullcontext():
            metrics = self._trainer.update(data)
        self._count()
        return metrics

    def _save(self, folder: Path) -> None:
        for name, optimiser in self._optimisers.items():
            self.engine.export(name, folder / name)
            optimiser.save(folder / name)
            if optimiser.heads is not None:
                storage.save_heads(self._heads.parameters(name), folder / name / "heads")

    def _load(self, folder: Path) -> None:
        for name, optimiser in self._optimisers.items():
            self.engine.restore(name, folder / name)
            optimiser.load(folder / name)
            if optimiser.heads is not None and (folder / name / "heads").is_dir():
                storage.load_heads(self._heads.parameters(name), folder / name / "heads")
        self._count()

    def _count(self) -> None:
        # In the thread that samples, so that no batch is drawn between a change of the weights and their new version.
        self.engine.turns.clear()
        self.engine.versions |= {name: optimiser.updates for name, optimiser in self._optimisers.items()}

    def _original(self) -> Any:
        policy = next(iter(self.engine.policies.values()))
        loaded = self.engine.loaded
        return Scorer(loading.load_weights(loaded.source, policy, torch.float32).to(loaded.model.device))


def policy_optimiser(loaded: Loaded, heads: ValueHeads, settings: TrainingSettings, policy: str) -> PolicyOptimiser:
    """What moves a policy, and its value heads if it has some."""
    learner, steps = settings.learners[policy], settings.total_steps
    weights = Optimiser(loaded.parameters(policy), learner, steps)
    if policy not in settings.heads:
        return PolicyOptimiser(weights, None)
    of_heads = Optimiser(heads.parameters(policy), learner_of_heads(learner, settings.critic.learner), steps)
    return PolicyOptimiser(weights, of_heads)


def check_flex(learners: Mapping[str, LearnerConfig], device: torch.device) -> None:
    """Raise EngineError where FlexAttention is asked for and cannot be, or would not be used."""
    for name, learner in learners.items():
        if learner.flex_attention and learner.pack == "padded":
            raise EngineError(
                f"Policy {name!r} has learner.flex_attention on, which is for prefix trees, but learner.pack is "
                "padded; expected prefix_tree or auto. Change one of the two."
            )
        if learner.flex_attention and device.type == "cpu":
            raise EngineError(
                f"Policy {name!r} has learner.flex_attention on, but its model is on the CPU, where that has no "
                "backward pass; expected a GPU. Leave it off here."
            )
