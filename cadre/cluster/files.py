"""Folders and tensors as arrays of bytes, which Ray keeps in shared memory and hands to actors without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadre.engines import scratch
from cadre.errors import EngineError
from cadre.team import Weights

Bytes = NDArray[np.uint8]
# Name, relative to the folder, and content.
Files = dict[str, Bytes]


def packed(tensors: Mapping[str, Any]) -> Bytes:
    """Tensors as one safetensors file."""
    from safetensors.torch import save

    return np.frombuffer(save({name: value.detach().cpu().contiguous() for name, value in tensors.items()}), np.uint8)


def unpacked(content: Bytes) -> dict[str, Any]:
    """The tensors of a safetensors file."""
    from safetensors.torch import load

    return load(content.tobytes())


def content_of(weights: Weights) -> Bytes | Files:
    """The tensors of weights, or the files of their folder, without the folders in it: optimisers and value heads are
    nothing to who samples. Raises EngineError where they have neither."""
    if weights.tensors is not None:
        return packed(weights.tensors)
    if weights.folder is not None:
        return _contents(weights.folder, weights.folder.iterdir())
    raise EngineError(f"Got weights of policy {weights.policy!r} without any; expected tensors or a folder.")


def read(folder: Path) -> Files:
    """Every file below a folder."""
    return _contents(folder, folder.rglob("*"))


def _contents(folder: Path, paths: Iterable[Path]) -> Files:
    files = sorted(path for path in paths if path.is_file())
    return {str(path.relative_to(folder)): np.fromfile(path, np.uint8) for path in files}


def write(files: Files, folder: Path) -> None:
    """The files, below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(path)


def written_by(fill: Callable[[Path], object]) -> Files:
    """What `fill` writes into a folder that it is given."""
    with scratch.lent("files") as folder:
        fill(folder)
        return read(folder)
