"""What the sampler needs of an engine, in words of our own: vLLM behind it, or a scripted stand-in in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cadre.engines.vllm.adapters import Adapter
from cadre.types import Finish, Sampling


@dataclass(frozen=True)
class Call:
    """A request to the engine: K siblings of one prompt, drawn with an adapter or without.

    `name` is new every time. Sibling k draws from a generator of its own with the seed `seed + k`.
    """

    name: str
    prompt_ids: tuple[int, ...]
    count: int
    limit: int
    sampling: Sampling
    seed: int
    stops: tuple[int, ...]
    adapter: Adapter | None = None


@dataclass(frozen=True)
class Drawn:
    """One sibling as the engine drew it. `versions` are (first token, version) of the engine's own weights, as they
    were when sampling began and after each change."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    versions: tuple[tuple[int, int], ...] = ((0, 0),)


class Pending(Protocol):
    """A call that the engine has taken."""

    async def drawn(self) -> Sequence[Drawn]:
        """Its siblings, in order, once all have ended."""
        ...


class Backend(Protocol):
    """An engine. Its methods are called in one event loop."""

    async def add(self, call: Call) -> Pending:
        """Take the call; returns once it is in the engine's queue."""
        ...

    async def abort(self, name: str) -> None: ...

    async def pause(self) -> None:
        """Returns once nothing is computed any more. Sequences that are under way are kept, new ones wait."""
        ...

    async def resume(self) -> None: ...

    async def add_adapter(self, adapter: Adapter, folder: Path) -> None: ...

    async def remove_adapter(self, adapter: Adapter) -> None: ...

    async def send(self, weights: Mapping[str, Any], version: int) -> None:
        """Put these tensors, by their names in a checkpoint, in place of the weights; they are that version."""
        ...

    async def forget_prompts(self) -> None:
        """Drop keys and values of prompts that were read; sequences under way are read again."""
        ...

    async def sleep(self) -> None:
        """Give the card's memory back: the weights wait beside it, keys and values are forgotten."""
        ...

    async def wake(self, part: str) -> None:
        """Take the memory of `weights` or `kv_cache` again."""
        ...

    def shutdown(self) -> None: ...


def parameters(call: Call) -> dict[str, Any]:
    """The call as keyword arguments of vLLM's SamplingParams.

    Log-probabilities are those of the sampled tokens alone. Text is made only where strings end a completion,
    special tokens in it, which a string may be about. At
    temperature 0 nothing is drawn, and no generator is made.
    """
    sampling = call.sampling
    return {
        "n": call.count,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": call.limit,
        "seed": call.seed if sampling.temperature > 0.0 else None,
        "stop": list(sampling.stop),
        "stop_token_ids": list(call.stops),
        "logprobs": 0,
        "detokenize": bool(sampling.stop),
        **({"skip_special_tokens": False} if sampling.stop else {}),
    }
