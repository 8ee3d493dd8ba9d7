"""The public class `Sandbox`: takes programs from any event loop and gives each to a free warm parent."""

import asyncio
import atexit
import hashlib
import json
import os
import re
import secrets
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from cadre_sandbox import levels
from cadre_sandbox.errors import SandboxError, SandboxUnavailable
from cadre_sandbox.records import DEFAULT_LIMITS, Called, FunctionProgram, GroupMode, LevelName, Limits, Mode, Result
from cadre_sandbox.results import called_of, result_of
from cadre_sandbox.slots import Slot, Slots
from cadre_sandbox.worker import Ending, Setup, Worker, WorkerDied

RUNS_PER_WORKER = 1000
# Surrogates other than U+DC80 to U+DCFF, by which the error handler `surrogateescape` represents undecodable bytes.
LONE_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
# So many CPU seconds before its limit a function is ended by its own process, which can report where it was; a tenth
# of a second is more than the timers and the warm parent's checks are late.
REPORT_AHEAD_S = 0.1
# Seconds to wait before each new attempt at a run whose warm parent died.
PAUSES_S = (0.0, 0.1, 0.5)

_open: "weakref.WeakSet[Sandbox]" = weakref.WeakSet()


class Sandbox:
    """Runs untrusted programs. Owned by its creator; lives until `close`, which leaves no process behind.

    level   the strictest of `confined` and `isolated` that holds here (`auto`), or a level by name; SandboxError if the
            machine cannot enforce it. `.level` and `.layers` hold the result.
    mode    `pool`: warm parents, one per core, each used for a thousand runs; `cold`: a new interpreter for each run
    workers number of programs that run at the same time; one per core by default
    cgroup  `on`: a control group for each warm parent's children, or SandboxError; `auto`: if a group is delegated to
            this process and holds; `off`. `.groups` holds the group, or the reason why there is none.
    executables  files that `execute` may run; without them no program may execute any file
    queued  returns a context manager that is entered while a program waits for a free slot
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
            self.groups.delegation,
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
        slots.idle.extend(slots.all_slots)
        return slots

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS, prelude: str = "") -> Result:
        """Run Python source text as a script and return how it ended.

        `prelude` is trusted source text that runs before it in the same namespace; its lines do not count in errors.
        Never raises for what the program does. Raises SandboxUnavailable if it could not be run.
        """
        job = {"kind": "program", "program": program, **({"prelude": prelude} if prelude else {})}
        ending = (await self.submit([job], stdin, limits))[0]
        return result_of(ending, limits)

    async def call(self, function: FunctionProgram, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Called:
        """Load a program, call its function, and return how it ended and the value, which arrives as plain data.

        The value is an answer like a printed one: the program may forge it, so judge it in this process.
        """
        nonce = secrets.token_hex(16)
        report_s = max(limits.cpu_s - REPORT_AHEAD_S, limits.cpu_s / 2)
        job = {"kind": "function", "nonce": nonce, "report_s": report_s, **asdict(function)}
        ending = (await self.submit([job], stdin, limits))[0]
        return called_of(ending, nonce, limits)

    async def execute(
        self, command: list[str], stdin: str = "", beside: str = "", limits: Limits = DEFAULT_LIMITS
    ) -> Result:
        """Run one of `executables` behind the layers of this sandbox; otherwise like `run`.

        `command[0]` is its path; it can read the text `beside` as /dev/fd/3.
        """
        command = [os.path.realpath(command[0]), *command[1:]]
        ending = (await self.submit([{"kind": "tool", "command": command, "beside": beside}], stdin, limits))[0]
        return result_of(ending, limits)

    async def submit(self, jobs: list[dict[str, Any]], stdin: str, limits: Limits) -> list[Ending]:
        """Run one job, or two that talk to each other, when a slot is free. Used by the checkers; programs use `run`.

        Raises SandboxUnavailable if they could not be run, which is no verdict on them.
        """
        if limits.folder_mb and self.level != "isolated":
            raise SandboxError(
                f"a writable folder is a tmpfs of limited size, which only level 'isolated' can give; this sandbox is "
                f"{self.level!r}. Leave folder_mb at 0, or run where `cadre check sandbox` lists 'isolated'."
            )
        self._replace_workers_after_fork()
        seeded = [{**job, "seed": seed_of(job, stdin)} for job in jobs]
        with self.queued():
            slot = await self.slots.acquire()
        try:
            # Surrogates that represent no byte become U+FFFD.
            encoded = LONE_SURROGATES.sub("\ufffd", stdin).encode("utf-8", "surrogateescape")
            return await self._run_with_clock_retry(slot, seeded, encoded, limits)
        finally:
            self.slots.release(slot)

    async def _run_with_clock_retry(
        self, slot: Slot, jobs: list[dict[str, Any]], stdin: bytes, limits: Limits
    ) -> list[Ending]:
        """Run the jobs, and a second time if the clock ended them; the second result counts."""
        # A program that waits for ever waits again; one that an overloaded machine delayed seldom does.
        endings = await self._run_with_retries(slot, jobs, stdin, limits)
        if any(ending.killed == "wall" for ending in endings):
            endings = await self._run_with_retries(slot, jobs, stdin, limits)
        return endings

    async def _run_with_retries(
        self, slot: Slot, jobs: list[dict[str, Any]], stdin: bytes, limits: Limits
    ) -> list[Ending]:
        """Run the jobs; if the warm parent dies or a child is killed from outside, run them again on a new one."""
        reasons = []
        for pause in (0.0, *PAUSES_S):
            await asyncio.sleep(pause)
            try:
                return await self._run_once(slot, jobs, stdin, limits)
            except WorkerDied as error:
                reasons.append(str(error))
        raise SandboxUnavailable(
            f"a program could not be run. Got, from {len(reasons)} warm parents one after another: "
            f"{'; '.join(dict.fromkeys(reasons))}. Expected one to run it. See `cadre check sandbox`, and whether this "
            f"machine has memory, processes and open files left."
        )

    async def _run_once(self, slot: Slot, jobs: list[dict[str, Any]], stdin: bytes, limits: Limits) -> list[Ending]:
        """Run the jobs once. Raises WorkerDied."""
        finished = False
        try:
            if slot.worker is None:
                slot.worker = Worker(self.setup)
                await slot.worker.hello()
            worker = slot.worker
            endings = await worker.run(jobs, stdin, limits)
            if any(ending.foreign for ending in endings):
                raise WorkerDied("a program was killed, and not by its warm parent")
            finished = self.mode == "pool" and worker.runs < RUNS_PER_WORKER
            return endings
        finally:
            # Also if the caller is cancelled: a worker in the middle of a run cannot be used again.
            if not finished:
                self._close_worker(slot)

    @staticmethod
    def _close_worker(slot: Slot) -> None:
        worker, slot.worker = slot.worker, None
        if worker is not None:
            worker.close()

    def _replace_workers_after_fork(self) -> None:
        """Start with new slots in a process that was forked from the trainer; the trainer keeps its warm parents."""
        if self.owner == os.getpid():
            return
        for slot in self.slots.all_slots:
            if slot.worker is not None:
                slot.worker.abandon()
        self.slots = self._new_slots(len(self.slots.all_slots))
        self.owner = os.getpid()

    def close(self) -> None:
        """End every warm parent. If the sandbox is used again, it starts new ones."""
        if self.owner == os.getpid():
            for slot in self.slots.all_slots:
                self._close_worker(slot)


def seed_of(job: dict[str, Any], stdin: str) -> int:
    """Return the seed of a job's random numbers, which depends on the job's text and input alone."""
    # The nonce of a verdict differs at every run, so it is left out.
    hashed_fields = {name: value for name, value in job.items() if name not in ("nonce", "prelude")}
    # A prelude counts as a part of its program.
    if "prelude" in job:
        hashed_fields["program"] = job["prelude"] + job["program"]
    parts = repr(("program", json.dumps(hashed_fields, sort_keys=True), stdin))
    return int.from_bytes(hashlib.blake2b(parts.encode(), digest_size=8).digest(), "little") >> 1


@atexit.register
def close_all() -> None:
    """Close all open sandboxes when the interpreter exits."""
    for sandbox in list(_open):
        sandbox.close()
