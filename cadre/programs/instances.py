"""Instances of programs: one run of a program, replayed to where an episode is, and the host that starts them.

An instance that is started again receives the recorded answers of its calls, found by the content of a call and its
occurrence. Everything here runs in the endpoint's event loop.
"""

from __future__ import annotations

import asyncio
import difflib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cadre.errors import ContractError, EngineError
from cadre.programs import inside
from cadre.programs.calls import Answer, AnsweredCall, ProgramCall
from cadre.programs.processes import (
    Diverged,
    ForkServer,
    ProcessTable,
    ProgramFailed,
    ProgramResult,
    ProgramThread,
    RunningProgram,
    StartOrder,
    Stuck,
    is_asleep,
    load_threaded_function,
    start_fork_server,
)
from cadre.programs.rewards import add_rewards
from cadre.programs.sessions import PendingCall, Session, Sessions
from cadre.programs.settings import InstanceLimits, LaunchSpec
from cadre.types import Message, Reward, Task

if TYPE_CHECKING:
    from cadre.programs.server import Server

# Passes of the event loop that take in everything that was sent before.
LOOP_PASSES = 8
# Seconds between two looks whether the program is blocked: at first, later, and while no call waits.
SHORT_PAUSE_S, LONG_PAUSE_S, IDLE_PAUSE_S = 0.001, 0.02, 0.25
# Instances that are started at once; more would only wait for each other.
CONCURRENT_STARTS = 16


@dataclass(frozen=True)
class ProgramState:
    """The calls that a blocked program waits for, in an order that does not depend on timing; or its result."""

    calls: tuple[ProgramCall, ...]
    result: ProgramResult | None = None


class Instance:
    """Owns a session and the program that runs in it, from its construction to `close`.

    history   calls whose answers it receives again
    """

    def __init__(
        self, sessions: Sessions, roles: Mapping[str, str], limits: InstanceLimits, history: Sequence[AnsweredCall]
    ) -> None:
        self._sessions, self._models, self._limits = sessions, list(roles), limits
        self._recorded = {answered.key: answered for answered in history}
        self._waiting: dict[tuple[str, int], PendingCall] = {}
        self._undelivered: list[PendingCall] = []
        self._changed = asyncio.Event()
        self._call_count = 0
        self._deadline: asyncio.Timeout | None = None
        self.reward, self.posted_rewards = Reward(), 0
        self.session = sessions.add(Session(self._models, self._receive_call, self._receive_reward))
        self.running: RunningProgram | None = None

    def attach(self, running: RunningProgram) -> None:
        """Take the program that was started."""
        self.running = running
        running.ended.add_done_callback(lambda ended: self._changed.set())

    async def wait_until_blocked(self) -> ProgramState:
        """Return the state of the program once it has ended, or all its threads are blocked and a call waits.

        Raises Stuck, and closes the instance, if no new call came for `limits.seconds`.
        """
        try:
            async with asyncio.timeout(self._limits.seconds) as self._deadline:
                pause = SHORT_PAUSE_S
                while not self._has_ended():
                    if self._waiting_calls() and await self._is_blocked():
                        break
                    if not self._waiting:
                        pause = IDLE_PAUSE_S
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(pause):
                            await self._changed.wait()
                        pause = SHORT_PAUSE_S
                    except TimeoutError:
                        pass
                    pause = min(LONG_PAUSE_S, 2 * pause)
        except TimeoutError:
            self.close("it asked for nothing for too long")
            seconds = f"{self._limits.seconds:g} seconds"
            raise Stuck(f"The program neither asked for anything nor ended within {seconds}.") from None
        finally:
            self._deadline = None
        assert self.running is not None
        if self.running.ended.done():
            return ProgramState((), self.running.ended.result())
        return ProgramState(tuple(self._waiting_calls()))

    async def answer(self, answers: Sequence[AnsweredCall]) -> ProgramState:
        """Answer waiting calls and return the state after that. Raises ProgramFailed if the program was ended."""
        if self.session.end_error is not None:
            raise ProgramFailed(self.session.end_error.message)
        for answered in answers:
            self._send(self._waiting.pop(self._find_waiting(answered)), answered.answer)
        return await self.wait_until_blocked()

    def _find_waiting(self, call: ProgramCall) -> tuple[str, int]:
        """Return the key of a waiting call.

        A program that cannot be replayed may wait for another call: then it is the first by the same model. Raises
        Diverged if no call for that model waits.
        """
        if call.key in self._waiting:
            return call.key
        waiting = self._waiting_calls()
        for candidate in waiting:
            if candidate.call.role == call.call.role:
                return candidate.key
        raise_diverged([call], waiting)

    def check_state(self, expected: ProgramState) -> None:
        """Raise Diverged if the blocked program waits for other calls, or has not made all recorded ones."""
        expected_keys = {call.key for call in expected.calls}
        new = [call for call in self._waiting_calls() if call.key not in expected_keys]
        missing: list[ProgramCall] = [*self._recorded.values()]
        missing += [call for call in expected.calls if call.key not in self._waiting]
        if missing or new:
            raise_diverged(missing, new)

    def close(self, reason: str) -> None:
        """Answer its calls with an error and end the program."""
        self._sessions.remove(self.session, reason)
        if self.running is not None:
            self.running.kill()

    def _receive_call(self, pending: PendingCall) -> None:
        self._changed.set()
        self._call_count += 1
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._limits.seconds)
        if self._call_count > self._limits.calls:
            self.close(f"it made more than {self._limits.calls} calls")
            assert self.session.end_error is not None
            raise self.session.end_error
        call = ProgramCall(pending.call, pending.occurrence)
        recorded = self._recorded.pop(call.key, None)
        if recorded is None:
            self._waiting[call.key] = pending
        else:
            self._send(pending, recorded.answer)

    def _receive_reward(self, reward: Reward) -> None:
        self.reward, self.posted_rewards = add_rewards(self.reward, reward), self.posted_rewards + 1

    def _send(self, pending: PendingCall, answer: Answer) -> None:
        pending.answer.set_result(answer.with_tool_call_ids(pending.id))
        self._undelivered.append(pending)

    def _waiting_calls(self) -> list[ProgramCall]:
        """Return the waiting calls whose client is still there, by role and content."""
        calls = (
            ProgramCall(pending.call, pending.occurrence)
            for pending in self._waiting.values()
            if not pending.is_abandoned
        )
        return sorted(calls, key=lambda call: (self._models.index(call.call.role), *call.key))

    def _has_ended(self) -> bool:
        assert self.running is not None
        if self.session.end_error is not None:
            raise ProgramFailed(self.session.end_error.message)
        if self.running.processes() > self._limits.processes:
            self.close(f"it had more than {self._limits.processes} processes")
        return self.running.ended.done()

    async def _is_blocked(self) -> bool:
        """Return True if every thread sleeps, and does nothing while all that was sent is taken in."""
        assert self.running is not None
        self._undelivered = [
            pending for pending in self._undelivered if not pending.is_delivered and not pending.is_abandoned
        ]
        if self._undelivered:
            return False
        threads, call_count = self.running.threads(), self._call_count
        if not is_asleep(threads):
            return False
        for _ in range(LOOP_PASSES):
            await asyncio.sleep(0)
        is_unchanged = self._call_count == call_count and self.running.threads() == threads
        return is_unchanged and not self.running.ended.done()


def raise_diverged(missing: Sequence[ProgramCall], new: Sequence[ProgramCall]) -> NoReturn:
    """Raise Diverged with the first call of each, line by line as a diff."""
    first_call = describe_call(missing[0]) if missing else ["(nothing)"]
    second_call = describe_call(new[0]) if new else ["(nothing)"]
    changes = difflib.unified_diff(first_call, second_call, "the first time", "the second time", lineterm="", n=1)
    difference = "\n".join(line[:300] for line in list(changes)[:40])
    raise Diverged(f"The program, started again, asks for something else.\n{difference}")


def describe_call(call: ProgramCall) -> list[str]:
    """Return a call as lines of text."""

    def as_text(message: Message) -> str:
        tool_calls = [f"{tool_call.name}({tool_call.arguments})" for tool_call in message.tool_calls]
        return "\n".join(filter(None, [message.content, *tool_calls]))

    request = call.call
    lines = [f"model: {request.role}"]
    for message in request.messages:
        lines += [f"{message.role}: {line}" for line in as_text(message).splitlines() or [""]]
    options: dict[str, Any] = {
        "tools": [tool.name for tool in request.tools],
        "choice": request.choice,
        "schema": request.schema,
        "stop": request.stop,
        "max_tokens": request.max_tokens,
    }
    return lines + [f"{name}: {value}" for name, value in options.items() if value]


class SharedInstance:
    """The live instance of an environment's state, shared with the forks of that state.

    The fork that is played first takes the instance; the others start new ones. The state that has made the instance
    closes it.
    """

    def __init__(self, instance: Instance | None = None, cell: list[Instance] | None = None) -> None:
        self._is_owner = cell is None
        self._cell = cell if cell is not None else [instance] if instance else []

    @property
    def running(self) -> RunningProgram | None:
        """The program, None if the instance was taken."""
        return self._cell[0].running if self._cell else None

    def share(self) -> SharedInstance:
        """Return a fork's hold on the same instance."""
        return SharedInstance(cell=self._cell)

    def take(self) -> Instance | None:
        """Return the instance to the first caller, None to all others."""
        return self._cell.pop() if self._cell else None

    def close(self) -> None:
        """End an instance that nobody took, if this state owns it."""
        if self._is_owner and (instance := self.take()) is not None:
            instance.close("its episode is over")


@dataclass(frozen=True)
class EpisodeSpec:
    """The properties that all instances of one episode share.

    role_of     the role of each model that the program may call
    memo        the folder of the results that `cadre_program.memo` keeps
    replayable  whether an instance that receives the same answers makes the same calls
    """

    task: Task
    role_of: Mapping[str, str]
    launch: LaunchSpec
    memo: Path
    replayable: bool


@dataclass(eq=False)
class Host:
    """The endpoint of this process, and the fork servers that start programs for it."""

    server: Server
    folder: tempfile.TemporaryDirectory[str]
    process_table: ProcessTable = field(default_factory=ProcessTable)
    fork_servers: dict[LaunchSpec, asyncio.Task[ForkServer]] = field(default_factory=dict)
    start_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_STARTS))

    @property
    def scratch(self) -> Path:
        """The folder that holds the folders of all instances; removed with this process."""
        return Path(self.folder.name)

    async def start_instance(
        self,
        episode: EpisodeSpec,
        history: Sequence[AnsweredCall],
        expected: ProgramState | None,
        folder_copy: Path | None = None,
    ) -> tuple[Instance, ProgramState]:
        """Start an instance, give it the answers of the history, and return it with its state.

        An instance that does not reach the expected state is started once more. Raises Diverged if that fails too.
        """
        if history and not episode.replayable:
            raise ContractError(
                "settings.replayable: false, and the shape of the trees branches where answers have been given, which "
                "means to start the program again with them; expected a shape that plays episodes side by side. Set "
                "algorithm to one that is independent, such as grpo."
            )
        async with self.start_slots:
            try:
                return await self._start_once(episode, history, expected, folder_copy)
            except Diverged:
                return await self._start_once(episode, history, expected, folder_copy)

    async def _start_once(
        self,
        episode: EpisodeSpec,
        history: Sequence[AnsweredCall],
        expected: ProgramState | None,
        folder_copy: Path | None,
    ) -> tuple[Instance, ProgramState]:
        launch = episode.launch
        instance = Instance(self.server.sessions, episode.role_of, launch.limits, history)
        try:
            task = {"id": episode.task.id, **episode.task.data}
            url, key = f"{self.server.url}/v1", instance.session.key
            running: RunningProgram
            if launch.isolation == "thread":
                folder = Path(tempfile.mkdtemp(dir=self.scratch))
                running = ProgramThread(load_threaded_function(launch.words[0]), task, url, key, folder)
            else:
                fork_server = await self._fork_server(launch)
                running = await fork_server.start(StartOrder(task, url, key, episode.memo, folder_copy))
            instance.attach(running)
            state = await instance.wait_until_blocked()
            if expected is not None and episode.replayable:
                instance.check_state(expected)
        except BaseException:
            instance.close("it was not needed any more")
            raise
        return instance, state

    async def _fork_server(self, launch: LaunchSpec) -> ForkServer:
        """Return the launch's fork server; start one if there is none, or it could not be started, or has ended."""
        starting = self.fork_servers.get(launch)
        if starting is None or (
            starting.done()
            and (starting.cancelled() or starting.exception() is not None or starting.result().has_ended)
        ):
            work = start_fork_server(launch, self.process_table, self.scratch)
            starting = self.fork_servers[launch] = asyncio.create_task(work)
        # Others wait for the same start, so one caller's end does not cancel it.
        return await asyncio.shield(starting)


def start_server(port: int = 0) -> Server:
    """Start an endpoint. Raises EngineError if the port is taken, or the packages that it needs are not installed."""
    try:
        from cadre.programs.server import Server
    except ImportError as error:
        raise EngineError(
            f"The endpoint for programs needs {error.name}, which is not installed; expected the extra `programs`. "
            "Run: pip install cadre-rl[programs]."
        ) from None
    return Server(port)


@lru_cache
def shared_host() -> Host:
    """Return the one host of this process. Its folder is removed with the process."""
    return Host(start_server(), tempfile.TemporaryDirectory(prefix=inside.SCRATCH, ignore_cleanup_errors=True))
