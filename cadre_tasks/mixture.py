"""The environment `mixture`: one team plays several environments, whose tasks it is dealt by weight.

    env: [{name: maths, weight: 2}, {name: code}, mine.py:Task]

is short for `env: mixture` with this list as `settings.envs`. All that an environment says or is told is named after
it: the role `maths-reasoner`, the task `maths/train-7`, the part of the reward `maths/success`, which is whether an
episode that ended was solved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Annotated, Any

from pydantic import Field

from cadre.env import Env, GeneratedTasks, Split, read_tasks
from cadre.envs.spec import EnvSpec
from cadre.envs.validation import ROLE, declaration_faults, raise_first
from cadre.envs.wrappers import Wrapper
from cadre.errors import ConfigError, NoSourceError, nearest
from cadre.types import Observation, Reward, Sample, Task

KEYS = ("name", "as", "weight", "settings")
MAX_WEIGHT = 1_000
Weight = Annotated[int, Field(ge=0, le=MAX_WEIGHT)]
EXAMPLE = "[{name: maths, weight: 2}, {name: code}]"


# ---- The environments


@dataclass(frozen=True)
class Member:
    """One environment of a mixture: of every block of tasks, `weight` are its own."""

    name: str
    weight: int
    spec: EnvSpec

    def outer(self, role: str) -> str:
        """Return the name that a role of the environment has in the mixture."""
        return f"{self.name}-{role}"

    def inner(self, role: str) -> str:
        """Return the environment's own name of a role of the mixture."""
        return role.removeprefix(f"{self.name}-")


def read_members(envs: Any) -> Mapping[str, Member]:
    """Return the environments that a list names, by name. Raises ConfigError for the first fault of an entry."""
    if not isinstance(envs, list) or not envs:
        raise ConfigError(f"env: got {envs!r:.200}; expected a list of environments, such as {EXAMPLE}. Write one.")
    return _read_members(json.dumps(envs))


@lru_cache(maxsize=32)
def _read_members(envs: str) -> Mapping[str, Member]:
    members: dict[str, Member] = {}
    for entry in json.loads(envs):
        member = _read_member({"name": entry} if isinstance(entry, str) else entry)
        if member.name in members:
            got = f"got two environments with the name {member.name}"
            raise ConfigError(f"env: {got}; expected a name for each. Add `as: NAME` to one of them.")
        members[member.name] = member
    return members


def _read_member(entry: Any) -> Member:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ConfigError(f"env: got the entry {entry!r:.200}; expected a name, or a mapping with one. See {EXAMPLE}.")
    for key in entry:
        if key not in KEYS:
            advice = nearest(key, KEYS) or f" A setting of the environment stands in it: settings: {{{key}: ...}}."
            raise ConfigError(f"env: got {key!r} for {entry['name']}; expected {', '.join(KEYS)}.{advice}")
    name = entry.get("as", entry["name"].rpartition(":")[2])
    if not isinstance(name, str) or not ROLE.fullmatch(name):
        expected = "expected a letter, then letters, digits, - and _, as it names roles and metrics"
        raise ConfigError(f"env: got the name {name!r}; {expected}. Add `as: NAME`.")
    weight, settings = entry.get("weight", 1), entry.get("settings", {})
    if type(weight) is not int or not 1 <= weight <= MAX_WEIGHT:
        advice = "Give weights in whole numbers, and leave out what is not to be played."
        raise ConfigError(f"env: got the weight {weight!r} of {name}; expected 1 to {MAX_WEIGHT:,}. {advice}")
    if not isinstance(settings, dict):
        raise ConfigError(f"env: got {settings!r:.200} as settings of {name}; expected a mapping. Write one.")
    try:
        spec = EnvSpec(entry["name"], settings)
    except ConfigError as error:
        raise ConfigError(f"env: {name}: {error}") from None
    if spec.missing:
        raise ConfigError(f"env: {name}: settings.{spec.missing[0]}: missing, and it has no default. Add it.")
    raise_first(fault.paragraph for fault in declaration_faults(spec))
    return Member(name, weight, spec)


# ---- Its tasks


class Deal(GeneratedTasks):
    """The tasks of several splits by weight: in every block of `period` tasks each split has as many as its weight,
    spread over the block and in its own order. A split is dealt again from its beginning once all of it is.
    """

    def __init__(self, splits: Mapping[str, Sequence[Task]], weights: Mapping[str, int], blocks: int) -> None:
        places = [(name, number) for name in splits for number in range(weights[name])]
        # A place of weight 2 stands at 1/4 and 3/4 of the block, one of weight 1 in its middle.
        self.places = sorted(places, key=lambda place: (place[1] + 0.5) / weights[place[0]])
        self.splits, self.weights, self.period = splits, weights, len(places)
        read = [task for tasks in splits.values() for task in read_tasks(tasks)]
        super().__init__(blocks * self.period, lambda index: self.task(index).data, "", read)

    def task(self, index: int) -> Task:
        block, place = divmod(index, self.period)
        name, number = self.places[place]
        task = self.splits[name][(block * self.weights[name] + number) % len(self.splits[name])]
        return Task(f"{name}/{task.id}", task.data)


# ---- Its episodes


class Mixture(Wrapper):
    """Owns one episode of the environment that its task is of. `envs` lists the environments, each a name or a mapping:

    name      a bundled environment, or file.py:Class
    as        its name in the mixture, by default its own
    weight    how many of its tasks are dealt for one of an environment of weight 1
    settings  its own settings

    `weights` replace the weights of training by name, as the levels of a curriculum do; 0 leaves an environment out.
    """

    plain_text = {"weights": ""}  # numbers by name

    def __init__(self, task: Task, envs: list[Any]) -> None:
        super().__init__(task)
        members = read_members(envs)
        name, _, inner_id = task.id.partition("/")
        if name not in members:
            raise ConfigError(f"task: got {task.id!r}; expected NAME/ID with one of {', '.join(members)}. Fix the id.")
        self.member = members[name]
        self.env = env = self.member.spec.make(Task(inner_id, task.data))
        self.repeatable, self.rewards_absent, self.max_decisions = env.repeatable, env.rewards_absent, env.max_decisions
        self.takes_failures, self.keeps_thinking = env.takes_failures, env.keeps_thinking

    def observe(self) -> dict[str, Observation]:
        shown = {self.member.outer(role): observation for role, observation in self.env.observe().items()}
        return {role: replace(observation, role=role) for role, observation in shown.items()}

    async def step(self, actions: dict[str, str]) -> Reward:
        return await self._paid(await self.env.step({self.member.inner(role): text for role, text in actions.items()}))

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        return await self._paid(await self.env.step_samples(self._inner_samples(samples)))

    def _inner_samples(self, samples: Mapping[str, Sample]) -> dict[str, Sample]:
        roles = {role: self.member.inner(role) for role in samples}
        return {roles[role]: replace(sample, role=roles[role]) for role, sample in samples.items()}

    async def _paid(self, reward: Reward) -> Reward:
        """Return a reward of the environment under the names of the mixture, at the end with the success."""
        await self.env.until_ready()
        return self.own_reward(reward)

    def own_reward(self, reward: Reward) -> Reward:
        parts = {f"{self.member.name}/{part}": value for part, value in reward.parts.items()}
        if not self.env.observe():
            parts[f"{self.member.name}/success"] = float(self.env.success)
        local = {self.member.outer(role): value for role, value in reward.local.items()}
        return replace(reward, local=local, parts=parts)

    async def compare(
        self, forks: Sequence[Env], actions: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]
    ) -> Sequence[Reward]:
        if type(self.env).compare is Env.compare:
            return rewards
        twins = [fork for fork in forks if isinstance(fork, Mixture)]
        own = [
            replace(
                reward,
                local={self.member.inner(role): value for role, value in reward.local.items()},
                parts={part.partition("/")[2]: value for part, value in reward.parts.items()},
            )
            for reward in rewards
        ]
        judged = await self.env.compare([twin.env for twin in twins], list(map(self._inner_samples, actions)), own)
        return [twin.own_reward(reward) for twin, reward in zip(twins, judged, strict=True)]

    def default_action(self, role: str) -> str:
        return self.env.default_action(self.member.inner(role))

    @classmethod
    def roles_of(cls, envs: Any = None, **settings: Any) -> tuple[str, ...]:
        return tuple(member.outer(role) for member in read_members(envs).values() for role in member.spec.roles)

    @classmethod
    def members(cls, envs: Any = None, **settings: Any) -> Mapping[str, EnvSpec]:
        return {name: member.spec for name, member in read_members(envs).items()}

    @classmethod
    def tasks(
        cls, split: Split, envs: Any = None, weights: dict[str, Weight] | None = None, **settings: Any
    ) -> Sequence[Task]:
        """Return the tasks of a split: for training by weight, until the longest split has been dealt; for testing one
        of each environment in turn, until the shortest has."""
        members, splits, unread = read_members(envs), dict[str, Sequence[Task]](), dict[str, NoSourceError]()
        for name, member in members.items():
            try:
                splits[name] = member.spec.tasks(split)
            except NoSourceError as error:
                unread[name] = error
            except ConfigError as error:
                raise ConfigError(f"env: {name}: {error}") from None
        if unread:
            changed = []
            for name, entry in zip(members, envs, strict=True):
                written: dict[str, Any] = {"name": entry} if isinstance(entry, str) else entry
                settings = {**written.get("settings", {}), **(unread[name].example if name in unread else {})}
                changed.append({**written, "settings": settings})
            name, first = next(iter(unread.items()))
            raise NoSourceError(f"env: {name}: {first}", {"envs": changed})
        if split == "test":
            return Deal(splits, dict.fromkeys(splits, 1), min(map(len, splits.values())))
        for name in weights or ():
            if name not in members:
                got = f"settings.weights: got {name!r}, which is no environment of the mixture"
                raise ConfigError(f"{got}; expected some of {', '.join(members)}. Fix it.{nearest(name, members)}")
        dealt = {name: count for name in splits if (count := (weights or {}).get(name, members[name].weight))}
        for name in dealt:
            if not len(splits[name]):
                raise ConfigError(f"env: {name} has no training tasks; expected at least one. Change its settings.")
        splits = {name: splits[name] for name in dealt}
        return Deal(splits, dealt, max((ceil(len(splits[name]) / count) for name, count in dealt.items()), default=0))
