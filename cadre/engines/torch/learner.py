"""The learner of the policies on one base model: in the engine's thread, or one rank of a group of processes.

`RankLearner` does the work, and its calls are plain methods. `TorchLearner` makes them in the thread of an engine, and
trains its policies in place. `group.py` and actors of Ray make them in processes that divide the model among them.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from cadre.engines import host
from cadre.engines.torch import storage
from cadre.engines.torch.engine import TorchEngine
from cadre.engines.torch.forward import SINGLE_RANK, MicroBatchRunner, Scorer
from cadre.engines.torch.logprobs import check_projection
from cadre.engines.torch.model import (
    LoadedModel,
    check_torch_defaults,
    export_policy,
    is_fully_trained,
    load_reference,
    restore_policy,
)
from cadre.engines.torch.ranks import Ranks, gather_weights, shard
from cadre.engines.torch.trainer import PolicyOptimiser, Trainer, TrainingSettings
from cadre.learn import tensor_files
from cadre.learn.loss import ValueHeads
from cadre.settings import PolicyConfig
from cadre.team import LearnerProxy, Metrics, Weights
from cadre.types import Message, Tool, TrainingSequence

# Updates on one GPU take turns, as each chooses its micro-batches by all the memory that is free.
_device_locks: dict[torch.device, threading.Lock] = {}


class RankLearner:
    """A `Learner` of the policies that are not frozen, whose calls are plain methods; or one rank of it.

    A `mesh` divides the model, which is still whole and on the CPU, among `ranks`. All of them make the same calls with
    the same arguments in the same order, and return alike; a folder that is written is seen by all. Rank 0 publishes
    the newest `kept` versions of a policy in the folder `below`, or among temporary files. Without a mesh this process
    has the whole model, and publishes its own tensors. Raises EngineError if the model cannot be trained with these
    settings.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        policies: Mapping[str, PolicyConfig],
        settings: TrainingSettings,
        seed: int,
        dtype: torch.dtype,
        ranks: Ranks = SINGLE_RANK,
        mesh: DeviceMesh | None = None,
        below: Path | None = None,
        kept: int = 2,
    ) -> None:
        model, adapters = loaded.model, loaded.adapters
        device = model.device if mesh is None else ranks.device
        model.requires_grad_(any(is_fully_trained(policy) for policy in policies.values()))
        if settings.learners:
            check_projection(model)
        if mesh is not None:
            # Adapters stay whole, on the device where their layers compute.
            for policy in adapters.pairs:
                for weight in adapters.parameters(policy).values():
                    weight.data = weight.data.to(device)
        self._loaded, self._policies, self._settings = loaded, policies, settings
        self._ranks, self._mesh, self._dtype = ranks, mesh, dtype
        self._heads = ValueHeads(settings.heads, model.config.get_text_config().hidden_size, device)
        self._runner = MicroBatchRunner(loaded, dtype, self._heads, list(settings.learners.values()), ranks)
        if mesh is not None:
            shard(self._runner.scorer, mesh, dtype)
        self._optimisers = {
            name: PolicyOptimiser(loaded, self._heads, settings, name) for name in policies if name in settings.learners
        }
        self._trainer = Trainer(self._runner, self._optimisers, settings, seed)
        self._reference: Scorer | None = None
        self._start_adapters = storage.copy_adapters(adapters, settings.start or {})
        self._below, self._kept = below, kept
        self._published: Path | None = None  # on rank 0, once weights were published

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained here; frozen ones are sampled from only."""
        return tuple(self._optimisers)

    @property
    def versions(self) -> dict[str, int]:
        """The number of updates of each policy."""
        return {name: optimiser.updates for name, optimiser in self._optimisers.items()}

    def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Make one update of every policy that has sequences; return metrics by policy. Raises DivergedError, on every
        rank."""
        check_torch_defaults()
        with _device_locks.setdefault(self._loaded.model.device, threading.Lock()):
            return self._trainer.update(data)

    def publish(self, policy: str) -> Weights:
        """Return the very tensors that the policy is sampled and trained with, or a folder on rank 0's machine. The
        folder stays until `kept` newer ones are there; other ranks name none."""
        version = self._optimisers[policy].updates
        if self._mesh is None:
            return Weights(policy, version, tensors=self._loaded.parameters(policy))
        if not self._is_first:
            self.export(policy, Path())
            return Weights(policy, version)
        if self._published is None or not self._published.exists():
            self._published = host.make_scratch("weights", self._below)
        folder = self._published / policy / f"v{version}"
        self.export(policy, folder)
        versions = sorted(folder.parent.iterdir(), key=lambda path: int(path.name[1:]))
        for outdated in versions[: -self._kept]:
            shutil.rmtree(outdated)
        return Weights(policy, version, folder)

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation that the policy would answer next."""
        return self._loaded.encode(policy, messages, tools)

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return the outputs of the value heads at the positions in `targets`, a tuple a sequence."""
        return self._runner.compute_values(data)

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return log-probabilities of the masked tokens under the reference; T a sequence.

        It is the base with its adapters off, or with those of the start of reinforcement learning, or for a fully
        trained model a frozen copy that is loaded once.
        """
        if self._start_adapters:
            with self._loaded.adapters.replaced(self._start_adapters):
                return self._runner.compute_logprobs(data)
        if self._reference is None and self._loaded.adapters.pairs:
            self._reference = self._runner.scorer
        elif self._reference is None:
            original = load_reference(self._loaded.source, self._policies, self._settings.start)
            if self._mesh is None:
                self._reference = Scorer(original.to(self._loaded.model.device))
            else:
                self._reference = Scorer(original.requires_grad_(False))
                shard(self._reference, self._mesh, self._dtype)
        return self._runner.compute_logprobs(data, self._reference)

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return log-probabilities of the masked tokens under the policies as they are now; T a sequence."""
        return self._runner.compute_logprobs(data)

    def save(self, folder: Path) -> None:
        """Write `folder/POLICY` for each trained policy: its `export`, `optimiser/`, and `heads/` if it has some.

        Of a divided model each rank writes its shards of weights and moments, and rank 0 the rest. Any number of ranks
        can load it.
        """
        for name, optimiser in self._optimisers.items():
            target = folder / name
            if self._mesh is not None and name not in self._loaded.adapters.pairs:
                target.mkdir(parents=True, exist_ok=True)
                tensor_files.write(self._loaded.parameters(name), target, "model")
                optimiser.save(target, self._is_first)
                if self._is_first:
                    tokenizer = self._loaded.templates[name].tokenizer_to_save()
                    storage.save_description(self._loaded.model, self._loaded.stops, tokenizer, target)
            elif self._is_first:
                self.export(name, target)
                optimiser.save(target)
        self._ranks.wait()

    def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote, with any number of ranks."""
        for name, optimiser in self._optimisers.items():
            restore_policy(self._loaded, name, self._policies[name], folder / name)
            optimiser.load(folder / name)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre, as `export_policy` does; rank 0 alone writes."""
        state = None
        if self._mesh is not None and (merge or policy not in self._loaded.adapters.pairs):
            state = gather_weights(self._loaded.model, self._is_first)
        if self._is_first:
            export_policy(self._loaded, policy, self._policies[policy].model, folder, merge, state)

    def meet(self) -> None:
        """Return once every rank has made this call."""
        self._ranks.wait()

    def close(self) -> None:
        """Leave the group. May be called more than once."""
        if self._published is not None:
            host.remove_scratch(self._published)
        if self._mesh is not None and distributed.is_initialized():
            distributed.destroy_process_group()

    @property
    def _is_first(self) -> bool:
        return self._ranks.rank == 0


class TorchLearner(LearnerProxy):
    """A `Learner` that trains an engine's policies in place, in the engine's thread. Lives as long as the engine.
    Raises EngineError if the model cannot be trained with these settings."""

    def __init__(self, engine: TorchEngine, settings: TrainingSettings) -> None:
        self.engine = engine
        self.rank = engine.work(
            RankLearner, engine.loaded, engine.policies, settings, seed=engine.seed, dtype=engine.dtype
        )
        super().__init__(self.rank.policies)

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation, without waiting for the engine's thread."""
        return self.rank.encode(policy, messages, tools)

    def close(self) -> None:
        """Close the engine, whose thread this is too."""
        self.engine.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self.engine.work(self._compute, method, *arguments)

    async def _run(self, method: str, *arguments: Any) -> Any:
        return await self.engine.run(self._compute, method, *arguments)

    def _compute(self, method: str, *arguments: Any) -> Any:
        if method == "update" and not self.engine.loaded.adapters.pairs:
            self.engine.packed.release()  # copies of weights that change; their memory is the learner's
        answer = getattr(self.rank, method)(*arguments)
        if method in ("update", "load"):
            # In the thread that samples, so that no batch is drawn between a change of the weights and their version.
            self.engine.prefix_cache.clear()
            self.engine.versions |= self.rank.versions
        return answer
