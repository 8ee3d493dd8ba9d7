"""Starting an engine."""

import asyncio
import builtins

import pytest

from cadre.engines.vllm import engine as vllm_engine
from cadre.engines.vllm import sampler as vllm_sampler
from cadre.engines.vllm.engine import Options
from cadre.errors import EngineError
from tests.engines import tiny


def test_vllm_that_cannot_be_imported_is_told_of(folders, monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **settings):
        if name.startswith("cadre.engines.vllm.async_engine"):
            raise ImportError("No module named 'vllm'")
        return original(name, *arguments, **settings)

    made = vllm_engine.plan_launch(str(folders["llama"]), {"p": tiny.policy(folders["llama"])}, Options(), 512)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EngineError, match=r"cannot be imported \(No module named 'vllm'\).*pip install"):
        asyncio.run(vllm_sampler.start_engine(made))
