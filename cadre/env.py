"""The environment contract, all that a user writes. `cadre.envs.check.check_env` tests an environment against it.

An environment is a Markov game in which the state lives in one object. `observe` says who acts now and what each of
them sees; `step` takes one text from each of them; `fork` makes an independent copy, so that K candidate actions can
be tried from the same state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, overload

from cadre.types import Choice, Drawing, Observation, Reward, Sample, Task

Split = Literal["train", "test"]


class Env:
    """A task for a team. Subclass it in one file and name it in the YAML as `env: my_file.py:MyEnv`.

    One instance plays one episode and is owned by the rollout that made it. Keyword arguments after `task` are the
    environment's settings; `tasks` receives the same ones.
    """

    roles: ClassVar[tuple[str, ...]]
    # Whether equal actions from equal states lead to equal states, so that they need to be played only once.
    repeatable: bool = True
    # Whether a step may pay roles that did not act in it, as the end of somebody else's program may.
    pays_absent: bool = False

    def __init__(self, task: Task) -> None:
        self.task = task

    def observe(self) -> dict[str, Observation]:
        """Who acts now: one role is a turn, several act at once, none means the episode is over. Changes nothing."""
        raise NotImplementedError

    async def step(self, actions: dict[str, str]) -> Reward:
        """Apply one text from every role that `observe` named. Local rewards only for those roles."""
        raise NotImplementedError

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        """Apply one completion from every role that `observe` named: by default `step` with their texts. Overridden
        where an answer is more than its text, as with tool calls."""
        return await self.step({role: sample.text for role, sample in samples.items()})

    async def until_ready(self) -> None:
        """Waited for before `observe` is asked; overridden where it takes time until it is known who acts."""

    def fork(self) -> Self:
        """An independent copy of the state."""
        return copy.deepcopy(self)

    def close(self) -> None:
        """Nobody will step or fork this state again: give back what it holds. What it showed can still be asked for.
        Closing the state that an episode began with closes all of its forks."""

    @property
    def success(self) -> bool:
        """The task's own criterion; never merely that the episode ended."""
        raise NotImplementedError

    def privileged(self) -> str:
        """What critics may see in training and no role ever does, such as a solution from here. Changes nothing."""
        return ""

    def render(self) -> Drawing:
        """The state for people to look at, made by `cadre.envs.drawings`; nobody who plays sees it. Changes nothing."""
        return None

    @classmethod
    def choices(cls, **settings: Any) -> Sequence[Choice]:
        """Every decision of a game that is small enough to list them; `figures` then says what policies are worth."""
        return ()

    @classmethod
    def figures(cls, probabilities: Sequence[Sequence[float]], **settings: Any) -> dict[str, float]:
        """The game's exact figures by name, given the probability of every answer of each of `choices`."""
        return {}

    @classmethod
    def roles_of(cls, **settings: Any) -> tuple[str, ...]:
        """The roles under these settings; overridden where a setting says how many there are."""
        return cls.roles

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        """The problems of a split, the same at every call; train and test share none."""
        raise NotImplementedError


class GeneratedTasks(Sequence[Task]):
    """A split of `count` tasks made on demand by `make(index)`, so that a large split costs nothing to name. Where they
    are `read`, from files that may change, a run that goes on looks whether they are still the same."""

    def __init__(self, count: int, make: Callable[[int], Mapping[str, Any]], name: str, read: bool = False) -> None:
        self.size, self.make, self.name, self.read = count, make, name, read

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not -self.size <= index < self.size:
            raise IndexError(index)
        return Task(f"{self.name}-{index % self.size}", self.make(index % self.size))

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(self.size))
