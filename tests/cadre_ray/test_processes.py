"""Folders as bytes: whole for a learner's state, and without what only a learner reads for a sampler."""

from pathlib import Path

import pytest

from cadre.errors import EngineError
from cadre.team import Weights
from cadre_ray.processes import pack_weights, read_files, write_files


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
