"""Environments that step in other processes: a step is a function of state and actions, so any process can do it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from cadre.cluster.ray_actors import SupervisedActor, death_errors, ray_module, unwrap_error
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.types import Drawing, Observation, Reward, Sample, Task

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
        self.repeatable, self.pays_absent = inner.repeatable, inner.pays_absent

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

    def fork(self) -> RemoteEnv:
        return RemoteEnv(self.inner.fork(), self.pool)

    def close(self) -> None:
        self.inner.close()

    @property
    def success(self) -> bool:
        return self.inner.success

    def privileged(self) -> str:
        return self.inner.privileged()

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
