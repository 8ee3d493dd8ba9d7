"""The transfer of whole models into vLLM's processes, by vLLM's own weight life cycle.

On a GPU its IPC back-end is used. Its CPU build has none, so `register` adds one to both sides: safetensors files in
memory, for a vLLM on the same machine. vLLM calls `register` in each of its processes, as `vllm.general_plugins` in
pyproject.toml names it; so this module imports no more of vLLM than that needs, and the rest where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import current_process
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import (
    ParamMeta,
    WeightSource,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from cadre.engines import host

NAME = "cadre"
MODULE = "cadre.engines.vllm.weight_transfer"
VLLM_PROCESSES = ("EngineCore", "VllmWorker")
# Bytes of one file, which is the memory that a transfer takes.
PART_BYTES = 1 << 30
_registered: list[str] = []


def register() -> None:
    """Register the back-end with vLLM; called in each of its processes, and may be called more than once."""
    if current_process().name.startswith(VLLM_PROCESSES):
        # Ctrl-C at the terminal is for the run alone, which finishes its step and ends vLLM itself.
        os.setpgrp()
    if not _registered:
        WeightTransferEngineFactory.register_engine(NAME, MODULE, "FilesReceiver")
        WeightTransferTrainerFactory.register_engine(NAME, MODULE, "FilesSender")
        _registered.append(NAME)


class CastSource(WeightSource):
    """A learner's tensors in the precision that the engine computes in."""

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._weights, self._dtype = weights, dtype

    def metadata(self) -> list[Any]:
        return [ParamMeta(name, self._dtype, tuple(weight.shape)) for name, weight in self._weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self._weights.items():
            yield name, weight.detach().to(self._dtype)


def send(backend: str, client: Any, source: CastSource) -> None:
    """Send all weights and return once they are in place. Blocks."""
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        init_info: Any = IPCTrainerInitInfo(packed=True, rank=0)
    else:
        init_info = FilesInfo(rank=0)
    sender = WeightTransferTrainerFactory.trainer_init(init_info, client=client, source=source)
    try:
        sender.send_weights()
    finally:
        sender.shutdown()


@dataclass
class FilesInfo(TrainerInitInfo):
    """Set-up of the sender, which needs none."""

    backend: ClassVar[str] = NAME


@dataclass
class NoInfo(WeightTransferInitInfo):
    """Set-up of the receiver, which needs none."""


@dataclass
class FileInfo(WeightTransferUpdateInfo):
    """The path of the next part."""

    path: str


class FilesReceiver(WeightTransferEngine):
    """Loads each part into the model, in vLLM's worker."""

    init_info_cls = NoInfo
    update_info_cls = FileInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: NoInfo) -> None:
        """Do nothing: there is no connection to set up."""

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class would then wait for an accelerator.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileInfo) -> None:
        from safetensors.torch import load_file

        self.model.load_weights(iter(load_file(update_info.path).items()))

    def finish_weight_update(self) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        # Layerwise loading packs each layer anew as its weights come. A head that is tied to the embedding gets none
        # of its own and would keep the packed copy of the old ones, so heads are packed again.
        for head in self.model.modules():
            if isinstance(head, ParallelLMHead):
                head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Do nothing: no resources are held."""


class FilesSender(TrainerWeightTransferEngine):
    """Writes the parts, one at a time, in the learner's process."""

    init_info_cls = FilesInfo

    @classmethod
    def trainer_init(cls, init_info: FilesInfo, *, client: Any, source: Any = None) -> FilesSender:
        client.init_weight_transfer_engine({})
        return cls(client=client, source=source, is_sender=init_info.is_sender)

    def send_weights(self) -> None:
        from safetensors.torch import save_file

        self.client.start_weight_update()
        with host.temporary_scratch("parts", host.shared_folder()) as folder:
            for number, part in enumerate(_split(iter(self.source))):
                path = folder / f"{number}.safetensors"
                save_file(part, path)
                self.client.update_weights({"path": str(path)})
                path.unlink()
        self.client.finish_weight_update()


def _split(weights: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in parts of about PART_BYTES."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, weight in weights:
        part[name] = weight.cpu().contiguous()
        size += weight.nbytes
        if size >= PART_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part
