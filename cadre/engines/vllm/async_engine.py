"""vLLM's AsyncLLM, as the sampler and the weight sync call it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from cadre.engines.text.model import Completion
from cadre.engines.vllm import weight_transfer
from cadre.engines.vllm.adapters import Adapter
from cadre.engines.vllm.engine import Call, Depth, Launch, sampling_parameters, wait_while_alive
from cadre.errors import EngineError

# That vLLM's processes have to free what they hold before they are killed.
SHUTDOWN_SECONDS = 30.0


class AsyncEngine:
    """One engine of vLLM. Its methods are called in the event loop that it was made in. Tests have a fake of it."""

    def __init__(self, engine: Any, launch: Launch, dtype: torch.dtype) -> None:
        self._engine, self._launch, self._dtype = engine, launch, dtype
        self._loras: dict[int, LoRARequest] = {}

    @classmethod
    def launch(cls, launch: Launch, dtype: torch.dtype) -> AsyncEngine:
        """Start the engine's processes."""
        weight_transfer.register()
        return cls(AsyncLLM.from_engine_args(AsyncEngineArgs(**launch.arguments)), launch, dtype)

    async def add(self, call: Call) -> Stream:
        """Put the call into the engine's queue."""
        settings = SamplingParams(**sampling_parameters(call), output_kind=RequestOutputKind.FINAL_ONLY)
        lora = self._loras[call.adapter.number] if call.adapter else None
        prompt = tokens_input(list(call.prompt_ids))
        try:
            return Stream(await self._engine.add_request(call.name, prompt, settings, lora_request=lora), call)
        except EngineDeadError as error:
            raise _engine_died(self._launch.source) from error

    async def abort(self, name: str) -> None:
        await self._answer(self._engine.abort(name))

    async def pause(self) -> None:
        """Return once nothing is computed any more. Running sequences are kept, new ones wait."""
        await self._answer(self._engine.pause_generation(mode="keep", clear_cache=False))

    async def resume(self) -> None:
        await self._answer(self._engine.resume_generation())

    async def add_adapter(self, adapter: Adapter, folder: Path) -> None:
        lora = LoRARequest(adapter.name, adapter.number, str(folder), load_inplace=False)
        if not await self._answer(self._engine.add_lora(lora)):
            raise EngineError(f"vLLM did not take the adapter {adapter.name} from {folder}; what it says is above.")
        self._loras[adapter.number] = lora

    async def remove_adapter(self, adapter: Adapter) -> None:
        await self._answer(self._engine.remove_lora(adapter.number))
        del self._loras[adapter.number]

    async def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace the weights by these tensors, by their names in a checkpoint; they are that version."""
        client = TransferClient(self._engine, self._answer, asyncio.get_running_loop(), version)
        await asyncio.to_thread(weight_transfer.send, self._launch.transfer, client, weights, self._dtype)

    async def clear_prefix_cache(self) -> None:
        """Drop the KV cache of prompts; running sequences are computed again."""
        await self._answer(self._engine.reset_prefix_cache(reset_running_requests=True))

    async def sleep(self, depth: Depth) -> None:
        """Free the GPU's memory: that of the KV cache, and of the weights, which `offload` copies to the CPU and
        `discard` drops."""
        if depth == "cache":
            await self.pause()
            await self._answer(self._engine.release_kv_cache_memory())
        else:
            await self._answer(self._engine.sleep(level=1 if depth == "offload" else 2, mode="keep"))

    async def wake(self, part: str) -> None:
        """Allocate the memory of `weights` or `kv_cache` again."""
        await self._answer(self._engine.wake_up(tags=[part]))

    async def _answer(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the engine's answer. Raises EngineError if it dies before."""
        return await wait_while_alive(work, lambda: self._engine.errored, _engine_died(self._launch.source))

    async def shutdown(self) -> None:
        """End the engine's processes, and the tasks that wait for them."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        # First the task that reads outputs: it would take the end of the processes for their death, and say so.
        if engine.output_handler is not None:
            engine.output_handler.cancel()
            await asyncio.wait([engine.output_handler])
        engine.shutdown(timeout=SHUTDOWN_SECONDS)
        # Its finaliser shuts it down once more. At the interpreter's end that would find vLLM's modules half gone.
        del engine
        gc.collect()


@dataclass(frozen=True)
class Stream:
    """A call in vLLM's queue; its one output comes out of `outputs`."""

    outputs: Any
    call: Call

    async def completions(self) -> Sequence[Completion]:
        """Return the completions, in order, once all have ended."""
        try:
            result = await self.outputs.get()
        except EngineDeadError as error:
            raise _engine_died("the model") from error
        return [_convert(output, self.call) for output in result.outputs]


class TransferClient:
    """The engine's weight life cycle, as vLLM's trainers drive it, for a sender in another thread. `answer` waits for
    the engine as long as it lives; `version` is that of the sent weights."""

    def __init__(self, engine: Any, answer: Callable[..., Any], loop: asyncio.AbstractEventLoop, version: int) -> None:
        self._engine, self._answer, self._loop, self._version = engine, answer, loop, version

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._wait(self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info)))

    def start_weight_update(self) -> None:
        self._wait(self._engine.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self._wait(self._engine.update_weights(WeightTransferUpdateRequest(update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._wait(self._engine.finish_weight_update(weight_version or str(self._version)))

    def _wait(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._answer(work), self._loop).result()


def _convert(output: Any, call: Call) -> Completion:
    """Return the completion with the versions of the engine's own weights."""
    ids = tuple(output.token_ids)
    if output.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended a completion with {output.finish_reason!r}; what it says itself is above.")
    # A greedy choice is certain, whatever probability the model gives it.
    greedy = call.sampling.temperature == 0.0
    # One candidate a position, the sampled token. In `FlatLogprobs` that is one list of numbers.
    sampled = output.logprobs.logprobs
    if len(sampled) != len(ids):
        raise EngineError(f"vLLM returned {len(sampled)} log-probabilities of {len(ids)} tokens; expected one of each.")
    logprobs = (0.0,) * len(ids) if greedy else tuple(sampled)
    # The weights that the engine was started with are version 0.
    spans = output.weight_versions or ()
    versions = [(span.start, 0 if span.version == "default" else int(span.version)) for span in spans]
    (_, version), *changes = versions or [(0, 0)]
    return Completion(ids, logprobs, output.finish_reason, version, tuple(changes))


def _engine_died(source: str) -> EngineError:
    return EngineError(
        f"vLLM's engine of {source!r} has died; what it says itself is above. Go on with the run from its last "
        "checkpoint: cadre train --resume RUN."
    )
