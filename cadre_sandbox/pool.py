"""The front: `Sandbox` takes programs from any event loop and gives each to a free warm parent."""

import asyncio
import atexit
import hashlib
import json
import os
import re
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from cadre_sandbox import levels
from cadre_sandbox.errors import SandboxError, SandboxUnavailable
from cadre_sandbox.records import DEFAULT_LIMITS, GroupMode, LevelName, Limits, Mode, Result
from cadre_sandbox.results import result_of
from cadre_sandbox.slots import Slot, Slots
from cadre_sandbox.worker import Ending, Setup, Worker, WorkerDied

RUNS_PER_WORKER = 1000
LONE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
PAUSES_S = (0.0, 0.1, 0.5)  # before a run whose warm parent died is tried again, on a new one

_open: "weakref.WeakSet[Sandbox]" = weakref.WeakSet()


class Sandbox:
    """Runs untrusted programs. Owned by whoever makes it; lives until `close`, which leaves no process behind.

    level   the strictest of `confined` and `isolated` that holds here (`auto`), or one by name; SandboxError when the
            machine cannot give it. Read `.level` and `.layers` for what it is.
    mode    `pool`: warm parents, one a core, each good for a thousand runs; `cold`: a new interpreter for each run
    workers how many programs run at the same time; one a core by default
    cgroup  `on`, a control group for each warm parent's children, or SandboxError; `auto`, where one is delegated to us
            and holds; `off`. Read `.groups` for which it is, or why there is none.
    executables  files that its jobs may be (`execute`); no program of another sandbox may execute any
    queued  makes a context manager that is entered while a program waits for a free slot
    """

    def __init__(
        self,
        level: LevelName = "auto",
        mode: Mode = "pool",
        workers: int | None = None,
        packages: tuple[str, ...] = (),
        preload: tuple[str, ...] = (),
        cgroup: GroupMode = "auto",
        executables: tuple[str, ...] = (),
        queued: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.level = levels.choose(level)
        self.cgroup = cgroup
        self.groups = levels.choose_groups(cgroup)
        self.mode = mode
        self.setup = Setup(
            self.level,
            mode,
            packages,
            preload,
            self.groups.found,
            executables=tuple(map(os.path.realpath, executables)),
        )
        self.layers = self.setup.layers
        self.slots = self._new_slots(workers or os.cpu_count() or 1)
        self.queued = queued
        self.owner = os.getpid()
        _open.add(self)

    @staticmethod
    def _new_slots(count: int) -> Slots:
        slots = Slots([Slot() for _ in range(count)])
        slots.idle.extend(slots.every)
        return slots

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Result:
        """Run Python source text as a script. Never raises for what the program does; SandboxUnavailable when it could
        not be run.
        """
        ending = (await self.submit([{"kind": "program", "program": program}], stdin, limits))[0]
        return result_of(ending, limits)

    async def execute(
        self, command: list[str], stdin: str = "", beside: str = "", limits: Limits = DEFAULT_LIMITS
    ) -> Result:
        """Run one of `executables` behind the layers of this sandbox: `command[0]` is its path, and what it can read as
        /dev/fd/3 is `beside`. Otherwise as `run`."""
        command = [os.path.realpath(command[0]), *command[1:]]
        ending = (await self.submit([{"kind": "tool", "command": command, "beside": beside}], stdin, limits))[0]
        return result_of(ending, limits)

    async def submit(self, jobs: list[dict[str, Any]], stdin: str, limits: Limits) -> list[Ending]:
        """Run one job, or two that talk to each other, when a slot is free. For the checkers; programs use `run`.

        Raises SandboxUnavailable when they could not be run, which says nothing about them.
        """
        if limits.folder_mb and self.level != "isolated":
            raise SandboxError(
                f"a writable folder is a tmpfs of limited size, which only level 'isolated' can give; this sandbox is "
                f"{self.level!r}. Leave folder_mb at 0, or run where `cadre check sandbox` lists 'isolated'."
            )
        self._renew_after_fork()
        seeded = [{**job, "seed": seed_of(job, stdin)} for job in jobs]
        with self.queued():
            slot = await self.slots.acquire()
        try:
            return await self._confirmed(slot, seeded, bytes_of(stdin), limits)
        finally:
            self.slots.release(slot)

    async def _confirmed(self, slot: Slot, jobs: list[dict[str, Any]], stdin: bytes, limits: Limits) -> list[Ending]:
        """Run the jobs, and once more where the clock ended them, which counts then: what waits for ever waits again,
        and what a machine without a free core or a free disk kept waiting seldom does.
        """
        endings = await self._attempt(slot, jobs, stdin, limits)
        if any(ending.killed == "wall" for ending in endings):
            endings = await self._attempt(slot, jobs, stdin, limits)
        return endings

    async def _attempt(self, slot: Slot, jobs: list[dict[str, Any]], stdin: bytes, limits: Limits) -> list[Ending]:
        """Run the jobs; when a warm parent dies, or somebody kills a child, again on a new one."""
        reasons = []
        for pause in (0.0, *PAUSES_S):
            await asyncio.sleep(pause)
            try:
                return await self._try(slot, jobs, stdin, limits)
            except WorkerDied as error:
                reasons.append(str(error))
        raise SandboxUnavailable(
            f"a program could not be run. Got, from {len(reasons)} warm parents one after another: "
            f"{'; '.join(dict.fromkeys(reasons))}. Expected one to run it. See `cadre check sandbox`, and whether this "
            f"machine has memory, processes and open files left."
        )

    async def _try(self, slot: Slot, jobs: list[dict[str, Any]], stdin: bytes, limits: Limits) -> list[Ending]:
        """Run the jobs once. Raises WorkerDied."""
        finished = False
        try:
            worker = await self._worker_of(slot)
            endings = await worker.run(jobs, stdin, limits)
            if any(ending.foreign for ending in endings):
                raise WorkerDied("a program was killed, and not by its warm parent")
            finished = self.mode == "pool" and worker.runs < RUNS_PER_WORKER
            return endings
        finally:  # also when the caller is cancelled: a worker in the middle of a run is of no further use
            if not finished:
                self._close_worker(slot)

    async def _worker_of(self, slot: Slot) -> Worker:
        if slot.worker is None:
            slot.worker = Worker(self.setup)
            await slot.worker.hello()
        return slot.worker

    @staticmethod
    def _close_worker(slot: Slot) -> None:
        worker, slot.worker = slot.worker, None
        if worker is not None:
            worker.close()

    def _renew_after_fork(self) -> None:
        """A process forked from the trainer starts its own warm parents and leaves the trainer's alone."""
        if self.owner == os.getpid():
            return
        for slot in self.slots.every:
            if slot.worker is not None:
                slot.worker.abandon()
        self.slots = self._new_slots(len(self.slots.every))
        self.owner = os.getpid()

    def close(self) -> None:
        """End every warm parent. The sandbox starts new ones if it is used again."""
        if self.owner == os.getpid():
            for slot in self.slots.every:
                self._close_worker(slot)


def bytes_of(stdin: str) -> bytes:
    """What a program is to read; surrogates that stand for no byte become U+FFFD."""
    return LONE.sub("\ufffd", stdin).encode("utf-8", "surrogateescape")


def seed_of(job: dict[str, Any], stdin: str) -> int:
    """What a job may draw hangs on its text and its input, and on nothing else: the nonce of a verdict is left out."""
    said = {name: value for name, value in job.items() if name != "nonce"}
    parts = repr(("program", json.dumps(said, sort_keys=True), stdin))
    return int.from_bytes(hashlib.blake2b(parts.encode(), digest_size=8).digest(), "little") >> 1


@atexit.register
def close_all() -> None:
    """End what is still open when the interpreter exits."""
    for sandbox in list(_open):
        sandbox.close()
