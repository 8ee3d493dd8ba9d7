"""The sampler that draws from vLLM: rounds of requests in, samples out, and the weights that it is handed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from cadre.engines.chat_template import Prompt
from cadre.engines.model_text import Completion
from cadre.engines.torch.model import locate
from cadre.engines.vllm import arguments, launch
from cadre.engines.vllm.adapters import Adapter, AdapterVersions
from cadre.engines.vllm.arguments import Launch, Options
from cadre.engines.vllm.backend import Backend, Call, Drawn, Pending
from cadre.engines.vllm.event_loop import LoopThread
from cadre.engines.vllm.handover import Handover
from cadre.engines.vllm.published import AdapterFiles, tensors_of
from cadre.errors import EngineError
from cadre.rollout import batching
from cadre.settings import PolicyConfig
from cadre.team import Weights
from cadre.types import Request, Sample

Start = Callable[[Launch], Coroutine[Any, Any, Backend]]


@dataclass(frozen=True, eq=False)
class Asked:
    """A request in token ids, and where its samples are waited for."""

    request: Request
    prompt: Prompt
    limit: int
    reply: Future[list[Sample]] = field(default_factory=Future)


class VllmSampler:
    """A `Sampler` of policies on one base model, which vLLM holds once: either one policy that is trained whole, or
    any number of adapters and frozen policies. Lives as long as the run; `close` ends vLLM's processes.

    What is asked for in a round goes to vLLM together, and each request comes back when its own siblings have ended.
    `start` is how the engine comes to be: vLLM's, or a stand-in. Raises EngineError where the model cannot be used.
    """

    def __init__(
        self,
        model: str | Path,
        policies: Mapping[str, PolicyConfig],
        options: Options,
        start: Start | None = None,
    ) -> None:
        self.policies = dict(policies)
        source = locate(model)
        self._text = arguments.text_of(source, policies, options)
        chosen = arguments.of(source, policies, options, self._text.context)
        self._adapters = AdapterVersions(chosen.room)
        self._files = AdapterFiles(source)
        self._numbers = count()
        self._closed = False
        self._thread = LoopThread("vllm")
        self._backend, self._handover = self._thread.wait(self._begin(chosen, start or launch.start))

    async def sample(self, request: Request) -> list[Sample]:
        """`request.count` siblings, asked for together with whatever else is at the time."""
        self._check(request.policy, f"Role {request.role!r} asks for")
        prompt = self._text.prompt(request)
        asked = Asked(request, prompt, self._text.limit(request, len(prompt.ids)))
        with batching.wait_for_batch(self._run_batch, asked):
            return await asyncio.wrap_future(asked.reply)

    async def load(self, weights: Weights) -> None:
        """Draw with these weights from now on: a new version of an adapter, or the model's own replaced.

        Raises EngineError where the policy is not held or is frozen, or there is nothing to read.
        """
        name, version = weights.policy, weights.version
        self._check(name, "Got weights of")
        policy = self.policies[name]
        if policy.frozen:
            raise EngineError(f"Got weights of policy {name!r}, which is frozen; expected one that is trained.")
        if policy.lora is None:
            await self._thread.run(self._handover.weights(tensors_of(weights), version))
        else:
            adapter = self._adapters.fresh(name, version)
            folder = self._files.write(adapter, weights, policy.lora)
            await self._thread.run(self._handover.adapter(adapter, folder))

    def sleep(self) -> None:
        """Give the card's memory to whoever learns, until samples are asked for or weights come."""
        self._thread.wait(self._handover.sleep())

    def close(self) -> None:
        """End vLLM's processes, and remove the files of adapters."""
        if not self._closed:
            self._closed = True
            self._thread.wait(self._end())
            self._thread.close()
            self._files.close()

    async def _begin(self, chosen: Launch, start: Start) -> tuple[Backend, Handover]:
        backend = await start(chosen)
        return backend, Handover(backend, self._adapters, self._files.remove)

    async def _end(self) -> None:
        self._backend.shutdown()

    async def _run_batch(self, batch: Sequence[Asked]) -> None:
        """Draw one batch; returns once every request of it is answered, or nobody waits for it any more."""
        work = self._thread.submit(self._draw(batch))
        waiting = asyncio.wrap_future(work)
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError:
            # vLLM must be rid of the requests before the loop that waits for them is closed.
            for asked in batch:
                asked.reply.cancel()
            await asyncio.wait([waiting])
            raise
        error = waiting.exception()
        for asked in batch:
            if error is not None and not asked.reply.done() and asked.reply.set_running_or_notify_cancel():
                asked.reply.set_exception(error)

    async def _draw(self, batch: Sequence[Asked]) -> None:
        """In the engine's loop: all requests in together, then each answered by itself."""
        with ExitStack() as used:
            calls = [
                self._call(asked, used.enter_context(self._adapters.using(asked.request.policy))) for asked in batch
            ]
            try:
                pending = await self._handover.enter(calls)
                each = zip(batch, calls, pending, strict=True)
                await batching.gather(*(self._answer(asked, call, drawing) for asked, call, drawing in each))
            finally:
                self._handover.left(len(calls))

    async def _answer(self, asked: Asked, call: Call, pending: Pending) -> None:
        """Wait for one call, and answer who asked; give it up where nobody waits any more."""
        _cancel_with(asked.reply)
        try:
            drawn = await pending.drawn()
        except asyncio.CancelledError:
            await self._backend.abort(call.name)
            return
        samples = [self._sample(asked, call.adapter, each) for each in drawn]
        if asked.reply.set_running_or_notify_cancel():
            asked.reply.set_result(samples)

    def _call(self, asked: Asked, adapter: Adapter | None) -> Call:
        return Call(
            name=f"{asked.request.role}-{next(self._numbers)}",
            prompt_ids=asked.prompt.ids,
            count=asked.request.count,
            limit=asked.limit,
            sampling=asked.request.sampling,
            seed=asked.request.key,
            stops=self._text.stops,
            adapter=adapter,
        )

    def _sample(self, asked: Asked, adapter: Adapter | None, drawn: Drawn) -> Sample:
        """What was drawn, stamped with the version of the adapter, or of the model's own weights as it began."""
        (_, first), *changes = drawn.versions
        version, later = (first, tuple(changes)) if adapter is None else (adapter.version, ())
        completion = Completion(drawn.token_ids, drawn.logprobs, drawn.finish, version, later)
        return self._text.sample(asked.request, asked.prompt, completion)

    def _check(self, policy: str, what: str) -> None:
        if self._closed:
            raise EngineError(f"{what} policy {policy!r}, and its engine was closed; expected an open one. Load it.")
        if policy not in self.policies:
            raise EngineError(
                f"{what} policy {policy!r}, which this engine does not hold; it holds {', '.join(self.policies)}. Fix "
                "team.roles."
            )


def _cancel_with(reply: Future[list[Sample]]) -> None:
    """Cancel the task that asks for this when nobody waits for the reply any more."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def cancel(settled: Future[list[Sample]]) -> None:
        if settled.cancelled():
            loop.call_soon_threadsafe(task.cancel)

    reply.add_done_callback(cancel)
