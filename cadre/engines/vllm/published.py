"""What a learner published, as an engine in other processes takes it: tensors by name, or the folder of an adapter."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from cadre.engines import scratch
from cadre.engines.torch.storage import write_adapter
from cadre.engines.vllm.adapters import Adapter
from cadre.errors import EngineError
from cadre.learn import tensor_files
from cadre.settings import LoraConfig
from cadre.team import Weights


def tensors_of(weights: Weights) -> Mapping[str, Tensor]:
    """The tensors of a whole model by their names in a checkpoint, which may be the shards of a group's ranks. Raises
    EngineError where there are none."""
    if weights.tensors is not None:
        return weights.tensors
    folder = _folder(weights)
    if tensor_files.is_sharded(folder):
        return tensor_files.read_whole(folder)
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _folder(weights: Weights) -> Path:
    if weights.folder is None:
        raise EngineError(
            f"Got weights of policy {weights.policy!r} without tensors, which stay in the process that has them; "
            "expected a folder. Have the learner write one."
        )
    return weights.folder


class AdapterFiles:
    """The folders that vLLM reads adapters from, in memory; `source` is their base. Removed on `close`, and at the
    latest when the process ends."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._root = scratch.make("adapters", scratch.in_memory())
        self._finalizer = weakref.finalize(self, scratch.remove, self._root)

    def write(self, adapter: Adapter, weights: Weights, config: LoraConfig) -> Path:
        """The folder of this version: one of its own, or the one that the weights are in. Raises EngineError where
        they are in neither."""
        if weights.tensors is None:
            return _folder(weights)
        write_adapter(weights.tensors, config, self._source, self._root / adapter.name)
        return self._root / adapter.name

    def remove(self, adapter: Adapter) -> None:
        """The version is read no more."""
        shutil.rmtree(self._root / adapter.name, ignore_errors=True)

    def close(self) -> None:
        """May be called more than once."""
        self._finalizer()
