"""A sandbox that cannot run a program says so: what becomes of its processes is never a verdict on the program."""

import asyncio
import contextlib
import dataclasses
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadre_sandbox import Result, Sandbox, SandboxError, SandboxUnavailable, pool, worker
from cadre_sandbox.checkers import check_calls, check_stdio, check_tests
from cadre_sandbox.worker import WorkerDied, endings_in
from tests.helpers.sandboxes import shared_sandbox

SQUARE = "print(int(input()) ** 2)"


def parents_of(sandbox: Sandbox) -> list[int]:
    return [slot.worker.process.pid for slot in sandbox.slots.all_slots if slot.worker is not None]


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill_one(sandbox: Sandbox, grandchildren: bool) -> list[int]:
    """Kill a warm parent, or a child of one; whom."""
    targets = parents_of(sandbox)
    if grandchildren:
        targets = [child for parent in targets for child in children_of(parent)]
    for target in targets[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGKILL)
    return targets[:1]


async def kill_next(sandbox: Sandbox, grandchildren: bool) -> list[int]:
    """The same as soon as there is one, which takes as long as a busy machine wants; nobody where all have ended."""
    for _ in range(200):
        if whom := kill_one(sandbox, grandchildren):
            return whom
        await asyncio.sleep(0.001)
    return []


@contextlib.contextmanager
def killer_of_children(sandbox: Sandbox) -> Iterator[None]:
    """Kills every child that it sees, in a thread."""
    over = threading.Event()

    def go() -> None:
        while not over.wait(0.01):
            kill_one(sandbox, grandchildren=True)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("programs", [4, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("grandchildren", [False, True], ids=["parents", "children"])
def test_killed_again_and_again_no_program_is_judged_wrong(grandchildren: bool, programs: int) -> None:
    """One process is killed for every two programs that end, in the middle of two others."""
    killed: list[int] = []

    async def attempt(sandbox: Sandbox, number: int) -> Result | None:
        try:
            return await sandbox.run(f"import time; time.sleep(0.01); {SQUARE}", str(number))
        except SandboxUnavailable:
            return None
        finally:
            if number % 2:
                killed.extend(await kill_next(sandbox, grandchildren))

    async def go() -> list[Result | None]:
        async with Sandbox("confined", workers=2) as sandbox:
            return await asyncio.gather(*(attempt(sandbox, number) for number in range(programs)))

    judged = {number: result for number, result in enumerate(asyncio.run(go())) if result is not None}
    assert {n: (r.status, r.stdout) for n, r in judged.items()} == {n: ("ok", f"{n * n}\n") for n in judged}
    assert len(judged) > programs * 3 // 4
    assert len(killed) > programs // 4


def test_no_checker_judges_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*arguments: object, **keywords: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no process left")

    sandbox = Sandbox("confined", workers=1)
    monkeypatch.setattr(pool, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(subprocess, "Popen", no_process)
    program = "def f(x): return x"
    checks = (
        lambda: sandbox.run("print(1)"),
        lambda: check_stdio(sandbox, SQUARE, [("2", "4")]),
        lambda: check_tests(sandbox, program, "assert f(1) == 1"),
        lambda: check_calls(sandbox, program, "f", [((1,), 1)]),
    )
    for check in checks:
        with pytest.raises(SandboxUnavailable, match=r"(?s)could not be run.*from 4 warm parents.*no process left"):
            asyncio.run(check())
    monkeypatch.undo()
    assert asyncio.run(check_tests(sandbox, program, "assert f(1) == 1")).ok
    sandbox.close()


def test_it_is_tried_again_until_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([OSError(errno.EMFILE, "too many open files"), MemoryError(), OSError(errno.ENOMEM, "no memory")])
    real = worker.make_file

    def make_file(content: bytes = b"") -> int:
        for failure in failures:
            raise failure
        return real(content)

    monkeypatch.setattr(worker, "make_file", make_file)
    monkeypatch.setattr(pool, "PAUSES_S", (0.0, 0.0, 0.01))
    assert asyncio.run(shared_sandbox().run(SQUARE, "5")).stdout == "25\n"
    assert next(failures, None) is None


def test_no_descriptor_is_lost_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with Sandbox("confined", workers=1) as sandbox:
            with pytest.raises(SandboxUnavailable):
                await sandbox.run("pass")

    monkeypatch.setattr(pool, "PAUSES_S", (0.0,))
    monkeypatch.setattr(worker, "interpreter", lambda: ["/nowhere/python"])
    asyncio.run(go())
    initial = len(os.listdir("/proc/self/fd"))
    asyncio.run(go())
    assert len(os.listdir("/proc/self/fd")) == initial


def test_who_kills_every_child_leaves_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PAUSES_S", (0.0,))

    async def go() -> None:
        sandbox = shared_sandbox()
        await sandbox.run("pass")
        with killer_of_children(sandbox):
            await sandbox.run("import time; time.sleep(1.9)")

    # As it is killed while it runs, before that, or with its parent.
    killed = r"was killed, and not by its warm parent|the child died while it armed|warm parent is gone"
    with pytest.raises(SandboxUnavailable, match=killed):
        asyncio.run(go())


def test_a_solution_that_is_killed_from_outside_is_judged_again() -> None:
    """Alone with its tests it would have failed them all."""
    killed: list[int] = []

    async def kill_solution(sandbox: Sandbox) -> None:
        parent = parents_of(sandbox)[0]
        while len(children := children_of(parent)) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        os.kill(children[1], signal.SIGKILL)
        killed.append(children[1])

    async def go() -> bool:
        sandbox = shared_sandbox()
        await sandbox.run("pass")
        program = "import time\ndef f():\n    time.sleep(0.4)\n    return 1"
        verdict, _ = await asyncio.gather(check_tests(sandbox, program, "assert f() == 1"), kill_solution(sandbox))
        return verdict.ok

    assert asyncio.run(go())
    assert killed


def test_a_program_cannot_make_the_sandbox_look_dead() -> None:
    program = (
        "import os, signal, threading\nfor attempt in (lambda: os.kill(os.getpid(), 9),\n"
        "                lambda: signal.pthread_kill(threading.get_ident(), 9), lambda: signal.raise_signal(9)):\n"
        "    try:\n        attempt()\n    except PermissionError:\n        print('refused')"
    )

    async def go() -> list[Result]:
        ends = ("import os; os.kill(os.getpid(), 15)", "import os; os.abort()")
        return [await shared_sandbox().run(text) for text in (program, *ends)]

    refused, *ended = asyncio.run(go())
    assert (refused.status, refused.stdout) == ("ok", "refused\n" * 3)
    assert [result.status for result in ended] == ["killed", "killed"]


@pytest.mark.parametrize(
    "message",
    [
        {"layers": [], "error": "no process left"},
        {"endings": [{"layers": [], "error": "no process left"}]},
        {"endings": [{"layers": ["rlimits"], "error": ""}, {"layers": [], "error": "no process left"}]},
    ],
)
def test_a_child_that_was_never_ready_is_no_verdict(message: dict[str, Any]) -> None:
    with pytest.raises(WorkerDied, match="no process left"):
        endings_in(message)


def test_it_is_an_exception_of_its_own_kind() -> None:
    assert issubclass(SandboxUnavailable, SandboxError)
    assert SandboxUnavailable is not SandboxError


@pytest.mark.slow
def test_a_parent_that_is_stuck_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GRACE_S", 0.2)

    async def go() -> tuple[Result, float]:
        async with Sandbox("confined", workers=1) as sandbox:
            await sandbox.run("pass")
            os.kill(parents_of(sandbox)[0], signal.SIGSTOP)
            began = time.monotonic()
            result = await sandbox.run(SQUARE, "6", pool.Limits(cpu_s=0.2))
            return result, time.monotonic() - began

    result, seconds = asyncio.run(go())
    assert result.stdout == "36\n"
    assert seconds < 30


@pytest.mark.parametrize(("stuck", "status"), [(1, "ok"), (2, "wall")])
def test_what_the_clock_ended_is_run_once_more_and_that_counts(
    monkeypatch: pytest.MonkeyPatch, stuck: int, status: str
) -> None:
    """A disk that others keep busy held a program up for longer than it may idle, in one of two equal runs."""
    runs = []

    async def run(self: worker.Worker, *arguments: Any) -> list[worker.Ending]:
        endings = await plain(self, *arguments)
        if self.runs:  # not those that a parent is warmed up with
            runs.append(endings)
        return [dataclasses.replace(endings[0], killed="wall")] if self.runs and len(runs) <= stuck else endings

    async def go() -> Result:
        await shared_sandbox().run("")
        runs.clear()
        return await shared_sandbox().run("print(1)")

    plain = worker.Worker.run
    monkeypatch.setattr(worker.Worker, "run", run)
    result = asyncio.run(go())
    assert (result.status, result.stdout, len(runs)) == (status, "1\n", 2)


def test_too_few_descriptors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_file(content: bytes = b"") -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pool, "PAUSES_S", (0.0,))

    async def go() -> None:
        await shared_sandbox().run("pass")
        monkeypatch.setattr(worker, "make_file", make_file)
        await shared_sandbox().run("pass")

    with pytest.raises(SandboxUnavailable, match=r"descriptors: this process may have .* ulimit -n \d"):
        asyncio.run(go())
