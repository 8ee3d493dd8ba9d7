"""The transfer of whole models into vLLM's processes, by vLLM's own weight life cycle.

`register` adds two back-ends to vLLM. On a CPU, for which vLLM has none, weights go as safetensors files in memory. On
a GPU they go through one buffer of its memory that both processes map (CUDA IPC), and into the layers' own memory where
these keep their weights as a checkpoint has them; vLLM's own IPC back-end builds every layer anew, which takes longer.

vLLM calls `register` in each of its processes (`vllm.general_plugins` in pyproject.toml), so what it does not need is
imported where it is used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import current_process
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm.distributed.weight_transfer import (
    ParamMeta,
    WeightSource,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from cadre.engines import host

FILES = "cadre"
BUFFER = "cadre-ipc"
MODULE = "cadre.engines.vllm.weight_transfer"
VLLM_PROCESSES = ("EngineCore", "VllmWorker")
# Bytes of one file or of the buffer, which is the memory that a transfer takes.
PART_BYTES = 1 << 30
# Layers of vLLM that keep a weight as a checkpoint has it, on a GPU.
PLAIN_METHODS = {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"}
_registered: list[str] = []


def register() -> None:
    """Register the back-end with vLLM; called in each of its processes, and may be called more than once."""
    if current_process().name.startswith(VLLM_PROCESSES):
        # Ctrl-C at the terminal is for the run alone, which finishes its step and ends vLLM itself.
        os.setpgrp()
    if not _registered:
        WeightTransferEngineFactory.register_engine(FILES, MODULE, "FilesReceiver")
        WeightTransferEngineFactory.register_engine(BUFFER, MODULE, "BufferReceiver")
        _registered.append(FILES)


class CastSource(WeightSource):
    """A learner's tensors in the precision that the engine computes in."""

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._weights, self._dtype = weights, dtype

    def metadata(self) -> list[Any]:
        return [ParamMeta(name, self._dtype, tuple(weight.shape)) for name, weight in self._weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self._weights.items():
            yield name, weight.detach().to(self._dtype)


def send(backend: str, client: Any, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Send all weights in the precision `dtype` and return once they are in place. Blocks."""
    if backend != "ipc":
        (send_through_buffer if backend == BUFFER else send_files)(client, weights, dtype)
        return
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    init_info = IPCTrainerInitInfo(packed=True, rank=0)
    sender = WeightTransferTrainerFactory.trainer_init(init_info, client=client, source=CastSource(weights, dtype))
    try:
        sender.send_weights()
    finally:
        sender.shutdown()


@dataclass(frozen=True)
class Slice:
    """The elements of a part that hold one weight, from `start` on."""

    name: str
    start: int
    shape: tuple[int, ...]


def plan_parts(weights: Mapping[str, Tensor], capacity: int) -> list[list[Slice]]:
    """Return the slices of each part of a transfer, which has at most `capacity` elements; a larger weight is a part of
    its own."""
    parts: list[list[Slice]] = []
    end = capacity  # of the last part
    for name, weight in weights.items():
        if end + weight.numel() > capacity:
            parts.append([])
            end = 0
        parts[-1].append(Slice(name, end, tuple(weight.shape)))
        end += weight.numel()
    return [part for part in parts if part]


# ---- Files in memory, for a CPU


def send_files(client: Any, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Send weights part by part through files in memory, which vLLM's worker reads."""
    client.init_weight_transfer_engine({})
    client.start_weight_update()
    with host.temporary_scratch("parts", host.shared_folder()) as folder:
        for number, part in enumerate(plan_parts(weights, PART_BYTES // dtype.itemsize)):
            path = folder / f"{number}.safetensors"
            save_file({entry.name: weights[entry.name].detach().to("cpu", dtype).contiguous() for entry in part}, path)
            client.update_weights({"path": str(path)})
            path.unlink()
    client.finish_weight_update()


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


# ---- A buffer of GPU memory


def send_through_buffer(client: Any, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Send weights part by part through one buffer on this process's GPU, which vLLM's worker on the same GPU maps."""
    from torch.multiprocessing.reductions import reduce_tensor

    parts = plan_parts(weights, PART_BYTES // dtype.itemsize)
    size = max(sum(weights[entry.name].numel() for entry in part) for part in parts)
    client.init_weight_transfer_engine({})
    client.start_weight_update()
    with torch.no_grad():
        # Weights of a folder are on the CPU, so that the buffer's place does not follow from theirs.
        buffer = torch.empty(size, dtype=dtype, device="cuda")
        handle = reduce_tensor(buffer)[1]  # type: ignore[no-untyped-call]
        for part in parts:
            # One call casts and copies all of them; there is no copy of the weights beside the buffer.
            targets = [buffer[entry.start :][: weights[entry.name].numel()] for entry in part]
            torch._foreach_copy_(targets, [weights[entry.name].detach().reshape(-1) for entry in part])
            torch.cuda.synchronize()
            slices = [(entry.name, entry.start, entry.shape) for entry in part]
            client.update_weights({"handle": handle, "slices": slices})
        client.finish_weight_update()
        del buffer, targets
    # Gives the buffer's memory back once the worker has closed its mapping.
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


@dataclass
class BufferPart(WeightTransferUpdateInfo):
    """One part: the handle of the buffer, and name, first element and shape of each weight in it."""

    handle: tuple[Any, ...]
    slices: list[Any]


class BufferReceiver(WeightTransferEngine):
    """Loads the parts into the model, in vLLM's worker."""

    init_info_cls = NoInfo
    update_info_cls = BufferPart
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffer: Tensor | None = None
        self._loaded: set[str] | None = set()
        self._in_place = False

    def init_transfer_engine(self, init_info: NoInfo) -> None:
        """Do nothing: a part comes with the buffer's handle."""

    def start_weight_update(self) -> None:
        self._loaded, self._buffer = set(), None
        self._in_place = keeps_checkpoint_weights(self.model, self.vllm_config)
        if not self._in_place:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BufferPart) -> None:
        if self._buffer is None:
            from torch.multiprocessing.reductions import rebuild_cuda_tensor

            arguments = list(update_info.handle)
            arguments[6] = self.device.index  # the GPU's number in the worker instead of the sender's
            self._buffer = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]
        self.load_part(self._buffer, update_info.slices)

    def load_part(self, buffer: Tensor, slices: list[Any]) -> None:
        """Load the weights that the buffer holds."""
        weights = [(name, buffer[start:][: math.prod(shape)].view(*shape)) for name, start, shape in slices]
        if not self._in_place:
            # Layerwise loading keeps weights until their layer is complete, and the next part overwrites the buffer.
            weights = [(name, weight.clone()) for name, weight in weights]
        with torch.no_grad():
            loaded = self.model.load_weights(iter(weights))
        self._loaded = None if loaded is None or self._loaded is None else self._loaded | loaded

    def finish_weight_update(self) -> None:
        # Once the mapping is gone the sender can free the buffer.
        self._buffer = None
        if not self._in_place:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)
        elif self._loaded is not None:
            missing = {name for name, _ in self.model.named_parameters()} - self._loaded
            if missing:
                raise RuntimeError(f"These weights of the model were not sent and are the old ones: {sorted(missing)}")

    def shutdown(self) -> None:
        self._buffer = None


def keeps_checkpoint_weights(model: torch.nn.Module, config: Any) -> bool:
    """Return True if every layer keeps its weights on a GPU as a checkpoint has them.

    Quantised layers and mixtures of experts repack theirs, multi-head latent attention derives matrices from them, and
    layers with adapters hold them in a module of their own: these are loaded layer by layer.
    """
    if config.quant_config is not None or config.lora_config is not None:
        return False
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and type(method).__name__ not in PLAIN_METHODS:
            return False
        if callable(getattr(module, "process_weights_after_loading", None)) and type(module).__name__ != "Attention":
            return False
    return True
