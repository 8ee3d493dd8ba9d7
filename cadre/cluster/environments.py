"""Environments that step in other processes: a step is a function of state and actions, so any process will do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cadre.cluster.connection import ray_module
from cadre.cluster.member import Member, as_raised
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.types import Observation, Reward, Task


class Environments:
    """Processes that step environments. A step whose process dies is made again by the one that replaces it."""

    def __init__(self, members: Sequence[Member]) -> None:
        for member in members:
            member.ask(lambda handle: handle.pid.remote())
        self.members = members
        self.running = [0] * len(members)

    async def step(self, env: Env, actions: dict[str, str]) -> tuple[Env, Reward]:
        """The environment after the step, and what that paid. Raises what the step raised."""
        place = self.running.index(min(self.running))
        self.running[place] += 1
        try:
            return await _step(self.members[place], env, actions)
        finally:
            self.running[place] -= 1

    def close(self) -> None:
        """End the processes."""
        for member in self.members:
            member.close()


async def _step(member: Member, env: Env, actions: dict[str, str]) -> tuple[Env, Reward]:
    exceptions, met = ray_module().exceptions, 0
    while True:
        handle = member.handle
        try:
            after, reward = await handle.step.remote(env, actions)
            return after, reward
        except exceptions.RayActorError as error:
            met = await asyncio.to_thread(member.replace, handle, error, met)
        except exceptions.RayTaskError as error:
            raise as_raised(error) from None


class HostedEnv(Env):
    """An environment whose state is here and whose steps are made elsewhere."""

    def __init__(self, inner: Env, hosts: Environments) -> None:
        super().__init__(inner.task)
        self.inner, self.hosts = inner, hosts

    def observe(self) -> dict[str, Observation]:
        return self.inner.observe()

    async def step(self, actions: dict[str, str]) -> Reward:
        self.inner, reward = await self.hosts.step(self.inner, actions)
        return reward

    def fork(self) -> HostedEnv:
        return HostedEnv(self.inner.fork(), self.hosts)

    @property
    def success(self) -> bool:
        return self.inner.success

    def privileged(self) -> str:
        return self.inner.privileged()


class HostedSpec(EnvSpec):
    """An environment's specification whose episodes step in other processes."""

    def __init__(self, spec: EnvSpec, hosts: Environments) -> None:
        self.__dict__.update(vars(spec))
        self.hosts = hosts

    def make(self, task: Task) -> Env:
        """A fresh episode of the task."""
        return HostedEnv(super().make(task), self.hosts)
