"""Instances of programs: one run of a program, replayed to where an episode is, and the host that starts them.

An instance that is started again receives the recorded answers of its calls, found by the content of a call and its
occurrence. Everything here runs in the endpoint's event loop.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cadre.errors import ContractError, EngineError, ProgramFailed
from cadre.plugins import install_command
from cadre.types import Message, Reward, Task
from cadre_programs import inside
from cadre_programs.calls import AnsweredCall, ModelCall, ProgramCall, canonical_json
from cadre_programs.processes import (
    IMPORT_KEY,
    ForkServer,
    ProcessTable,
    ProgramContainer,
    ProgramDiverged,
    ProgramProcess,
    ProgramResult,
    RunningProgram,
    StartOrder,
    Stuck,
    find_process,
    is_asleep,
    start_fork_server,
)
from cadre_programs.rewards import add_rewards
from cadre_programs.roles import RoleRules
from cadre_programs.sessions import PendingCall, Session, Sessions
from cadre_programs.settings import InstanceLimits, LaunchSpec

if TYPE_CHECKING:
    from cadre_programs.server import Server

# Passes of the event loop that take in everything that was sent before.
LOOP_PASSES = 8
# Seconds between two looks whether the program is blocked: at first, later, and while no call waits.
SHORT_PAUSE_S, LONG_PAUSE_S, IDLE_PAUSE_S = 0.001, 0.02, 0.25
# Seconds that a blocked program is given to make a recorded call: another agent waits, or one of the same role does. In
# addition, so many times what the call took when it was recorded, as tools may take longer.
LATE_S, REPLACED_S, DELAY_FACTOR = 10.0, 2.0, 3.0
# Instances that are started at once; more would only wait for each other.
CONCURRENT_STARTS = 16


@dataclass(frozen=True)
class ProgramState:
    """The calls that a blocked program waits for, in an order that does not depend on timing; or its result."""

    calls: tuple[ProgramCall, ...]
    result: ProgramResult | None = None


class Instance:
    """Owns a session and the program that runs in it, from its construction to `close`."""

    def __init__(self, sessions: Sessions, roles: RoleRules, limits: InstanceLimits) -> None:
        self._sessions, self._roles, self._limits = sessions, roles, limits
        self._waiting: dict[tuple[str, int], PendingCall] = {}
        self._arrivals: dict[tuple[str, int], float] = {}
        self._sent: list[PendingCall] = []
        self._changed = asyncio.Event()
        self._call_count = 0
        self._answered_at = self._blocked_s = 0.0
        self._equal_answers: dict[str, set[str]] = {}
        self._deadline: asyncio.Timeout | None = None
        self.reward, self.posted_rewards = Reward(), 0
        self.session = sessions.add(Session(roles.models, self._receive_call, self._receive_reward, accepts=roles.find))
        self.running: RunningProgram | None = None

    def use_folder(self, root: Path) -> None:
        """Give the program's folder one name in its calls. To be called before it starts, as it may call at once."""
        self.session.folder = str(root)

    def attach(self, running: RunningProgram) -> None:
        """Take the program that was started."""
        self.running = running
        self._answered_at = time.monotonic()
        running.ended.add_done_callback(lambda ended: self._changed.set())

    async def wait_until_blocked(self) -> ProgramState:
        """Return the state of the program once it has ended, or all its threads are blocked and a call waits. Raises
        Stuck, and closes the instance, if no new call came for `limits.seconds`."""
        await self._wait(lambda is_blocked: is_blocked and bool(self._waiting_calls()))
        assert self.running is not None
        if self.running.ended.done():
            return ProgramState((), self.running.ended.result())
        return ProgramState(tuple(self._waiting_calls()))

    async def answer(self, answers: Sequence[AnsweredCall]) -> ProgramState:
        """Answer waiting calls one after the other and return the state after that.

        The program takes an answer in before it gets the next, so that a program that goes by which of its agents
        answers first sees the order of the record. Raises ProgramFailed if the program was ended.
        """
        state = ProgramState(())
        for answered in answers:
            if self.session.end_error is not None:
                raise ProgramFailed(self.session.end_error.message)
            self._send(self._waiting.pop(self._find_waiting(answered)), answered)
            state = await self.wait_until_blocked()
            if state.result is not None:
                break
        return state

    async def replay(self, history: Sequence[AnsweredCall], expected: ProgramState | None) -> ProgramState:
        """Give the recorded answers in their order, and return the state after that.

        An answer is given once all calls wait that waited when it was recorded. What comes beside is early, as where a
        tool took less time: it belongs to a later state. Raises ProgramDiverged if a recorded call does not come.
        """
        for answered in history:
            key = await self._wait_for_call(answered)
            # Calls that waited beside it are waited for too, as long as they took; they may be another agent's, late.
            if answered.waiting:
                await self._wait_for_neighbours(answered)
            self._send(self._waiting.pop(key), answered)
        if expected is None:
            return await self.wait_until_blocked()
        for call in expected.calls:
            await self._wait_for_call(call)
        if expected.calls:
            return expected
        state = await self.wait_until_blocked()
        if state.result is None:
            raise_diverged([], state.calls)
        return state

    async def _wait_for_neighbours(self, answered: AnsweredCall) -> None:
        """Wait until the calls that waited beside a recorded one wait again, or are too late."""

        def have_come(is_blocked: bool) -> bool:
            return is_blocked and (
                all(self._match(call) is not None for call in answered.waiting)
                or self._has_waited(LATE_S, max(call.delay_s for call in answered.waiting))
            )

        await self._wait(have_come)

    async def _wait_for_call(self, call: ProgramCall) -> tuple[str, int]:
        """Return the key of the waiting call that a recorded one is now. Raises ProgramDiverged if none comes."""

        def has_come(is_blocked: bool) -> bool:
            if call.key in self._waiting:
                # A single call that came after the last answer needs no look at the threads.
                is_next = self._arrivals[call.key] > self._answered_at and len(self._waiting) == 1
                return is_blocked or is_next
            if not is_blocked:
                return False
            if self._match(call) is not None:
                return True
            waiting = self._waiting_calls()
            if not waiting:
                return False  # it works, or sleeps: `limits.seconds` ends that
            # A call of the same role in its place is most likely what it asks for now.
            is_replaced = any(self._role(other) == self._role(call) for other in waiting)
            return self._has_waited(REPLACED_S if is_replaced else LATE_S, call.delay_s)

        await self._wait(has_come)
        key = call.key if call.key in self._waiting else self._match(call)
        if key is None:
            raise_diverged([call], self._waiting_calls())
        return key

    def _has_waited(self, seconds: float, delay_s: float) -> bool:
        """Return True if it was blocked for so long and several times what a call took, animations left out."""
        return self._blocked_s > seconds + DELAY_FACTOR * delay_s

    def _role(self, call: ProgramCall) -> str:
        return self._roles.find(call.call) or call.call.role

    async def _wait(self, has_happened: Callable[[bool], bool]) -> None:
        """Wait until the program has ended, or `has_happened(is_blocked)`."""
        self._blocked_s = 0.0
        try:
            async with asyncio.timeout(self._limits.seconds) as self._deadline:
                pause, looked_at = SHORT_PAUSE_S, time.monotonic()
                while not self._has_ended():
                    if self._waiting and has_happened(False):
                        break
                    is_blocked = bool(self._waiting) and await self._is_blocked()
                    elapsed, looked_at = time.monotonic() - looked_at, time.monotonic()
                    self._blocked_s += elapsed if is_blocked else 0.0
                    if is_blocked and has_happened(True):
                        break
                    if not self._waiting:
                        pause = IDLE_PAUSE_S
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(pause):
                            await self._changed.wait()
                        pause, self._blocked_s = SHORT_PAUSE_S, 0.0
                    except TimeoutError:
                        pass
                    pause = min(LONG_PAUSE_S, 2 * pause)
        except TimeoutError:
            self.close("it asked for nothing for too long")
            seconds = f"{self._limits.seconds:g} seconds"
            raise Stuck(
                f"The program neither asked for anything nor ended within {seconds} (settings.limits.seconds)."
            ) from None
        finally:
            self._deadline = None

    def _find_waiting(self, call: ProgramCall) -> tuple[str, int]:
        """Return the key of a waiting call.

        A program that cannot be replayed may wait for another call: then it is the first of the same role. Raises
        ProgramDiverged if no call of that role waits.
        """
        key = self._match(call)
        if key is not None:
            return key
        waiting = self._waiting_calls()
        for candidate in waiting:
            if self._role(candidate) == self._role(call):
                return candidate.key
        raise_diverged([call], waiting)

    def _match(self, call: ProgramCall) -> tuple[str, int] | None:
        """Return the key of the waiting call that is this one: an equal one, or one that differs in the order of
        answers to equal calls.

        Nothing tells equal calls apart that are made at once, so which of them gets which answer is a matter of the
        moment, and what is written from their answers has these in another order.
        """
        if call.key in self._waiting:
            return call.key
        answers = {text for texts in self._equal_answers.values() if len(texts) > 1 for text in texts if text}
        if not answers:
            return None
        form = unordered_form(call.call, answers)
        for candidate in self._waiting_calls():
            if unordered_form(candidate.call, answers) == form:
                return candidate.key
        return None

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
            self.close(f"it made more than {self._limits.calls} calls (settings.limits.calls)")
            assert self.session.end_error is not None
            raise self.session.end_error
        key = ProgramCall(pending.call, pending.occurrence).key
        self._waiting[key] = pending
        self._arrivals[key] = time.monotonic()

    def _receive_reward(self, reward: Reward) -> None:
        self.reward, self.posted_rewards = add_rewards(self.reward, reward), self.posted_rewards + 1

    def _send(self, pending: PendingCall, answered: AnsweredCall) -> None:
        answer, self._answered_at = answered.answer, time.monotonic()
        if answer.error is not None:
            for other in pending.request:  # the request gets the error, so its other completions are not waited for
                self._waiting.pop(ProgramCall(other.call, other.occurrence).key, None)
                if not other.answer.done():
                    other.answer.set_exception(answer.error)
            return
        pending.answer.set_result(answer.with_tool_call_ids(pending.id))
        self._sent.append(pending)
        texts = self._equal_answers.setdefault(answered.call.content, set())
        message = answer.message
        texts.update(
            [message.content, *(call.arguments for call in message.tool_calls), *filter(None, [message.thinking])]
        )

    def _waiting_calls(self) -> list[ProgramCall]:
        """Return the waiting calls whose client is still there, by role and content."""
        calls = (
            ProgramCall(pending.call, pending.occurrence, max(0.0, self._arrivals[key] - self._answered_at))
            for key, pending in self._waiting.items()
            if not pending.is_abandoned
        )
        return sorted(calls, key=lambda call: (self._roles.position(call.call), *call.key))

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
        if any(pending.is_being_delivered for pending in self._sent):
            return False
        self._sent = [pending for pending in self._sent if not pending.is_delivered and not pending.is_abandoned]
        threads, call_count = self.running.threads(), self._call_count
        if not is_asleep(threads):
            return False
        for _ in range(LOOP_PASSES):
            await asyncio.sleep(0)
        is_unchanged = self._call_count == call_count and self.running.threads() == threads
        return is_unchanged and not self.running.ended.done()


def unordered_form(call: ModelCall, answers: Collection[str]) -> tuple[str, list[str]]:
    """Return a call with these texts blanked, and the texts in sorted order: equal for calls that differ in the order
    of the texts alone."""
    pattern = re.compile("|".join(re.escape(json.dumps(text)[1:-1]) for text in sorted(answers, key=len, reverse=True)))
    fields = [
        [message.role, message.content, [(c.name, c.arguments) for c in message.tool_calls], message.thinking]
        for message in call.messages
    ]
    options = [call.role, [tool.name for tool in call.tools], call.choice, call.schema, call.stop, call.max_tokens]
    text = json.dumps(fields)
    return canonical_json(options) + pattern.sub("\0", text), sorted(pattern.findall(text))


# What differs from run to run in the output of programs, each looked for in what the ones before leave.
KINDS = {
    "names in /tmp": r"/tmp/[\w./-]+|\btmp[\w.-]{6,}",
    "dates and times": r"(?<!\d)(?:\d{4}-\d\d-\d\d|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?)(?!\d)",
    "ids and addresses": r"\b0x[0-9a-f]+\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=\w*\d)\w{7,}\b",
    "numbers": r"\d+(?:\.\d+)?",
}


def raise_diverged(missing: Sequence[ProgramCall], new: Sequence[ProgramCall]) -> NoReturn:
    """Raise ProgramDiverged with the first missing call, and the new one that is most like it, as a diff."""
    first_call = describe_call(missing[0]) if missing else ["(nothing)"]
    candidates = [describe_call(call) for call in new] or [["(nothing)"]]
    second_call = max(candidates, key=lambda lines: difflib.SequenceMatcher(None, first_call, lines).ratio())
    changes = difflib.unified_diff(first_call, second_call, "the first time", "the second time", lineterm="", n=1)
    lines = (line if len(line) <= 600 else f"{line[:300]} ... {line[-295:]}" for line in list(changes)[:40])
    difference = "\n".join(lines)
    if not difference and missing and new:
        difference = f"The calls are equal; it is made {missing[0].occurrence + 1} times the first time only."
    kinds = f" What differs: {', '.join(found)}." if (found := name_kinds(first_call, second_call)) else ""
    raise ProgramDiverged(f"The program, started again, asks for something else.{kinds}\n{difference}")


def name_kinds(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return the kinds of what differs between two lists of lines; empty if something differs that is of none."""
    if sorted(first) == sorted(second):
        return ["the order of lines"] if list(first) != list(second) else []
    texts, kinds = ["\n".join(first), "\n".join(second)], []
    for kind, pattern in KINDS.items():
        mine, other = (re.findall(pattern, text) for text in texts)
        kinds += [kind] if mine != other else []
        texts = [re.sub(pattern, "", text) for text in texts]
    return kinds if texts[0] == texts[1] else []


def describe_call(call: ProgramCall) -> list[str]:
    """Return a call as lines of text."""

    def as_text(message: Message) -> str:
        tool_calls = [f"{tool_call.name}({tool_call.arguments}) {tool_call.id}" for tool_call in message.tool_calls]
        answered = [f"(of {message.tool_call_id})"] if message.tool_call_id else []
        images = [f"(image {image.width}x{image.height} {image.digest[:16]})" for image in message.images]
        thinking = [f"(thinking) {message.thinking}"] if message.thinking else []
        return "\n".join(filter(None, [*answered, *images, *thinking, message.content, *tool_calls]))

    request = call.call
    lines = [f"model: {request.role}"]
    for message in request.messages:
        lines += [f"{message.role}: {line}" for line in as_text(message).splitlines() or [""]]
    options: dict[str, Any] = {
        "choice": request.choice,
        "schema": request.schema,
        "stop": request.stop,
        "max_tokens": request.max_tokens,
    }
    tools = [f"tool: {tool.name} {tool.description} {canonical_json(tool.parameters)}" for tool in request.tools]
    return lines + tools + [f"{name}: {value}" for name, value in options.items() if value]


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

    roles       the role of each call that the program may make
    memo        the folder of the results that `cadre_program.memo` keeps
    replayable  whether an instance that receives the same answers makes the same calls
    embeddings  the URL that requests for embeddings are passed on to
    masks       what models read in place of what matches a pattern
    """

    task: Task
    roles: RoleRules
    launch: LaunchSpec
    memo: Path
    replayable: bool
    embeddings: str = ""
    masks: Mapping[re.Pattern[str], str] = field(default_factory=dict)


@dataclass(eq=False)
class Host:
    """The endpoint of this process, and the fork servers that start programs for it."""

    server: Server
    folder: tempfile.TemporaryDirectory[str]
    process_table: ProcessTable = field(default_factory=ProcessTable)
    fork_servers: dict[LaunchSpec, asyncio.Task[ForkServer]] = field(default_factory=dict)
    running: dict[str, ProgramProcess] = field(default_factory=dict)  # by the key of the session
    start_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_STARTS))

    def __post_init__(self) -> None:
        self.server.sessions.shared_key, self.server.sessions.locate = IMPORT_KEY, self.locate

    def locate(self, port: int) -> str | None:
        """Return the key of the running program that has the connection from this port."""
        key_of = {
            pid: key for key, program in self.running.items() for pid in self.process_table.process_tree(program.pid)
        }
        pid = find_process(port, int(self.server.url.rpartition(":")[2]), key_of)
        return None if pid is None else key_of[pid]

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
        """Start an instance, give it the answers of the history, and return it with its state. An instance that does
        not reach the expected state is started once more. Raises ProgramDiverged if that fails."""
        if history and not episode.replayable:
            raise ContractError(
                "settings.replayable: false, and the shape of the trees branches where answers have been given, which "
                "means to start the program again with them; expected a shape that plays episodes side by side. Set "
                "algorithm to one that is independent, such as grpo."
            )
        async with self.start_slots:
            try:
                return await self._start_once(episode, history, expected, folder_copy)
            except ProgramDiverged:
                return await self._start_once(episode, history, expected, folder_copy)

    async def _start_once(
        self,
        episode: EpisodeSpec,
        history: Sequence[AnsweredCall],
        expected: ProgramState | None,
        folder_copy: Path | None,
    ) -> tuple[Instance, ProgramState]:
        launch = episode.launch
        instance = Instance(self.server.sessions, episode.roles, launch.limits)
        instance.session.embeddings, instance.session.masks = episode.embeddings, episode.masks
        try:
            task = {"id": episode.task.id, **episode.task.data}
            url, key = self.server.url, instance.session.key
            running: RunningProgram
            if launch.isolation == "container":
                root = Path(tempfile.mkdtemp(dir=self.scratch))
                running = ProgramContainer(self.process_table, launch, root)
                await running.start(StartOrder(task, url, key, episode.memo, launch.limits, folder_copy))
            else:
                fork_server = await self._fork_server(launch)
                running = await fork_server.start(
                    StartOrder(task, url, key, episode.memo, launch.limits, folder_copy, instance.use_folder)
                )
                self.running[key] = running
                running.ended.add_done_callback(lambda ended: self.running.pop(key, None))
            instance.attach(running)
            state = await instance.replay(history, expected if episode.replayable else None)
        except BaseException:
            instance.close("it was not needed any more")
            raise
        return instance, state

    async def _fork_server(self, launch: LaunchSpec) -> ForkServer:
        """Return the launch's fork server; start one if there is none, or it could not be started, or has ended.
        Launches that differ in their limits alone share one: each instance is started with its own limits."""
        launch = replace(launch, limits=InstanceLimits())
        starting = self.fork_servers.get(launch)
        if starting is None or (
            starting.done()
            and (starting.cancelled() or starting.exception() is not None or starting.result().has_ended)
        ):
            work = start_fork_server(launch, self.process_table, self.scratch, self.server.url)
            starting = self.fork_servers[launch] = asyncio.create_task(work)
        # Others wait for the same start, so one caller's end does not cancel it.
        return await asyncio.shield(starting)


def start_server(port: int = 0) -> Server:
    """Start an endpoint. Raises EngineError if the port is taken, or the packages that it needs are not installed."""
    try:
        from cadre_programs.server import Server
    except ImportError as error:
        raise EngineError(f"The endpoint for programs needs {error.name}. Run: {install_command('programs')}") from None
    return Server(port)


@lru_cache
def shared_host() -> Host:
    """Return the one host of this process. Its folder is removed with the process."""
    return Host(start_server(), tempfile.TemporaryDirectory(prefix=inside.SCRATCH, ignore_cleanup_errors=True))
