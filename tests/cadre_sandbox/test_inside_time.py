"""CPU time decides, the clock only ends what waits: a busy machine changes no verdict."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cadre_sandbox import Limits, Result, Sandbox
from cadre_sandbox.checkers import check_tests
from cadre_sandbox.inside import watch
from tests.helpers.sandboxes import shared_sandbox

LIMITS = Limits(cpu_s=0.5)
BURN = "import time\nbegan = time.process_time()\nwhile time.process_time() - began < {}: pass\nprint('done')"
THREADS = (
    "import threading, time\ndef burn():\n    began = time.thread_time()\n"
    "    while time.thread_time() - began < 0.15: pass\n"
    "threads = [threading.Thread(target=burn) for _ in range(2)]\nfor t in threads: t.start()\n"
    "for t in threads: t.join()\nprint('done')"
)
PROGRAMS = {  # what each comes to, whatever else the machine does
    "60% of the limit": (BURN.format(0.3), "ok"),
    "60% by two threads": (THREADS, "ok"),
    "more than the limit": (BURN.format(0.9), "timeout"),
    "sleeps": ("import time; time.sleep(60)", "wall"),
    "waits for itself": ("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", "wall"),
    "sleeps a little": ("import time; time.sleep(0.2); print('done')", "ok"),
}


@pytest.fixture
def busy() -> Iterator[None]:
    """Twice as many busy processes as there are cores."""
    loop = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(loop) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for process in processes:
        process.kill()
        process.wait()


def run_all() -> dict[str, Result]:
    async def go() -> list[Result]:
        sandbox = shared_sandbox(workers=2)
        return await asyncio.gather(*(sandbox.run(program, "", LIMITS) for program, _ in PROGRAMS.values()))

    return dict(zip(PROGRAMS, asyncio.run(go()), strict=True))


@pytest.mark.slow
def test_verdicts_under_load(busy: None) -> None:
    assert {name: result.status for name, result in run_all().items()} == {n: end for n, (_, end) in PROGRAMS.items()}


def test_verdicts_without_load() -> None:
    results = run_all()
    assert {name: result.status for name, result in results.items()} == {n: end for n, (_, end) in PROGRAMS.items()}
    assert results["more than the limit"].cpu_s < 0.8  # it was ended, not only judged afterwards
    assert results["sleeps"].wall_s < LIMITS.clock_s  # idling is ended long before the backstop


@pytest.mark.slow
def test_a_solution_under_load(busy: None) -> None:
    """The tester waits for the solution meanwhile: that is no idling of the run."""
    burn = "import time\ndef f(s):\n    began = time.process_time()\n    while time.process_time() - began < s: pass\n"

    async def go() -> list[tuple[int, str]]:
        async with Sandbox("confined") as sandbox:
            tests = ("f(0.3)\nassert True is not f", "f(0.9)\nassert True is not f", "import time\nassert f(0) is None")
            slow = [check_tests(sandbox, burn, test, limits=LIMITS) for test in tests]
            asleep = check_tests(sandbox, "import time\ndef f(): time.sleep(60)", "assert f() == 1", limits=LIMITS)
            return [(verdict.passed, verdict.status) for verdict in await asyncio.gather(*slow, asleep)]

    assert asyncio.run(go()) == [(1, "ok"), (0, "timeout"), (1, "ok"), (0, "wall")]


def test_too_much_cpu_time_is_too_much_however_it_ended() -> None:
    """Between two looks of the warm parent a program may pass its limit and end: it has passed it all the same."""

    run = shared_sandbox().run(BURN.format(0.06), "", Limits(cpu_s=0.05, wall_s=5.0))
    assert asyncio.run(run).status == "timeout"


def test_waiting_for_a_core_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"cpu_s": 1.0, "idle_s": 1.0, "wall_s": 30.0}
    monkeypatch.setattr(watch, "cpu_seconds", lambda pid: 0.25)
    monkeypatch.setattr(watch, "queue_nanoseconds", lambda proc, pid: 1.5e9)
    late = {elapsed: watch.out_of_time(7, [1, 2], request, elapsed) for elapsed in (1.4, 4.4, 4.6, 29.9, 30.0)}
    assert late == {1.4: False, 4.4: False, 4.6: True, 29.9: True, 30.0: True}  # 0.5 computing and 3 waiting: 4.5
    monkeypatch.setattr(watch, "queue_nanoseconds", lambda proc, pid: 100e9)
    assert not watch.out_of_time(7, [1], request, 29.9)
    assert watch.out_of_time(7, [1], request, 30.0)


@pytest.mark.parametrize("proc", [None, 7])
def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, proc: int | None) -> None:
    """Four fifths of the time count as waiting for a core: a program that sleeps takes five times as long."""
    request = {"cpu_s": 1.0, "idle_s": 1.0, "wall_s": 30.0}
    monkeypatch.setattr(watch, "cpu_seconds", lambda pid: 0.0)
    monkeypatch.setattr(watch, "queue_nanoseconds", lambda proc, pid: float("nan"))
    assert [watch.out_of_time(proc, [1], request, elapsed) for elapsed in (4.9, 5.1)] == [False, True]


def test_what_the_kernel_tells_of_this_process() -> None:
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    try:
        waited = watch.queue_seconds(proc, [os.getpid()], 1e9)
    finally:
        os.close(proc)
    assert 0 <= waited < 1e6


def test_limits_that_are_not_said() -> None:
    assert (Limits(cpu_s=2.0).idle_s, Limits(cpu_s=2.0).clock_s) == (2.0, 60.0)
    assert (Limits(cpu_s=2.0, wall_s=3.0).idle_s, Limits(cpu_s=2.0, wall_s=3.0).clock_s) == (3.0, 3.0)
