"""The sampler on vLLM: batches of requests in, samples out, and the weights that it is given."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cadre.engines.text.template import Prompt
from cadre.engines.torch.model import DTYPES, locate
from cadre.engines.vllm import engine
from cadre.engines.vllm.adapters import AdapterFiles, AdapterVersions
from cadre.engines.vllm.engine import Call, Depth, Launch, Options
from cadre.engines.vllm.weight_sync import WeightSync, read_tensors
from cadre.errors import EngineError
from cadre.plugins import install_command
from cadre.rollout import batching
from cadre.settings import PolicyConfig
from cadre.team import Weights
from cadre.types import Request, Sample

if TYPE_CHECKING:
    from cadre.engines.vllm.async_engine import AsyncEngine, Stream

T = TypeVar("T")
Start = Callable[[Launch], Coroutine[Any, Any, "AsyncEngine"]]


class LoopThread:
    """An event loop in a thread of its own: engines belong to one loop while their callers' loops come and go. `close`
    ends it; may be called more than once."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the coroutine; its future may be waited for in any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the coroutine, blocking the calling thread."""
        return self.submit(work).result()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the coroutine without blocking the caller's event loop."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        async def cancel_tasks() -> None:
            # A task that outlives its loop complains at the interpreter's end.
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        if self._thread.is_alive():
            self.wait(cancel_tasks())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


async def start_engine(launch: Launch) -> AsyncEngine:
    """Start vLLM's processes. Raises EngineError if it is not installed or the model cannot be used."""
    for name, value in launch.environment.items():
        os.environ.setdefault(name, value)
    try:
        from cadre.engines.vllm.async_engine import AsyncEngine
    except ImportError as error:
        raise EngineError(
            f"sampling.engine: got vllm, which cannot be imported ({error}); expected vLLM 0.32. Run "
            f"{install_command('vllm')} (without a card: make vllm, in the clone), or take the torch engine."
        ) from error
    dtype = DTYPES[launch.arguments["dtype"]]
    try:
        return AsyncEngine.launch(launch, dtype)
    except (RuntimeError, ValueError) as error:
        raise EngineError(
            f"vLLM could not start with {launch.source!r}: {error}. What it says itself is above. Where memory for "
            "keys and values is short, lower vllm.context or raise sampling.memory."
        ) from error


@dataclass(frozen=True, eq=False)
class PromptRequest:
    """A request in token ids, and the future of its samples."""

    request: Request
    prompt: Prompt
    limit: int
    reply: Future[list[Sample]] = field(default_factory=Future)


def _end(thread: LoopThread, backend: AsyncEngine, files: AdapterFiles) -> None:
    thread.wait(backend.shutdown())
    thread.close()
    files.close()


class VllmSampler:
    """A `Sampler` of policies on one base model, which vLLM holds once: either one policy that is trained whole, or
    any number of adapters and frozen policies. Lives as long as the run; `close` ends vLLM's processes.

    A deterministic sampler gives vLLM the requests of one batch together; else each goes to vLLM when it arises. A
    request returns when its own completions have ended. `start` makes the engine: vLLM's, or a fake. Raises EngineError
    if the model cannot be used.
    """

    def __init__(
        self, model: str | Path, policies: Mapping[str, PolicyConfig], options: Options, start: Start | None = None
    ) -> None:
        self.policies = dict(policies)
        source = locate(model)
        self._text = engine.load_text(source, policies, options)
        launch = engine.plan_launch(source, policies, options, self._text.context)
        self._deterministic = launch.deterministic
        self._colocated = bool(options.config.colocated)
        # The deepest sleep that loses nothing. Adapters are sent again at every sync, and their base never is.
        self.deepest: Depth = "discard" if launch.transfer else "offload"
        self._adapters = AdapterVersions(launch.slots)
        self._files = AdapterFiles(source)
        self._numbers = count()
        self._closed = False
        self._thread = LoopThread("vllm")

        async def begin() -> tuple[AsyncEngine, WeightSync]:
            backend = await (start or start_engine)(launch)
            return backend, WeightSync(backend, self._adapters, self._files.remove, launch.deterministic)

        # The engine belongs to the event loop that it is made in.
        self._backend, self._sync = self._thread.wait(begin())
        # Also ends the engine of a sampler that was not closed, before the interpreter takes vLLM's modules away.
        self._finalizer = weakref.finalize(self, _end, self._thread, self._backend, self._files)

    async def sample(self, request: Request) -> list[Sample]:
        """Return `request.count` samples, if deterministic generated in one batch with all other requests of the
        moment."""
        self._check(request.policy, f"Role {request.role!r} asks for")
        prompt = self._text.prompt(request)
        pending = PromptRequest(request, prompt, self._text.limit(request, len(prompt.ids)))
        if self._deterministic:
            with batching.wait_for_batch(self._run_batch, pending):
                return await asyncio.wrap_future(pending.reply)
        await self._run_batch([pending])
        return pending.reply.result()

    async def load(self, weights: Weights) -> None:
        """Sample with these weights from now on: as a new version of an adapter, or in place of the model's own. Raises
        EngineError if the policy is unknown or frozen, or the weights cannot be read."""
        name, version = weights.policy, weights.version
        self._check(name, "Got weights of")
        policy = self.policies[name]
        if policy.frozen:
            raise EngineError(f"Got weights of policy {name!r}, which is frozen; expected one that is trained.")
        if policy.lora is None:
            # A colocated learner's own tensors do not change while the sampler may need them again.
            lasting = self._colocated and weights.tensors is not None
            await self._thread.run(self._sync.load_weights(read_tensors(weights), version, lasting))
        else:
            adapter = self._adapters.create(name, version)
            folder = self._files.write(adapter, weights, policy.lora)
            await self._thread.run(self._sync.load_adapter(adapter, folder))

    def sleep(self, depth: Depth) -> None:
        """Free the GPU's memory for the learner, until the next request or weights."""
        self._thread.wait(self._sync.sleep(depth))

    def take_seconds(self) -> dict[str, float]:
        """Return how long weight syncs, falling asleep and waking took since the last call."""
        seconds, self._sync.seconds = self._sync.seconds, defaultdict(float)
        return {f"time/{name}_s": seconds[name] for name in ("sync", "sleep", "wake")}

    def close(self) -> None:
        """End vLLM's processes, and remove the files of adapters."""
        self._closed = True
        self._finalizer()

    async def _run_batch(self, batch: Sequence[PromptRequest]) -> None:
        """Generate one batch; returns once every request of it has its reply, or no caller waits for it any more."""
        work = self._thread.submit(self._generate(batch))
        waiting = asyncio.wrap_future(work)
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError:
            # vLLM must be rid of the requests before the loop that waits for them is closed.
            for pending in batch:
                pending.reply.cancel()
            await asyncio.wait([waiting])
            raise
        # After an error every request gets a reply, as its caller waits for nothing else.
        error = waiting.exception()
        for pending in batch:
            if error is not None and not pending.reply.done() and pending.reply.set_running_or_notify_cancel():
                pending.reply.set_exception(error)

    async def _generate(self, batch: Sequence[PromptRequest]) -> None:
        """Submit all requests together, then reply to each as it ends. Runs in the engine's loop."""
        with ExitStack() as used:
            calls = [
                Call(
                    name=f"{pending.request.role}-{next(self._numbers)}",
                    prompt_ids=pending.prompt.ids,
                    count=pending.request.count,
                    limit=pending.limit,
                    sampling=pending.request.sampling,
                    seed=pending.request.key if self._deterministic else None,
                    stops=self._text.stops,
                    adapter=used.enter_context(self._adapters.use(pending.request.policy)),
                )
                for pending in batch
            ]
            try:
                queued = await self._sync.submit(calls)
                await batching.gather(*map(self._reply, batch, calls, queued))
            finally:
                self._sync.end(len(calls))

    async def _reply(self, pending: PromptRequest, call: Call, queued: Stream) -> None:
        """Wait for one call and set its reply; abort it if no caller waits any more."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel(reply: Future[list[Sample]]) -> None:
            if reply.cancelled():
                loop.call_soon_threadsafe(task.cancel)

        # The reply is cancelled in the caller's thread, this task belongs to the engine's loop.
        pending.reply.add_done_callback(cancel)
        try:
            completions = await queued.completions()
        except asyncio.CancelledError:
            await self._backend.abort(call.name)
            return
        if call.adapter is not None:  # the version is the adapter's, not that of the model's own weights
            completions = [replace(completion, version=call.adapter.version, changes=()) for completion in completions]
        samples = [self._text.sample(pending.request, pending.prompt, completion) for completion in completions]
        if pending.reply.set_running_or_notify_cancel():
            pending.reply.set_result(samples)

    def _check(self, policy: str, action: str) -> None:
        if self._closed:
            raise EngineError(f"{action} policy {policy!r}, and its engine was closed; expected an open one. Load it.")
        self._text.check_policy(policy, action)
