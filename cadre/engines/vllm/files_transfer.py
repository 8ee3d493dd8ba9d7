"""Weights to a vLLM on the same machine as safetensors in memory: the back-end that its CPU build lacks.

vLLM's layerwise loading packs each layer anew as its weights come. A head that is tied to the embedding gets none of
its own and would keep the packed copy of the old ones, so heads are packed again at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from cadre.engines import scratch

# Bytes of one file; what crosses at once.
PART = 1 << 30


@dataclass
class FilesInfo(TrainerInitInfo):
    """The sender's side needs to be told nothing."""

    backend: ClassVar[str] = "cadre"


@dataclass
class NoInfo(WeightTransferInitInfo):
    """Nor does the receiver's, to begin with."""


@dataclass
class FileInfo(WeightTransferUpdateInfo):
    """Where the next part lies."""

    path: str


class FilesReceiver(WeightTransferEngine):
    """In vLLM's worker: loads each part into the model."""

    init_info_cls = NoInfo
    update_info_cls = FileInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: NoInfo) -> None:
        """Nothing is set up."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # vLLM's own goes on to wait for an accelerator.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileInfo) -> None:
        self.model.load_weights(iter(load_file(update_info.path).items()))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for head in self.model.modules():
            if isinstance(head, ParallelLMHead):
                head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Nothing is held."""


class FilesSender(TrainerWeightTransferEngine):
    """Beside the learner: writes the parts, one at a time."""

    init_info_cls = FilesInfo

    @classmethod
    def trainer_init(cls, init_info: FilesInfo, *, client: Any, source: Any = None) -> FilesSender:
        client.init_weight_transfer_engine({})
        return cls(client=client, source=source, is_sender=init_info.is_sender)

    def send_weights(self) -> None:
        self.client.start_weight_update()
        with scratch.lent("parts", scratch.in_memory()) as folder:
            for number, part in enumerate(_parts(iter(self.source))):
                path = folder / f"{number}.safetensors"
                save_file(part, path)
                self.client.update_weights({"path": str(path)})
                path.unlink()
        self.client.finish_weight_update()


def _parts(weights: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """The tensors in parts of about `PART` bytes."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, weight in weights:
        part[name] = weight.cpu().contiguous()
        size += weight.nbytes
        if size >= PART:
            yield part
            part, size = {}, 0
    if part:
        yield part
