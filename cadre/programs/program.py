"""Somebody else's agent program as an environment. `docs/programs.md` is its guide.

Blocked in a model call it observes; our answer is its step; a fork is a second instance that is started anew and given
the answers that the first one had. The program itself is not changed: it calls an OpenAI-compatible endpoint, and the
name of the model that it asks for is the role that acts.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from weakref import WeakSet

from pydantic import Field

from cadre.env import Env, Split
from cadre.programs import checked, rewards
from cadre.programs.calls import Answer
from cadre.programs.conversation import conversation_of
from cadre.programs.failures import Diverged, ProgramFailed
from cadre.programs.host import Play, shared_host
from cadre.programs.instance import Asked, Exchange, Instance, Standing
from cadre.programs.posted import Outcome, added
from cadre.programs.running import Ended
from cadre.programs.settings import Isolation, Limits, launch_of
from cadre.programs.task_file import tasks_of
from cadre.programs.trunk import Trunk
from cadre.types import Message, Observation, Reward, Sample, Task

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
SUCCESS = 1.0
FREE = ("auto", "none")


class Program(Env):
    """Settings:

    run          FILE.py:FUNCTION, called with the task and a client if it takes one; or a command, a list of words
    roles        the models that the program asks for, each a role
    models       other names that it asks for: {gpt-4o: planner}
    reward       program: what it returns or prints last, and posts; or FILE.py:FUNCTION of task, transcript and result
    turn_reward  FILE.py:FUNCTION of task and one exchange, which alone pays: siblings need no run of their own
    errors       drop: a program that fails costs its task's tree; a number: that is what it is paid
    isolation    fork: a process for each instance; thread: a thread of this process, for quick functions
    replayable   false for a program that asks for something else each time: it needs a shape that is independent
    folder       fresh, or copied: a fork starts in a copy of the folder of what it is forked from
    limits       seconds, cpu, memory, processes, calls of one instance
    python       the interpreter for the function's file, such as that of another virtual environment
    environment  variables for the program

    and those of `tasks`.
    """

    roles: ClassVar[tuple[str, ...]] = ()
    pays_absent = True

    def __init__(
        self,
        task: Task,
        run: str | list[str],
        roles: list[str],
        models: dict[str, str] | None = None,
        reward: str = rewards.FROM_PROGRAM,
        turn_reward: str = "",
        errors: float | Literal["drop"] = "drop",
        isolation: Isolation = "fork",
        replayable: bool = True,
        folder: Literal["fresh", "copied"] = "fresh",
        limits: Limits | None = None,
        python: str = "",
        environment: dict[str, str] | None = None,
        **of_tasks: Any,
    ) -> None:
        super().__init__(task)
        launch = launch_of(run, isolation, limits or Limits(), python, environment or {})
        names = {**{role: role for role in roles}, **(models or {})}
        self._host = shared_host()
        # What tools returned; goes with the last copy of the episode.
        self._memo = tempfile.TemporaryDirectory(dir=self._host.scratch, ignore_cleanup_errors=True)
        self.play = Play(task, names, launch, Path(self._memo.name), replayable)
        self.reward, self.turn_reward, self.errors, self.copies = reward, turn_reward, errors, folder == "copied"
        self.past: tuple[Exchange, ...] = ()
        self.said: tuple[Exchange, ...] = ()  # answers that no instance has been given yet
        self.standing: Standing | None = None  # where the program stands once it has been given them
        self.before: Standing | None = None  # where it stood before
        self.trunk, self.outcome = Trunk(), Outcome()
        self.paid, self.total = Reward(), 0.0  # at the last decision, and the team in all
        self.copied: tempfile.TemporaryDirectory[str] | None = None
        self.forks: WeakSet[Program] = WeakSet()
        self.left, self.repeatable = False, replayable

    @classmethod
    def roles_of(cls, roles: Sequence[str] = (), **settings: Any) -> tuple[str, ...]:
        return tuple(roles)

    @classmethod
    def tasks(
        cls, split: Split, tasks: str = "", test: str = "", held_out: Share = 0.1, **settings: Any
    ) -> Sequence[Task]:
        """The tasks of a split.

        tasks     a file of JSON objects, one a line
        test      another one for testing
        held_out  without it, the share of `tasks` that is held out
        """
        return tasks_of(tasks, test, held_out, split)

    @property
    def success(self) -> bool:
        """What the program or the reward function says; where they do not, whether the team was paid 1 or more."""
        return self.total >= SUCCESS if self.outcome.success is None else self.outcome.success

    def observe(self) -> dict[str, Observation]:
        if self.standing is None and self.left:  # with a turn's own reward nobody has played this one
            return {role: self._seen(role, asked) for role, asked in self._acting(self.before).items()}
        if self.standing is None:
            self._take_in(self._host.server.submit(self._brought()).result())
        return {role: self._seen(role, asked) for role, asked in self._acting(self.standing).items()}

    async def until_ready(self) -> None:
        if self.standing is None:
            self._take_in(await asyncio.wrap_future(self._host.server.submit(self._brought())))

    async def step(self, actions: dict[str, str]) -> Reward:
        return await self._answered({role: Answer(Message("assistant", text)) for role, text in actions.items()})

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        return await self._answered({role: answer_of(sample) for role, sample in samples.items()})

    def fork(self) -> Self:
        if self.copies and self.copied is None and (running := self.trunk.running) is not None:
            self.copied = tempfile.TemporaryDirectory(dir=self._host.scratch, ignore_cleanup_errors=True)
            shutil.copytree(running.folder, self.copied.name, symlinks=True, dirs_exist_ok=True)
        fork = copy.copy(self)
        fork.trunk, fork.forks = self.trunk.shared(), WeakSet()
        self.forks.add(fork)
        return fork

    def close(self) -> None:
        self.left = True
        for fork in self.forks:
            fork.close()
        self._host.server.loop.call_soon_threadsafe(self.trunk.close)

    async def again(self) -> None:
        """Start the program once more with all answers so far, for a check. Raises Diverged where it then stands
        elsewhere."""
        play = replace(self.play, replayable=True)
        once_more = self._host.server.submit(self._host.at(play, self.past, self.standing))
        instance, _ = await asyncio.wrap_future(once_more)
        self._host.server.loop.call_soon_threadsafe(instance.close, "the check is over")

    async def _answered(self, answers: Mapping[str, Answer]) -> Reward:
        await self.until_ready()
        asked = self._acting(self.standing)
        self.said = tuple(
            Exchange(role, asked[role], answer, self._conversation(role, asked[role]))
            for role, answer in answers.items()
        )
        self.before, self.standing = self.standing, None
        if self.turn_reward:
            return rewards.of_turn(self.task, self.said, self.turn_reward)
        broken = broken_demands(self.said)
        await self.until_ready()
        return added(self.paid, Reward(parts=broken))

    def _acting(self, standing: Standing | None) -> dict[str, Asked]:
        """The first call of each role that waits for an answer there."""
        assert standing is not None
        acting: dict[str, Asked] = {}
        for asked in standing.asked:
            acting.setdefault(self.play.role_of[asked.call.role], asked)
        return acting

    def _conversation(self, role: str, asked: Asked) -> str:
        return conversation_of(self.past, role, asked.call.messages)

    def _seen(self, role: str, asked: Asked) -> Observation:
        call = checked.told(asked.call)
        conversation = self._conversation(role, asked)
        return Observation(role, call.messages, call.tools, call.stop, call.max_tokens, conversation)

    async def _brought(self) -> tuple[Instance | None, Standing, Reward]:
        """In the endpoint's loop: an instance that has been given all answers, where it stands, and what it posted. One
        that had to be ended, as it hung or asked for too much, has ended where such ends are paid."""
        instance = self.trunk.take()
        standing = self.before
        try:
            if instance is None:
                copied = Path(self.copied.name) if self.copied else None
                instance, standing = await self._host.at(self.play, self.past, self.before, copied)
            instance.paid = Reward()
            if self.said:
                standing = await instance.stepped(self.said)
        except BaseException as error:
            if instance is not None:
                instance.close("it was not needed any more")
            if isinstance(self.errors, str) or not isinstance(error, ProgramFailed) or isinstance(error, Diverged):
                raise
            standing = Standing((), Ended(error=str(error)))
        assert standing is not None
        return instance, standing, instance.paid if instance is not None else Reward()

    def _take_in(self, brought: tuple[Instance | None, Standing, Reward]) -> None:
        instance, self.standing, self.paid = brought
        self.past, self.said = (*self.past, *self.said), ()
        self.trunk, self.copied = Trunk(instance), None
        if self.standing.ended is not None:
            self._host.server.loop.call_soon_threadsafe(self.trunk.close)
            posted = instance is not None and instance.posts > 0
            self.outcome = rewards.final(self.task, self.standing.ended, self.past, self.reward, self.errors, posted)
            self.paid = added(self.paid, self.outcome.reward)
        self.total += self.paid.team


def answer_of(sample: Sample) -> Answer:
    """What was sampled, as the program is answered it."""
    message = sample.message or Message("assistant", sample.text)
    return Answer(message, sample.finish, len(sample.prompt_ids), len(sample.token_ids))


def broken_demands(said: Sequence[Exchange]) -> dict[str, float]:
    """How many answers do not keep to what was demanded of them; empty where nothing was."""
    demanded = [one for one in said if one.asked.call.schema is not None or one.asked.call.choice not in FREE]
    broken = sum(not checked.keeps(one.asked.call, one.answer.message) for one in demanded)
    return {"malformed": float(broken)} if demanded else {}
