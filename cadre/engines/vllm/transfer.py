"""Whole models to vLLM by its own life cycle: its IPC back-end on a card, and on a CPU, for which it has none, one of
ours, that both sides register with it (`vllm.general_plugins` in pyproject.toml is how its processes come to know)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import current_process
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import (
    ParamMeta,
    WeightSource,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)

NAME = "cadre"
MODULE = "cadre.engines.vllm.files_transfer"
ITS_PROCESSES = ("EngineCore", "VllmWorker")
_registered: list[str] = []


def register() -> None:
    """Tell vLLM of the back-end; called in each of its processes, and may be more than once."""
    if current_process().name.startswith(ITS_PROCESSES):
        # Ctrl-C at the terminal is for the run alone, which goes on with its step and ends vLLM itself.
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
    """Send all of it and return once it is in place. Blocks."""
    sender = WeightTransferTrainerFactory.trainer_init(INIT_INFO[backend](), client=client, source=source)
    try:
        sender.send_weights()
    finally:
        sender.shutdown()


def _ipc() -> Any:
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(packed=True, rank=0)


def _files() -> Any:
    from cadre.engines.vllm.files_transfer import FilesInfo

    return FilesInfo(rank=0)


INIT_INFO: dict[str, Callable[[], Any]] = {"ipc": _ipc, NAME: _files}
