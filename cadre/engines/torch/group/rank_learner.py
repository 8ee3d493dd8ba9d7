"""One rank of a learner group, in a process of its own.

All ranks of a group make the same calls with the same arguments in the same order, and return alike; where something is
written to a folder, all ranks see that folder. What starts the processes is somebody else's business: `GroupLearner`
does it on one machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from cadre.engines import scratch
from cadre.engines.torch.base import loading, malloc, storage
from cadre.engines.torch.base.loading import Loaded
from cadre.engines.torch.group import sharding
from cadre.engines.torch.learner import check_flex, policy_optimiser
from cadre.engines.torch.learning.forward import Forward, Scorer
from cadre.engines.torch.learning.lm_head import check_projection
from cadre.engines.torch.learning.ranks import Ranks
from cadre.engines.torch.learning.settings import TrainingSettings
from cadre.engines.torch.learning.trainer import Trainer
from cadre.errors import EngineError
from cadre.learn import tensor_files
from cadre.learn.value_heads import ValueHeads
from cadre.settings import PolicyConfig
from cadre.team import Metrics, Weights
from cadre.types import Message, TrainingSequence


@dataclass(frozen=True)
class LearnerPart:
    """What of an experiment a group trains: policies on one base model, as `TorchEngine` and `TorchLearner` take them.

    `kept` are the versions of a policy that lie ready for samplers to load, the newest ones. Can be sent to another
    process.
    """

    model: str
    policies: Mapping[str, PolicyConfig]
    training: TrainingSettings
    seed: int
    kept: int = 2


class RankLearner:
    """What rank `rank` of `world_size` does of a `Learner`, whose calls are plain methods here.

    `init_method` is where the ranks meet, as torch.distributed.init_process_group takes it: `file:///shared/new_file`
    or `tcp://host:port`. A process holds one of these at a time, and the policies' device is cuda, of which each rank
    takes a card of its own, or cpu. What rank 0 hands over lies in the folder `below`, or where temporary files
    do. Raises EngineError where the model cannot be trained as asked.
    """

    def __init__(
        self, part: LearnerPart, rank: int, world_size: int, init_method: str, below: Path | None = None
    ) -> None:
        self._part = part
        device = _device(next(iter(part.policies.values())).device, rank)
        check_flex(part.training.learners, device)
        if device.type == "cpu":
            malloc.keep_freed()
        else:
            torch.cuda.set_device(device)
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        distributed.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size)
        self._mesh = init_device_mesh(device.type, (world_size,))
        self._ranks = Ranks(rank, world_size, device)
        self._dtype = loading.DTYPES[next(iter(part.policies.values())).dtype]
        self._loaded = self._load(device)
        self._heads = ValueHeads(part.training.heads, self._width, device)
        learners = list(part.training.learners.values())
        self._forward = Forward(self._loaded, self._dtype, self._heads, learners, self._ranks)
        sharding.shard(self._forward.root, self._mesh, self._dtype)
        self._optimisers = {
            name: policy_optimiser(self._loaded, self._heads, part.training, name)
            for name, policy in part.policies.items()
            if not policy.frozen
        }
        self._trainer = Trainer(self._forward, self._optimisers, part.training, part.seed)
        self._reference: Scorer | None = None
        self._below = below
        self._handed_over: Path | None = None  # on rank 0, once something was

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained here."""
        return tuple(self._optimisers)

    def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """One update of every policy that has data; metrics by policy. Raises DivergedError on every rank."""
        return self._trainer.update(data)

    def publish(self, policy: str) -> Weights:
        """The policy's weights in a folder on rank 0's machine, which is there until `kept` newer ones are."""
        version = self._optimisers[policy].updates
        if not self._first:
            self.export(policy, Path())
            return Weights(policy, version)
        if self._handed_over is None or not self._handed_over.exists():
            self._handed_over = scratch.make("weights", self._below)
        folder = self._handed_over / policy / f"v{version}"
        self.export(policy, folder)
        kept = sorted(folder.parent.iterdir(), key=lambda path: int(path.name[1:]))
        for outdated in kept[: -self._part.kept]:
            shutil.rmtree(outdated)
        return Weights(policy, version, folder)

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation that the policy would answer next."""
        return self._loaded.templates[policy].prompt_ids(messages, None, self._loaded.stops)

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """What the heads named in `targets` say at their places, a tuple a datum."""
        return self._forward.values(data)

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Log-probabilities of the masked tokens under the policies as they were before any training; T a datum."""
        if self._reference is None:
            self._reference = self._forward.root if self._loaded.adapters.pairs else self._original()
        return self._forward.logprobs(data, self._reference)

    def save(self, folder: Path) -> None:
        """`folder/POLICY` for each trained policy, as `TorchLearner.save` has it; but of a model that is trained whole
        each rank writes its shards of weights and moments. Any number of ranks can load it, and a `TorchLearner`."""
        for name, optimiser in self._optimisers.items():
            into = folder / name
            if self._whole(name):
                into.mkdir(parents=True, exist_ok=True)
                tensor_files.write(self._loaded.parameters(name), into, "model")
                optimiser.weights.save(into / "optimiser", counters=self._first)
            if self._first:
                self._save_whole(name, into)
        self._ranks.meet()

    def load(self, folder: Path) -> None:
        """Restore what `save` or a `TorchLearner` wrote."""
        for name, optimiser in self._optimisers.items():
            if self._whole(name):
                tensor_files.read(self._loaded.parameters(name), folder / name, "model")
            else:
                storage.load_adapter(self._loaded.parameters(name), folder / name)
            optimiser.load(folder / name)
            if optimiser.heads is not None and (folder / name / "heads").is_dir():
                storage.load_heads(self._heads.parameters(name), folder / name / "heads")

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre, as `TorchEngine.export` does; rank 0 alone writes.

        Raises EngineError where `merge` is asked of a policy that has no adapter.
        """
        loaded, pairs = self._loaded, self._loaded.adapters.pairs.get(policy)
        if merge and pairs is None:
            raise EngineError(
                f"Policy {policy!r} has no adapter to merge; it is a whole model. Export it without merge."
            )
        if pairs is not None and not merge:
            if self._first:
                self._save_adapter(policy, folder)
            return
        state = sharding.gathered(loaded.model, self._first)
        if self._first:
            tokenizer = loaded.templates[policy].tokenizer_to_save()
            storage.save_state(loaded.model, storage.merged(state, pairs or {}), tokenizer, folder)

    def meet(self) -> None:
        """Return once every rank has come here."""
        self._ranks.meet()

    def close(self) -> None:
        """Leave the group. May be called more than once."""
        if self._handed_over is not None:
            scratch.remove(self._handed_over)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    @property
    def _first(self) -> bool:
        return self._ranks.rank == 0

    @property
    def _width(self) -> int:
        width: int = self._loaded.model.config.get_text_config().hidden_size
        return width

    def _load(self, device: torch.device) -> Loaded:
        """The model whole on the CPU, of which sharding leaves each rank its part, with adapters on the device."""
        part = self._part
        loaded = loading.load(loading.locate(part.model), part.policies, torch.device("cpu"), part.seed)
        loaded.model.requires_grad_(any(loading.trains_whole(policy) for policy in part.policies.values()))
        check_projection(loaded.model)
        sharding.move(loaded.adapters, device)
        return loaded

    def _original(self) -> Scorer:
        """The model as it was, shared among the ranks too."""
        policy = next(iter(self._part.policies.values()))
        root = Scorer(loading.load_weights(self._loaded.source, policy, torch.float32).requires_grad_(False))
        sharding.shard(root, self._mesh, self._dtype)
        return root

    def _whole(self, policy: str) -> bool:
        return policy not in self._loaded.adapters.pairs

    def _save_whole(self, policy: str, folder: Path) -> None:
        """What rank 0 alone has to write: what every rank holds whole, and what makes a folder one of Hugging Face."""
        optimiser = self._optimisers[policy]
        if self._whole(policy):
            tokenizer = self._loaded.templates[policy].tokenizer_to_save()
            storage.save_description(self._loaded.model, tokenizer, folder)
        else:
            self._save_adapter(policy, folder)
            optimiser.weights.save(folder / "optimiser")
        if optimiser.heads is not None:
            storage.save_heads(self._heads.parameters(policy), folder / "heads")
            optimiser.heads.save(folder / "heads")

    def _save_adapter(self, policy: str, folder: Path) -> None:
        loaded = self._loaded
        config = loaded.adapters.configs[policy]
        tokenizer = loaded.templates[policy].tokenizer_to_save()
        storage.save_adapter(loaded.parameters(policy), config, loaded.source, tokenizer, folder)


def _device(name: str, rank: int) -> torch.device:
    """The processor, or this rank's card: of those that the process sees, the one of its number, from 0 again where
    there are fewer (on another machine, or where a process is shown its card alone)."""
    device = loading.pick_device(name)
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise EngineError(
            f"device: got {name!r} for a learner of several ranks, each of which takes a card of its own; expected "
            "cuda, cpu or auto. Remove the number."
        )
    return torch.device("cuda", rank % torch.cuda.device_count())
