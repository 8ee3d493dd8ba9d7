"""An agent program as an environment. `docs/programs.md` is its guide.

The program is not changed: it calls an OpenAI-compatible endpoint, and the model that it names is the role that acts.
The environment observes the calls that the program is blocked in, and a step answers them. A fork is a second instance,
which is started anew and receives the answers that the first one had.
"""

from __future__ import annotations

import asyncio
import copy
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from weakref import WeakSet

from pydantic import Field

from cadre.env import Env, Split
from cadre.envs.check import CheckReport
from cadre.envs.spec import EnvSpec
from cadre.errors import ProgramFailed, require_linux
from cadre.types import Message, Observation, Reward, Sample, Task
from cadre_programs import rewards
from cadre_programs.calls import (
    Answer,
    AnsweredCall,
    ProgramCall,
    RequestError,
    add_constraints_to_prompt,
    has_constraints,
    is_satisfied,
)
from cadre_programs.containers import ContainerConfig, check_containers
from cadre_programs.instances import EpisodeSpec, Instance, ProgramState, SharedInstance, shared_host
from cadre_programs.processes import ProgramDiverged, ProgramResult
from cadre_programs.roles import make_role_rules
from cadre_programs.settings import CLOCK, ErrorRule, InstanceLimits, Isolation, load_tasks, make_launch

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
# The team reward from which an episode counts as a success, if nothing else says so.
SUCCESS = 1.0


class Program(Env):
    """Settings:

    run          FILE.py:FUNCTION, called with the task and a client if it takes one; or a command, a list of words
    roles        the models that the program asks for, each a role
    models       other names that it asks for: {gpt-4o: planner}
    reward       program: what it returns or prints last, and posts; or FILE.py:FUNCTION of task, transcript and result
    turn_reward  FILE.py:FUNCTION of task and one exchange, which alone pays: siblings need no run of their own
    errors       of a program that fails. lowest: its branch gets the lowest reward of its siblings less 0.1, or
                 less {margin: 0.5}; a number or {reward: -1}: that team reward; drop: its branch is left out
    isolation    fork: a process for each instance; container: one of docker or podman for each, without network
    container    its settings: image (or a field `image` of the task), runtime, network, cpus, disk, output
    replayable   false for a program that asks for something else each time: it needs a shape that is independent
    folder       fresh, or copied: a fork starts in a copy of the folder of what it is forked from
    limits       seconds, cpu, memory, processes, calls of one instance
    python       the interpreter for the function's file, such as that of another virtual environment
    environment  variables for the program
    steady       clock, random and uuid of its Python processes are the same in every run of a task; false: as they are
    clock        where that clock stands, in UTC; it moves on with what the program sleeps
    steady_secrets  true: what the system draws at random (secrets, os.urandom) is the same too
    embeddings   the URL of an endpoint that requests for embeddings are passed on to
    masks        {PATTERN: TEXT}: models read the text in place of what matches, as where a tool prints a process id
    schema_retries  how often a role is asked again for an answer that breaks the JSON schema it has to keep to

    and those of `tasks`.
    """

    roles: ClassVar[tuple[str, ...]] = ()
    rewards_absent = True
    plain_text = {**dict.fromkeys(("roles", "models", "clock", "limits", "errors", "masks"), ".*"), "reward": "program"}
    takes_failures = True
    starts_processes = True

    @classmethod
    async def examine(cls, env_spec: EnvSpec) -> CheckReport:
        """Return the report of `cadre check`."""
        from cadre_programs.check import examine

        return await examine(env_spec)

    def __init__(
        self,
        task: Task,
        run: str | list[str],
        roles: list[str],
        models: dict[str, str] | None = None,
        reward: str = rewards.FROM_PROGRAM,
        turn_reward: str = "",
        errors: float | Literal["lowest", "drop"] | ErrorRule = "lowest",
        isolation: Isolation = "fork",
        replayable: bool = True,
        folder: Literal["fresh", "copied"] = "fresh",
        limits: InstanceLimits | None = None,
        python: str = "",
        environment: dict[str, str] | None = None,
        steady: bool = True,
        clock: str = CLOCK,
        steady_secrets: bool = False,
        embeddings: str = "",
        schema_retries: Annotated[int, Field(ge=0, le=10)] = 1,
        container: ContainerConfig | None = None,
        masks: dict[re.Pattern[str], str] | None = None,
        **of_tasks: Any,
    ) -> None:
        super().__init__(task)
        require_linux(
            "env",
            "programs are started and ended by features of its kernel",
            "Run it in a Linux container or virtual machine; environments in Python run here.",
        )
        launch = make_launch(
            run,
            isolation,
            limits or InstanceLimits(),
            python,
            environment or {},
            clock if steady else "",
            steady and steady_secrets,
            container,
        )
        if launch.container is not None and "image" in task.data:
            launch = replace(launch, container=launch.container.with_image(task.data["image"]))
        self._host = shared_host()
        # Removed with the last copy of the episode.
        self._memo = tempfile.TemporaryDirectory(dir=self._host.scratch, ignore_cleanup_errors=True)
        self.episode = EpisodeSpec(
            task, make_role_rules(roles, models), launch, Path(self._memo.name), replayable, embeddings, masks or {}
        )
        self.schema_retries, self.retries_left = schema_retries, schema_retries
        self.reward, self.turn_reward = reward, turn_reward
        # The team reward of a failure, if it is a number, and the margin otherwise; None leaves its branch out.
        rule = ErrorRule() if errors == "lowest" else errors
        self.failure_reward = rule.reward if isinstance(rule, ErrorRule) else rule if rule != "drop" else None
        self.failure_margin = rule.margin if isinstance(rule, ErrorRule) else None
        self.max_decisions = max(type(self).max_decisions, self.episode.launch.limits.calls)
        self.copies_folder, self.repeatable = folder == "copied", replayable

        # `state` is unknown while `new_answers` have not been given to an instance. It is found when it is needed, so
        # that forks nobody observes start no program.
        self.history: tuple[AnsweredCall, ...] = ()
        self.new_answers: tuple[AnsweredCall, ...] = ()
        self.state: ProgramState | None = None
        self.previous_state: ProgramState | None = None
        self.instance, self.outcome = SharedInstance(), rewards.EpisodeOutcome()
        self.step_reward, self.total_team_reward = Reward(), 0.0
        self.folder_copy: tempfile.TemporaryDirectory[str] | None = None
        self.forks: WeakSet[Program] = WeakSet()
        self.is_closed = False

    @classmethod
    def roles_of(cls, roles: Sequence[str] = (), **settings: Any) -> tuple[str, ...]:
        return tuple(roles)

    @classmethod
    def tasks(
        cls, split: Split, tasks: str = "", test: str = "", held_out: Fraction = 0.1, **settings: Any
    ) -> Sequence[Task]:
        """The tasks of a split.

        tasks     a file of JSON objects, one a line
        test      another one for testing
        held_out  without it, the share of `tasks` that is held out
        """
        loaded = load_tasks(tasks, test, held_out, split)
        if settings.get("isolation") == "container":
            config = settings.get("container") or ContainerConfig()
            check_containers(config, [task.data.get("image", config.image) for task in loaded])
        return loaded

    @property
    def success(self) -> bool:
        """The program's or the reward function's own word on it; else whether the team reward is 1 or more."""
        return self.total_team_reward >= SUCCESS if self.outcome.success is None else self.outcome.success

    def observe(self) -> dict[str, Observation]:
        if self.state is None and not self.is_closed:
            server = self._host.server
            server.submit(self._set_state(*server.submit(self._advance()).result())).result()
        # With `turn_reward` a fork may be closed before its program has played on: it shows the decision before.
        state = self.previous_state if self.state is None else self.state
        observations = {}
        for role, call in self.acting_calls(state).items():
            request = add_constraints_to_prompt(call.call)
            conversation = find_conversation(self.history, role, call.call.messages)
            observations[role] = Observation(
                role, request.messages, request.tools, request.stop, request.max_tokens, conversation
            )
        return observations

    async def until_ready(self) -> None:
        if self.state is None:
            await self._set_state(*await asyncio.wrap_future(self._host.server.submit(self._advance())))

    async def step(self, actions: dict[str, str]) -> Reward:
        return await self._answer({role: Answer(Message("assistant", text)) for role, text in actions.items()})

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        answers = {}
        for role, sample in samples.items():
            message = sample.message or Message("assistant", sample.text)
            error = None if sample.failure is None else context_error(sample.failure.error)
            answers[role] = Answer(
                message,
                sample.finish,
                len(sample.prompt_ids),
                len(sample.token_ids),
                error,
                sample.token_ids,
                sample.logprobs,
            )
        await self.until_ready()
        calls = self.acting_calls(self.state)
        reward = await self._answer(answers)
        if not any(calls[role].call.tools for role in samples):
            return reward
        malformed = sum(bool(sample.call_error) for sample in samples.values())
        return rewards.add_rewards(reward, Reward(parts={"malformed_calls": float(malformed)}))

    def fork(self) -> Self:
        if self.copies_folder and self.folder_copy is None and (running := self.instance.running) is not None:
            self.folder_copy = tempfile.TemporaryDirectory(dir=self._host.scratch, ignore_cleanup_errors=True)
            running.copy_folder(Path(self.folder_copy.name))
        fork = copy.copy(self)
        fork.instance, fork.forks = self.instance.share(), WeakSet()
        self.forks.add(fork)
        return fork

    def close(self) -> None:
        self.is_closed = True
        for fork in self.forks:
            fork.close()
        self._host.server.loop.call_soon_threadsafe(self.instance.close)

    async def check_replay(self) -> None:
        """Start the program again with all answers so far. Raises ProgramDiverged if it then waits for other calls."""
        episode = replace(self.episode, replayable=True)
        starting = self._host.server.submit(self._host.start_instance(episode, self.history, self.state))
        instance, _ = await asyncio.wrap_future(starting)
        self._host.server.loop.call_soon_threadsafe(instance.close, "the check is over")

    async def _answer(self, answers: Mapping[str, Answer]) -> Reward:
        await self.until_ready()
        calls = self.acting_calls(self.state)
        new_answers = []
        waiting = self.state.calls if self.state is not None else ()
        for role, answer in answers.items():
            call = calls[role]
            conversation = find_conversation(self.history, role, call.call.messages)
            # The next answer is given when this one has been taken in.
            waiting = tuple(other for other in waiting if other.key != call.key)
            new_answers.append(
                AnsweredCall(call.call, call.occurrence, call.delay_s, role, answer, conversation, waiting)
            )
        malformed_roles = [
            answered.role
            for answered in new_answers
            if answered.call.schema is not None
            and answered.answer.error is None
            and not is_satisfied(answered.call, answered.answer.message)
        ]
        if malformed_roles and not self.turn_reward:
            return await self._reject_malformed(malformed_roles)
        self.retries_left = self.schema_retries
        self.new_answers = tuple(new_answers)
        self.previous_state, self.state = self.state, None
        if self.turn_reward:
            return await rewards.compute_turn_reward(self.task, self.new_answers, self.turn_reward)

        constrained = [answered for answered in self.new_answers if has_constraints(answered.call)]
        malformed = sum(not is_satisfied(answered.call, answered.answer.message) for answered in constrained)
        parts = {"malformed": float(malformed)} if constrained else {}
        await self.until_ready()
        return rewards.add_rewards(self.step_reward, Reward(parts=parts))

    async def _reject_malformed(self, roles: Sequence[str]) -> Reward:
        """Ask again for answers that break their JSON schema. Raises ProgramFailed once that was done often enough.

        Other endpoints force such answers into the schema, so programs do not expect anything else. Sampling is not
        forced here, as no grammar library is at hand: a break costs the role the margin of a failure.
        """
        warn_of_schemas()
        if not self.retries_left:
            failure = ProgramFailed(
                f"{roles[0]} broke the JSON schema of its answer {self.schema_retries + 1} times "
                "(settings.schema_retries)."
            )
            if self.failure_reward is None:
                failure.margin = self.failure_margin
                raise failure
            self._host.server.loop.call_soon_threadsafe(self.instance.close)
            self.previous_state, self.instance = self.state, SharedInstance()
            await self._set_state(None, ProgramState((), ProgramResult(error=str(failure))), Reward())
            return rewards.add_rewards(self.step_reward, Reward(parts={"malformed": float(len(roles))}))
        self.retries_left -= 1
        margin = self.failure_margin or 0.0
        return Reward(local=dict.fromkeys(roles, -margin), parts={"malformed": float(len(roles))})

    def acting_calls(self, state: ProgramState | None) -> dict[str, ProgramCall]:
        """Return the first waiting call of each role, as the program made it."""
        assert state is not None
        acting: dict[str, ProgramCall] = {}
        for call in state.calls:
            acting.setdefault(self.episode.roles.find(call.call) or call.call.role, call)
        return acting

    async def _advance(self) -> tuple[Instance | None, ProgramState, Reward]:
        """Give all answers to an instance, in the endpoint's loop. Returns it with its state and its posted reward.

        If a failure has a reward of its own, a program that was ended, as it hung or made too many calls, counts as one
        that failed by itself.
        """
        instance = self.instance.take()
        state = self.previous_state
        try:
            if instance is None:
                folder_copy = Path(self.folder_copy.name) if self.folder_copy else None
                instance, state = await self._host.start_instance(
                    self.episode, self.history, self.previous_state, folder_copy
                )
            instance.reward = Reward()
            if self.new_answers:
                state = await instance.answer(self.new_answers)
        except BaseException as error:
            if instance is not None:
                instance.close("it was not needed any more")
            if not isinstance(error, ProgramFailed) or isinstance(error, ProgramDiverged):
                raise
            if self.failure_reward is None:
                error.margin = self.failure_margin
                raise
            state = ProgramState((), ProgramResult(error=str(error)))
        assert state is not None
        return instance, state, instance.reward if instance is not None else Reward()

    async def _set_state(self, instance: Instance | None, state: ProgramState, reward: Reward) -> None:
        self.state, self.step_reward = state, reward
        self.history, self.new_answers = (*self.history, *self.new_answers), ()
        self.instance, self.folder_copy = SharedInstance(instance), None
        if state.result is not None:
            self._host.server.loop.call_soon_threadsafe(self.instance.close)
            has_posted = instance is not None and instance.posted_rewards > 0
            try:
                self.outcome = await rewards.compute_outcome(
                    self.task, state.result, self.history, self.reward, self.failure_reward, has_posted
                )
            except ProgramFailed as error:
                error.margin = self.failure_margin
                raise
            self.step_reward = rewards.add_rewards(reward, self.outcome.reward)
        self.total_team_reward += self.step_reward.team


@lru_cache
def warn_of_schemas() -> None:
    """Say once that structured outputs are checked, not forced."""
    sys.stderr.write(
        "warning: the program asks for structured outputs. Sampling is not forced into their JSON schema: an answer "
        "that breaks it is asked for again (settings.schema_retries), then the episode has failed. Describe the JSON "
        "in the prompt, and show an example.\n"
    )


def context_error(message: str) -> RequestError:
    """Return the error that OpenAI's API gives for a prompt that is too long: programs look for its code or its words,
    and shorten what they ask."""
    numbers = re.search(r"prompt has ([\d,]+) tokens.*context holds ([\d,]+)", message)
    words = f"{message} " if numbers is None else ""
    if numbers is not None:
        words = (
            f"This model's maximum context length is {numbers[2]} tokens. However, your messages resulted in "
            f"{numbers[1]} tokens. "
        )
    return RequestError(400, f"{words}Please reduce the length of the messages.", "messages", "context_length_exceeded")


def find_conversation(history: Sequence[AnsweredCall], role: str, messages: Sequence[Message]) -> str:
    """Return the name of the role's conversation that a call continues; a program may hold several with one model.

    That is the conversation of the latest call that the messages extend; else the latest with the same beginning (a
    program may rewrite its history); else a new one.
    """
    answered_calls = [answered for answered in history if answered.role == role]
    for answered in reversed(answered_calls):
        answered_messages = answered.call.messages
        length = len(answered_messages)
        is_longer = len(messages) > length and messages[length].role == "assistant"
        if is_longer and tuple(messages[:length]) == tuple(answered_messages):
            return answered.conversation
    for answered in reversed(answered_calls):
        if _beginning(messages) == _beginning(answered.call.messages):
            return answered.conversation
    count = len({answered.conversation for answered in answered_calls})
    return str(count) if count else ""


def _beginning(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages up to the first that is not the system's."""
    first = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    return messages[: first + 1]
