"""Samplers, learners and environments in other processes, as the training process uses them.

Any of them may die at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import EngineError, PromptError
from cadre.rollout import batching
from cadre.team import LearnerProxy, Metrics, Weights
from cadre.types import Drawing, Observation, Request, Reward, Sample, Task, TrainingSequence
from cadre_ray.processes import Outcome, pack_weights, read_files, write_files
from cadre_ray.ray_actors import SupervisedActor, death_errors, ray_module, unwrap_error

T = TypeVar("T")
# Starts loading weights in an actor; returns the reference to wait for.
StartLoading = Callable[[Any], Any]


@dataclass(frozen=True)
class StoredWeights(Weights):
    """Weights in Ray's object store: `content` is the reference to what `pack_weights` returns."""

    content: Any = None


@dataclass(frozen=True, eq=False)
class WaitingRequest:
    """A request, the future of its samples, and an object that all requests of its step share."""

    request: Request
    future: asyncio.Future[list[Sample]]
    scope: object


def split_batch(batch: Sequence[T], count: int) -> list[Sequence[T]]:
    """Return the parts of a batch for so many samplers: every `count`-th, from the first, the second ... on."""
    return [part for start in range(count) if (part := batch[start::count])]


class PoolSampler:
    """One sampler of a pool.

    It keeps the requests of the present scope: a replacement samples them again, so that its prefix cache across turns,
    and with it the next turns, are the same to the last bit.
    """

    def __init__(self, actor: SupervisedActor, reload_weights: Callable[[Any], None]) -> None:
        self.actor = actor
        self._reload_weights = reload_weights
        self._scope, self._sampled = 0, list[list[Request]]()
        actor.recover = self._recover

    async def sample(self, scope: int, part: Sequence[WaitingRequest]) -> None:
        """Answer a part of a batch; every request gets samples or an error."""
        if scope != self._scope:  # a new step, which needs no prefix cache of the last one
            self._scope, self._sampled = scope, []
        requests, deaths = [waiting.request for waiting in part], 0
        try:
            while any(not waiting.future.done() for waiting in part):
                handle = self.actor.handle
                try:
                    await self._stream(handle, requests, part)
                except death_errors() as error:
                    deaths = await asyncio.to_thread(self.actor.replace, handle, error, deaths)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where samples are waited for
            for waiting in part:
                if not waiting.future.done():
                    waiting.future.set_exception(unwrap_error(error))
        self._sampled.append(requests)

    async def _stream(self, handle: Any, requests: list[Request], part: Sequence[WaitingRequest]) -> None:
        """Set the outcomes of the requests as they come."""
        stream = handle.sample.remote(self._scope, requests)
        try:
            async for reference in stream:
                number, outcome = await reference
                _set_outcome(part[number].future, outcome)
        except asyncio.CancelledError:
            ray_module().cancel(stream)
            raise

    def _recover(self, handle: Any) -> None:
        self._reload_weights(handle)
        for requests in self._sampled:
            for reference in handle.sample.remote(self._scope, requests):
                ray_module().get(reference)


def _set_outcome(future: asyncio.Future[list[Sample]], outcome: Outcome) -> None:
    if future.done():  # before its sampler died
        return
    if isinstance(outcome, PromptError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class SamplerPool:
    """A `Sampler` of the policies of one base model: several processes with the same weights.

    Owned by the team, which closes it. The batch of each sampler follows from the requests and the number of samplers.
    One that dies is replaced, gets its weights, and samples its requests of the step and its whole batch again, with
    the same random numbers: the same tokens.
    """

    def __init__(self, actors: Sequence[SupervisedActor], policies: Sequence[str], memory: int | None) -> None:
        self.actors, self.policies, self.memory = actors, tuple(policies), memory
        self._loads: dict[str, StartLoading] = {}
        self._samplers = [PoolSampler(actor, self._reload_weights) for actor in actors]
        self._scope: object = None
        self._scope_number = 0

    async def sample(self, request: Request) -> list[Sample]:
        """Return `request.count` samples, generated in one batch with the other requests for the same sampler."""
        if request.policy not in self.policies:
            raise EngineError(
                f"Role {request.role!r} asks for policy {request.policy!r}; this pool holds {', '.join(self.policies)}."
            )
        waiting = WaitingRequest(request, asyncio.get_running_loop().create_future(), batching.current_barrier())
        with batching.wait_for_batch(self._run_batch, waiting):
            return await waiting.future

    async def load(self, weights: Weights) -> None:
        """Load the weights in every sampler of the pool, after its pending batches."""
        policy, version = weights.policy, weights.version
        stored = weights.content if isinstance(weights, StoredWeights) else ray_module().put(pack_weights(weights))

        def start_loading(handle: Any) -> Any:
            return handle.load.remote(policy, version, stored)

        # Kept for replacements, and set first, so that one that is made meanwhile loads these weights too.
        self._loads[policy] = start_loading
        await asyncio.gather(*(asyncio.to_thread(actor.call, start_loading) for actor in self.actors))

    def close(self) -> None:
        """End the samplers."""
        for actor in self.actors:
            actor.close()

    async def _run_batch(self, batch: Sequence[WaitingRequest]) -> None:
        # Samplers in other processes know a step by a number, which stands for the object that its requests share.
        if batch[0].scope is not self._scope:
            self._scope, self._scope_number = batch[0].scope, self._scope_number + 1
        pairs = zip(self._samplers, split_batch(batch, len(self.actors)), strict=False)
        await asyncio.gather(*(sampler.sample(self._scope_number, part) for sampler, part in pairs))

    def _reload_weights(self, handle: Any) -> None:
        ray_module().get([start_loading(handle) for start_loading in self._loads.values()])


class RemoteLearner(LearnerProxy):
    """A `Learner` of the policies of one base model. Owned by the team, which closes it.

    Its process can be made again at any time: from a copy of its state, taken at every checkpoint and every
    `copy_interval` updates, and the sequences of the updates since, which are repeated in their order and give the same
    weights, bit for bit.
    """

    def __init__(self, actor: SupervisedActor, policies: Sequence[str], copy_interval: int) -> None:
        super().__init__(policies)
        self.actor, self._copy_interval = actor, copy_interval
        # The state of each process, and the sequences of each update since, in the object store of this machine.
        self._state: list[Any] = []
        self._updates: list[Any] = []
        actor.recover = self._recover

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Update every policy that has sequences once; return metrics by policy. Raises DivergedError."""

        def run() -> dict[str, Metrics]:
            stored = ray_module().put(data)
            metrics: dict[str, Metrics] = self.actor.call(lambda handle: handle.call_learner.remote("update", stored))
            self._updates.append(stored)
            if len(self._updates) >= self._copy_interval:
                self._copy_state()
            return metrics

        return await asyncio.to_thread(run)

    async def publish(self, policy: str) -> Weights:
        """Return the policy's weights in the object store of this machine, from which samplers fetch them."""
        version, contents = await asyncio.to_thread(
            self.actor.call_and_store, lambda handle: handle.publish.options(num_returns=2).remote(policy)
        )
        return StoredWeights(policy, version, content=contents[0])

    def save(self, folder: Path) -> None:
        """Write the learner's state here, whichever machine it is on."""
        self._copy_state()
        for part in self._state:
            write_files(ray_module().get(part), folder)

    def load(self, folder: Path) -> None:
        """Restore the learner's policies from a checkpoint, which may have others too."""
        files = {name: data for name, data in read_files(folder).items() if name.split("/")[0] in self.policies}
        self._state, self._updates = [ray_module().put(files)], []
        self.actor.call(lambda handle: handle.load.remote(*self._state))

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write one policy for use without Cadre."""
        write_files(self.actor.call(lambda handle: handle.export.remote(policy, merge)), folder)

    def close(self) -> None:
        """End the learner's process."""
        self.actor.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self.actor.call(lambda handle: handle.call_learner.remote(method, *arguments))

    def _copy_state(self) -> None:
        _, self._state = self.actor.call_and_store(lambda handle: handle.state.options(num_returns=2).remote())
        self._updates = []

    def _recover(self, handle: Any) -> None:
        if self._state:
            self.actor.call_once(handle, lambda rank: rank.load.remote(*self._state))

        def start_update(rank: Any, stored: Any) -> Any:
            return rank.call_learner.remote("update", stored)

        for stored in self._updates:
            self.actor.call_once(handle, partial(start_update, stored=stored))


# ---- Environments: a step is a function of state and actions, so that any process can do it


# Seconds in which a process has to answer after a step of it was cancelled.
ANSWER_S = 5.0
Actions = Mapping[str, str] | Mapping[str, Sample]


class EnvironmentPool:
    """Processes that step environments. A step whose process dies is repeated by its replacement."""

    def __init__(self, actors: Sequence[SupervisedActor]) -> None:
        for actor in actors:
            actor.call(lambda handle: handle.pid.remote())
        self.actors = actors
        # Running steps of each process.
        self.running = [0] * len(actors)
        self._checks: set[asyncio.Task[None]] = set()

    async def step(self, env: Env, actions: Actions) -> tuple[Env, Reward]:
        """Return the environment after the step, by texts or samples of the acting roles, and its reward.

        Raises the error of the step. A process that a cancelled step blocks is replaced before its next use.
        """
        # The process with the fewest running steps.
        index, deaths = self.running.index(min(self.running)), 0
        actor = self.actors[index]
        self.running[index] += 1
        try:
            while True:
                handle = actor.handle
                try:
                    next_env, reward = await handle.step.remote(env, actions)
                    return next_env, reward
                except death_errors() as error:
                    deaths = await asyncio.to_thread(actor.replace, handle, error, deaths)
                except ray_module().exceptions.RayTaskError as error:
                    raise unwrap_error(error) from None
        except asyncio.CancelledError:
            self.running[index] += 1  # not used until the check has ended
            check = asyncio.ensure_future(self._check(index))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
            raise
        finally:
            self.running[index] -= 1

    async def _check(self, index: int) -> None:
        """Replace a process that does not answer."""
        actor = self.actors[index]
        handle = actor.handle
        try:
            await asyncio.wait_for(handle.pid.remote(), ANSWER_S)
        except TimeoutError:
            await asyncio.to_thread(actor.replace_stuck, handle)
        except death_errors():
            pass  # the next step replaces it
        finally:
            self.running[index] -= 1

    def close(self) -> None:
        """End the processes."""
        for actor in self.actors:
            actor.close()


class RemoteEnv(Env):
    """An environment whose state is in this process and whose steps run in others."""

    def __init__(self, inner: Env, pool: EnvironmentPool) -> None:
        super().__init__(inner.task)
        self.inner, self.pool = inner, pool
        self.repeatable, self.rewards_absent = inner.repeatable, inner.rewards_absent
        self.max_decisions, self.takes_failures = inner.max_decisions, inner.takes_failures

    def observe(self) -> dict[str, Observation]:
        return self.inner.observe()

    async def until_ready(self) -> None:
        await self.inner.until_ready()

    async def step(self, actions: dict[str, str]) -> Reward:
        self.inner, reward = await self.pool.step(self.inner, actions)
        return reward

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        self.inner, reward = await self.pool.step(self.inner, samples)
        return reward

    async def compare(
        self, forks: Sequence[Env], actions: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]
    ) -> Sequence[Reward]:
        inner = [fork.inner if isinstance(fork, RemoteEnv) else fork for fork in forks]
        return await self.inner.compare(inner, actions, rewards)

    def fork(self) -> RemoteEnv:
        return RemoteEnv(self.inner.fork(), self.pool)

    def close(self) -> None:
        self.inner.close()

    @property
    def success(self) -> bool:
        return self.inner.success

    def privileged(self) -> str:
        return self.inner.privileged()

    def default_action(self, role: str) -> str:
        return self.inner.default_action(role)

    def signature(self) -> str:
        return self.inner.signature()

    def render(self) -> Drawing:
        return self.inner.render()


class RemoteEnvSpec(EnvSpec):
    """An environment's specification whose episodes step in other processes."""

    def __init__(self, spec: EnvSpec, pool: EnvironmentPool) -> None:
        self.__dict__.update(vars(spec))
        self.pool = pool

    def make(self, task: Task) -> Env:
        """Return a fresh episode of the task."""
        return RemoteEnv(super().make(task), self.pool)

    def close(self) -> None:
        """End the processes."""
        self.pool.close()
