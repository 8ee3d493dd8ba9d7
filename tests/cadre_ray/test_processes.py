"""What travels: folders as bytes, whole for a learner's state and without what only a learner reads for a sampler, and
tensors without a copy."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from cadre.errors import EngineError
from cadre.team import Weights
from cadre_ray.processes import pack_weights, read_files, unpack_tensors, write_files


def test_a_sampler_is_sent_the_weights_and_a_learner_all(tmp_path: Path) -> None:
    policy, again = tmp_path / "policy", tmp_path / "again"
    contents = {
        "config.json": b"{}",
        "model.safetensors": b"weights",
        "optimiser/optimiser.safetensors": b"moments",
        "heads/heads.safetensors": b"",
    }
    for name, content in contents.items():
        (policy / name).parent.mkdir(parents=True, exist_ok=True)
        (policy / name).write_bytes(content)
    sent = pack_weights(Weights("p", 1, policy))
    assert isinstance(sent, dict)
    assert {name: content.tobytes() for name, content in sent.items()} == {
        "config.json": b"{}",
        "model.safetensors": b"weights",
    }
    write_files(read_files(policy), again)
    assert {str(path.relative_to(again)): path.read_bytes() for path in again.rglob("*") if path.is_file()} == contents
    with pytest.raises(EngineError, match="without any"):
        pack_weights(Weights("p", 1))


def test_tensors_travel_without_a_copy() -> None:
    """Mistake: an update of three gigabytes is copied seven times on its way, six of them in one thread."""
    whole = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    weights = {
        "whole": whole,
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "scale": torch.tensor(3.0),
        "part": whole[:, 1],
        "none": torch.empty(0, 4),
    }
    packed = pack_weights(Weights("p", 1, tensors={name: value.requires_grad_() for name, value in weights.items()}))
    assert isinstance(packed, list)
    assert np.shares_memory(packed[0][1], whole.detach().numpy())

    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    stored = [bytes(buffer) for buffer in buffers]  # what nobody may write to, as what Ray has
    with warnings.catch_warnings(action="error"):
        arrived = unpack_tensors(pickle.loads(pickled, buffers=stored))  # noqa: S301 - what the test wrote itself
    assert {name: (value.dtype, value.shape, value.tolist()) for name, value in arrived.items()} == {
        name: (value.dtype, value.shape, value.tolist()) for name, value in weights.items()
    }
    assert arrived["whole"].data_ptr() == np.frombuffer(stored[0], np.uint8).ctypes.data
