"""The environment contract: the one class that a user writes. `cadre.envs.check.check_env` tests it.

An environment is a Markov game whose state is one object. `observe` returns the observations of the roles that act
now; `step` takes one text from each of them; `fork` makes an independent copy, so that K candidate actions can be tried
from the same state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, overload

from cadre.types import Choice, Drawing, Observation, Reward, Sample, Task, answer_text

Split = Literal["train", "test"]


class Env:
    """A task for a team. Subclass it in one file and name it in the YAML as `env: my_file.py:MyEnv`.

    One instance plays one episode and is owned by the rollout that made it. Keyword arguments after `task` are the
    environment's settings; `tasks` receives the same ones.
    """

    # Names of the roles, in the order in which prompts are shown.
    roles: ClassVar[tuple[str, ...]]
    # True if equal actions from equal states lead to equal states, so that they need to be played only once.
    repeatable: bool = True
    # True if a step may reward roles that did not act in it, as the end of a game may.
    rewards_absent: bool = False
    # An episode that is not over after so many decisions has failed.
    max_decisions: int = 200
    # True if `step_samples` accepts samples without a completion, because the prompt exceeds the model's context; the
    # episode then continues.
    takes_failures: bool = False
    # True if `step` receives the thinking of a completion too, between its marks (`<think>`).
    keeps_thinking: bool = False
    # True if an episode starts processes of its own, so that no trial should play one.
    starts_processes: bool = False
    # True if settings name data sets, so that `test` says what is held out, and `tasks` leaves it out of training.
    splits_data: bool = False
    # How many completions each decision gives (`Observation.answers`) where none are sampled.
    given_answers: ClassVar[int] = 0
    # The environment in which one agent does the whole task, for `cadre prove`; "" is `one-agent`, made of this one.
    one_agent: ClassVar[str] = ""
    # Functions, objects and MCP servers that a role may call, by role; a list is for all roles. `step` receives the
    # first completion that calls no tool.
    tools: Mapping[str, Sequence[Any]] | Sequence[Any] = ()
    # Time limit of a call, in seconds.
    tool_timeout_s: float = 10.0
    # Characters of a result; what is longer is cut.
    tool_max_chars: int = 4_000
    # Completions with calls that a role may sample in one turn.
    tool_turns: int = 8
    # By setting, a pattern of the text that a stranger's run may give it: text that names no file, module, command or
    # address. Numbers and `Literal` names need none; all other text needs --trust.
    plain_text: ClassVar[Mapping[str, str]] = {}

    def __init__(self, task: Task) -> None:
        self.task = task

    def observe(self) -> dict[str, Observation]:
        """Return what each role that acts now sees; an empty dict means that the episode is over. Changes nothing."""
        raise NotImplementedError

    async def step(self, actions: dict[str, str]) -> Reward:
        """Apply one text from every acting role and return the reward. Only acting roles get local rewards."""
        raise NotImplementedError

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        """Apply one completion from every acting role: by default `step` with their texts. Override it if an answer is
        more than its text, as with tool calls."""
        return await self.step(actions_of(self, samples))

    async def compare(
        self, forks: Sequence[Env], actions: Sequence[Mapping[str, Sample]], rewards: Sequence[Reward]
    ) -> Sequence[Reward]:
        """Return the rewards of all joint actions that were tried at this state, given the states that they led to and
        the rewards of their steps.

        Override it for a relative judge, such as a ranking of the completions of one prompt. It may change the `forks`.
        """
        return rewards

    async def until_ready(self) -> None:
        """Wait until `observe` can be called. Override it if it takes time until it is known who acts."""

    def fork(self) -> Self:
        """Return an independent copy of the state."""
        return copy.deepcopy(self)

    def close(self) -> None:
        """Release resources: this state will not be stepped or forked again, but it may still be observed. Closing the
        first state of an episode closes all of its forks."""

    @property
    def success(self) -> bool:
        """Return True if the task is solved by its own criterion; never merely because the episode ended."""
        raise NotImplementedError

    def privileged(self) -> str:
        """Return a text for critics and teachers in training (`critic.privileged`, `teacher.hint`), such as a solution.
        No role ever sees it. Changes nothing."""
        return ""

    def default_action(self, role: str) -> str:
        """Return the action that stands for the absence of a role that acts now, such as a no-op. Changes nothing.
        Credit by ablation steps a fork with it in place of the role's answer (docs/algorithms/counterfactual.md)."""
        return ""

    def signature(self) -> str:
        """Return a text that equal states share, "" for none: states of a task with the same one have one value.

        Without one, states are equal where a role is shown the same messages (docs/algorithms/state_value.md). Changes
        nothing.
        """
        return ""

    def render(self) -> Drawing:
        """Return a drawing for people to look at, made by `cadre.envs.drawings`; no role sees it. Changes nothing."""
        return None

    @classmethod
    def choices(cls, **settings: Any) -> Sequence[Choice]:
        """Return every decision of a game that is small enough to list them; `figures` evaluates policies on them."""
        return ()

    @classmethod
    def figures(cls, probabilities: Sequence[Sequence[float]], **settings: Any) -> dict[str, float]:
        """Return the game's exact figures by name, given the probability of every answer of each of `choices`."""
        return {}

    @classmethod
    def roles_of(cls, **settings: Any) -> tuple[str, ...]:
        """Return the roles under these settings. Override it if a setting changes their number."""
        return cls.roles

    @classmethod
    def members(cls, **settings: Any) -> Mapping[str, Any]:
        """Return the `EnvSpec` of each environment of a mixture by name; none for all other classes."""
        return {}

    @classmethod
    def count_trained_on(
        cls, settings: Mapping[str, Any], tasks: Sequence[Task], trained: type[Env], trained_settings: Mapping[str, Any]
    ) -> int | None:
        """Return how many of the tasks are in the training data of an environment with these settings; None if those
        data are not on this machine. For classes with `splits_data`; downloads nothing."""
        raise NotImplementedError

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        """Return the tasks of a split, the same at every call; train and test share none."""
        raise NotImplementedError


def actions_of(env: Env, samples: Mapping[str, Sample]) -> dict[str, str]:
    """Return the text of every completion, without its thinking unless the environment sets `keeps_thinking`."""
    return {role: sample.text if env.keeps_thinking else answer_text(sample) for role, sample in samples.items()}


class GeneratedTasks(Sequence[Task]):
    """A split of `count` tasks made on demand by `make(index)`, so that a large split costs nothing.

    With `read` they, or those in it, come from files that may change, and a resumed run compares them with those it
    began with. Training keeps blocks of `period` tasks together when it shuffles them.
    """

    period = 1

    def __init__(
        self, count: int, make: Callable[[int], Mapping[str, Any]], name: str, read: bool | Sequence[Task] = False
    ) -> None:
        self.size, self.make, self.name, self.read = count, make, name, read

    def task(self, index: int) -> Task:
        """Return the task of an index from 0 on."""
        return Task(f"{self.name}-{index}", self.make(index))

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
        return self.task(index % self.size)

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(self.size))


def read_tasks(tasks: Sequence[Task]) -> Sequence[Task]:
    """Return those tasks of a split that come from files, or from a list, and may change between two starts."""
    read = tasks.read if isinstance(tasks, GeneratedTasks) else isinstance(tasks, list | tuple)
    return (tasks if read else []) if isinstance(read, bool) else read
