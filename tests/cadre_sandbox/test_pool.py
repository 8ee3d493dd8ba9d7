"""The pool gives what a cold interpreter gives, survives what may happen to it, and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadre_sandbox import pool
from cadre_tasks.sandbox import Limits, Result, Sandbox, run
from tests.helpers.sandboxes import shared_sandbox
from tests.helpers.slow import few_of

ROOT = Path(__file__).parents[2]
SHORT = Limits(cpu_s=0.2)

PROGRAMS: dict[str, tuple[str, str, str, str]] = {  # name: program, stdin, status, stdout
    "prints": ("print('hello')", "", "ok", "hello\n"),
    "reads": ("print(sum(map(int, open(0).read().split())))", "1 2\n3", "ok", "6\n"),
    "reads nothing": ("print(input())", "", "error", ""),
    "unicode": ("print(input()[::-1])", "héß", "ok", "ßéh\n"),
    "binary": ("import sys; sys.stdout.buffer.write(b'a\\xffb')", "", "ok", "a\ufffdb"),
    "no line end": ("print('a', end='')", "", "ok", "a"),
    "raises": ("print(1)\n1 / 0", "", "error", "1\n"),
    "does not compile": ("def f(:", "", "error", ""),
    "null byte": ("print(1)\x00", "", "error", ""),
    "lone surrogate": ("print('\ud800')", "", "error", ""),
    "exit 0": ("print(1); raise SystemExit", "", "ok", "1\n"),
    "exit 3": ("import sys; print(1); sys.exit(3)", "", "error", "1\n"),
    "exit text": ("import sys; sys.exit('no')", "", "error", ""),
    "hard exit": ("import os; print(1, flush=True); os._exit(0)", "", "ok", "1\n"),
    "main guard": ("if __name__ == '__main__': print(__name__)", "", "ok", "__main__\n"),
    "dataclass": ("from dataclasses import dataclass\n@dataclass\nclass A: x: int\nprint(A(1))", "", "ok", "A(x=1)\n"),
    "at exit": ("import atexit; atexit.register(print, 'bye'); print('hi')", "", "ok", "hi\nbye\n"),
    "thread": ("import threading\nthreading.Thread(target=print, args=('t',)).start()", "", "ok", "t\n"),
    "big stack": (
        "import sys, threading\nthreading.stack_size(1 << 26)\nsys.setrecursionlimit(10**6)\n"
        "def f(n): return n and 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(20000)))\nt.start(); t.join()",
        "", "ok", "20000\n",
    ),
    # Each level takes half a KiB of C's stack: 30 MiB in all.
    "deep recursion through C": (
        "import functools, sys\nsys.setrecursionlimit(10**6)\n@functools.lru_cache(None)\n"
        "def f(n): return n and 1 + f(n - 1)\nprint(f(60000))",
        "", "ok", "60000\n",
    ),
    "asyncio": ("import asyncio\nasync def f(): print('a')\nasyncio.run(f())", "", "ok", "a\n"),
    "order of a set": ("print(list({'a', 'b', 'c', 'd'}) == list({'a', 'b', 'c', 'd'}))", "", "ok", "True\n"),
    "loops": ("while True: pass", "", "timeout", ""),
    "sleeps": ("import time; print(1, flush=True); time.sleep(9)", "", "wall", "1\n"),
    "uses memory": ("x = [0] * 10**10", "", "oom", ""),
    "floods": ("print('x' * 10**6)", "", "flood", "x" * 65_536),
    "crashes": ("import ctypes; ctypes.string_at(0)", "", "killed", ""),
    "big input": ("print(len(input()))", "y" * 3_000_000, "ok", "3000000\n"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["pool", pytest.param("cold", marks=pytest.mark.slow)])
def test_programs_end_the_same_warm_and_cold(mode: pool.Mode) -> None:
    async def go() -> list[Result]:
        async with Sandbox("confined", mode) as sandbox:
            slow = {"loops": SHORT, "sleeps": SHORT}
            return await asyncio.gather(
                *(
                    sandbox.run(p, stdin, slow.get(name, Limits(wall_s=8.0)))
                    for name, (p, stdin, _, _) in PROGRAMS.items()
                )
            )

    for (name, (_, _, status, stdout)), result in zip(PROGRAMS.items(), asyncio.run(go()), strict=True):
        assert (name, result.status, result.stdout) == (name, status, stdout), result.stderr
        assert result.layers[-1] == "seccomp"


def test_the_error_says_where() -> None:
    result = asyncio.run(shared_sandbox().run("def f():\n    return [][1]\nf()"))
    assert result.stderr.splitlines()[-1] == "IndexError: list index out of range"
    assert "return [][1]" in result.stderr
    assert "cadre" not in result.stderr


def test_a_set_prints_in_the_same_order_in_every_process() -> None:
    async def go() -> set[str]:
        program = "print({'a', 'b', 'c', 'd', 'e'})"
        async with Sandbox("confined", workers=1) as sandbox:
            runs = [await box.run(program) for box in (shared_sandbox(), sandbox, sandbox)]
        return {result.stdout for result in runs}

    assert len(asyncio.run(go())) == 1


def test_several_event_loops_share_one_sandbox() -> None:
    for number in range(3):
        assert asyncio.run(run(f"print({number})")).stdout == f"{number}\n"


def test_cancelled_runs_give_their_slots_back() -> None:
    async def go() -> str:
        sandbox = shared_sandbox()
        tasks = [asyncio.create_task(sandbox.run("import time; time.sleep(9)")) for _ in range(3)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return (await sandbox.run("print(1)")).stdout

    assert asyncio.run(go()) == "1\n"


def test_first_come_first_served() -> None:
    async def go() -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            await shared_sandbox().run("pass")
            order.append(number)

        await asyncio.gather(*(one(number) for number in range(8)))
        return order

    assert asyncio.run(go()) == list(range(8))


def test_a_dead_parent_is_replaced() -> None:
    async def go() -> tuple[Result, Result]:
        sandbox = shared_sandbox()
        await sandbox.run("pass")
        running = asyncio.create_task(sandbox.run("import time; time.sleep(0.3); print(1)"))
        await asyncio.sleep(0.1)
        os.kill(parent_of(sandbox), signal.SIGKILL)
        return await running, await sandbox.run("print(2)")

    retried, next_one = asyncio.run(go())
    assert (retried.status, retried.stdout) == ("ok", "1\n")
    assert (next_one.status, next_one.stdout) == ("ok", "2\n")


def parent_of(sandbox: Sandbox) -> int:
    worker = sandbox.slots.all_slots[0].worker
    assert worker is not None
    return worker.process.pid


def test_parents_retire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RUNS_PER_WORKER", 3)

    async def go() -> list[bool]:
        async with Sandbox("confined", workers=1) as sandbox:
            alive = []
            for _ in range(4):
                await sandbox.run("pass")
                alive.append(sandbox.slots.all_slots[0].worker is not None)
            return alive

    assert asyncio.run(go()) == [True, True, False, True]


def test_no_descriptor_and_no_zombie_is_left() -> None:
    def count() -> tuple[int, int]:
        child_processes = [entry for entry in Path("/proc").glob("[0-9]*/stat") if parent_id(entry) == os.getpid()]
        return len(os.listdir("/proc/self/fd")), len(child_processes)

    async def go() -> None:
        async with Sandbox("isolated", workers=2) as sandbox:
            await asyncio.gather(*(sandbox.run("print(1)") for _ in range(20)))
            await sandbox.run("while True: pass", limits=SHORT)

    asyncio.run(go())
    initial_count = count()
    asyncio.run(go())
    assert count() == initial_count


def parent_id(stat: Path) -> int:
    try:
        return int(stat.read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1


TRAINER = """
import asyncio, os, sys
from cadre_sandbox import Sandbox, Limits
async def main():
    sandbox = Sandbox("{level}", workers=2)
    await asyncio.gather(sandbox.run("pass"), sandbox.run("pass"))
    print(*(slot.worker.process.pid for slot in sandbox.slots.all_slots if slot.worker), flush=True)
    if {busy}:
        await asyncio.gather(*(sandbox.run("while True: pass", limits=Limits(60.0, 60.0)) for _ in range(2)))
asyncio.run(main())
"""


def descendants(pids: set[int]) -> set[int]:
    """These processes and all below them, of those that live."""
    result, size = set(pids), 0
    while len(result) != size:
        size = len(result)
        result |= {int(s.parent.name) for s in Path("/proc").glob("[0-9]*/stat") if parent_id(s) in result}
    return result


def gone(pid: int) -> bool:
    """Return True if a process has ended, or only waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("level", "end"),
    few_of(
        [(level, end) for level in ("confined", "isolated") for end in ("exit", "SIGINT", "SIGTERM", "SIGKILL")],
        [("isolated", "SIGKILL")],
    ),
)
def test_nothing_outlives_the_trainer(level: str, end: str) -> None:
    script = TRAINER.format(level=level, busy=end != "exit")
    trainer = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # A shell's background jobs, such as these tests may be, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert trainer.stdout is not None
    family = descendants({int(word) for word in trainer.stdout.readline().split()})
    time.sleep(0.3 if end != "exit" else 0)
    family |= descendants(family)
    assert len(family) >= 2
    if end != "exit":
        trainer.send_signal(signal.Signals[end])
    trainer.wait(timeout=20)
    trainer.stdout.close()
    deadline = time.monotonic() + 10
    while not all(map(gone, family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in family if not gone(pid)] == []


def test_a_forked_trainer_starts_its_own_parents() -> None:
    async def go() -> tuple[str, int, str]:
        sandbox = shared_sandbox()
        await sandbox.run("pass")
        child = os.fork()
        if child == 0:
            result = asyncio.new_event_loop().run_until_complete(in_child(sandbox))
            os._exit(0 if result == "1\n" else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        return "", status, (await sandbox.run("print(2)")).stdout

    async def in_child(sandbox: Sandbox) -> str:
        result = await sandbox.run("print(1)")
        sandbox.close()
        return result.stdout

    _, status, final = asyncio.run(go())
    assert status == 0
    assert final == "2\n"
