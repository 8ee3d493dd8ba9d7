"""Save and load tensors by name as safetensors: whole ones in one file, shards as a file a rank.

Shards are written and read by torch.distributed.checkpoint in its safetensors form: a shard's
position is JSON in the header of its file, and nothing on the disk is pickled. Any number of ranks can read what
another number wrote, and so can a process without a group.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Size, Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from cadre.errors import EngineError, first_line


def is_sharded(folder: Path) -> bool:
    """Return True if the folder has shards that ranks wrote together."""
    return any(folder.glob("shard-*.safetensors"))


def write(tensors: Mapping[str, Tensor], folder: Path, name: str) -> None:
    """Write whole tensors to `folder/name.safetensors`; shards to a file a rank, which all ranks do together."""
    if _any_shard(tensors):
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        save({key: tensor.detach() for key, tensor in tensors.items()}, storage_writer=writer)
    else:
        tensors_on_cpu = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        save_file(tensors_on_cpu, folder / f"{name}.safetensors")


@torch.no_grad()
def read(tensors: Mapping[str, Tensor], folder: Path, name: str) -> None:
    """Fill the tensors with those of `folder/name.safetensors`, or if either side is sharded with all in the folder.
    Shards are read by all ranks together. Raises EngineError where names or shapes differ."""
    if _any_shard(tensors) or is_sharded(folder):
        _read_shards(tensors, folder)
        return
    saved = read_file(folder / f"{name}.safetensors")
    _check({key: tensor.shape for key, tensor in saved.items()}, tensors, folder)
    for key, tensor in tensors.items():
        tensor.copy_(saved[key])


def read_whole(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder of shards, whole and by name; read by one process alone."""
    entries = _entries(HuggingFaceStorageReader(str(folder))).items()
    tensors = {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in entries}
    _read_shards(tensors, folder)
    return tensors


def _entries(reader: HuggingFaceStorageReader) -> dict[str, TensorStorageMetadata]:
    entries = reader.read_metadata().state_dict_metadata.items()
    return {key: entry for key, entry in entries if isinstance(entry, TensorStorageMetadata)}


def read_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, by name. Raises EngineError if it is no such file."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError) as error:
        raise EngineError(
            f"{path} cannot be read: {first_line(error)}. Expected tensors as safetensors. It is half a file, or "
            "another one: take it from where it was made."
        ) from error


def _read_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    reader = HuggingFaceStorageReader(str(folder))
    _check({key: entry.size for key, entry in _entries(reader).items()}, tensors, folder)
    with warnings.catch_warnings():
        # That there is no group of ranks is no news here.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        load({key: tensor.detach() for key, tensor in tensors.items()}, storage_reader=reader)


def _any_shard(tensors: Mapping[str, Tensor]) -> bool:
    return any(isinstance(tensor, DTensor) for tensor in tensors.values())


def _check(saved: Mapping[str, Size], tensors: Mapping[str, Tensor], folder: Path) -> None:
    if saved != {key: tensor.shape for key, tensor in tensors.items()}:
        raise EngineError(
            f"The weights in {folder} do not fit: got {len(saved)} tensors, expected {len(tensors)} of the names and "
            "shapes that the policy has here by its model, lora section and value heads. Use the configuration that "
            "they were trained with."
        )
