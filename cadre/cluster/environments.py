"""Environments that step in other processes: a step is a function of state and actions, so any process will do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from cadre.cluster.connection import deaths, ray_module
from cadre.cluster.member import Member, as_raised
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.types import Drawing, Observation, Reward, Sample, Task

# What a process may take to say that it is there, once a step of it was given up.
SIGN_S = 5.0
Said = Mapping[str, str] | Mapping[str, Sample]


class Environments:
    """Processes that step environments. A step whose process dies is made again by the one that replaces it."""

    def __init__(self, members: Sequence[Member]) -> None:
        for member in members:
            member.ask(lambda handle: handle.pid.remote())
        self.members = members
        self.running = [0] * len(members)
        self._looking: set[asyncio.Task[None]] = set()

    async def step(self, env: Env, said: Said) -> tuple[Env, Reward]:
        """The environment after the step, by texts or samples of those who act, and what that paid. Raises what the
        step raised. A process that a step which was given up has blocked is replaced before it is used again."""
        place = self.running.index(min(self.running))
        self.running[place] += 1
        try:
            return await _step(self.members[place], env, said)
        except asyncio.CancelledError:
            self.running[place] += 1  # until it is known to be there
            looking = asyncio.ensure_future(self._look_after(place))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)
            raise
        finally:
            self.running[place] -= 1

    async def _look_after(self, place: int) -> None:
        """Replace a process that does not say that it is there."""
        member = self.members[place]
        handle = member.handle
        try:
            await asyncio.wait_for(handle.pid.remote(), SIGN_S)
        except TimeoutError:
            await asyncio.to_thread(member.renew, handle)
        except deaths():
            pass  # the next step replaces it
        finally:
            self.running[place] -= 1

    def close(self) -> None:
        """End the processes."""
        for member in self.members:
            member.close()


async def _step(member: Member, env: Env, said: Said) -> tuple[Env, Reward]:
    met = 0
    while True:
        handle = member.handle
        try:
            after, reward = await handle.step.remote(env, said)
            return after, reward
        except deaths() as error:
            met = await asyncio.to_thread(member.replace, handle, error, met)
        except ray_module().exceptions.RayTaskError as error:
            raise as_raised(error) from None


class HostedEnv(Env):
    """An environment whose state is here and whose steps are made elsewhere. All else is asked of the state."""

    def __init__(self, inner: Env, hosts: Environments) -> None:
        super().__init__(inner.task)
        self.inner, self.hosts = inner, hosts
        self.repeatable, self.pays_absent = inner.repeatable, inner.pays_absent

    def observe(self) -> dict[str, Observation]:
        return self.inner.observe()

    async def until_ready(self) -> None:
        await self.inner.until_ready()

    async def step(self, actions: dict[str, str]) -> Reward:
        self.inner, reward = await self.hosts.step(self.inner, actions)
        return reward

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        self.inner, reward = await self.hosts.step(self.inner, samples)
        return reward

    def fork(self) -> HostedEnv:
        return HostedEnv(self.inner.fork(), self.hosts)

    def close(self) -> None:
        self.inner.close()

    @property
    def success(self) -> bool:
        return self.inner.success

    def privileged(self) -> str:
        return self.inner.privileged()

    def render(self) -> Drawing:
        return self.inner.render()


class HostedSpec(EnvSpec):
    """An environment's specification whose episodes step in other processes."""

    def __init__(self, spec: EnvSpec, hosts: Environments) -> None:
        self.__dict__.update(vars(spec))
        self.hosts = hosts

    def make(self, task: Task) -> Env:
        """A fresh episode of the task."""
        return HostedEnv(super().make(task), self.hosts)

    def close(self) -> None:
        """End the processes."""
        self.hosts.close()
