"""Looks at running children from outside: whether one has passed a limit of its own, or the clock ends the run.

What decides is CPU time. The clock ends those that wait for ever, and a busy machine, where a program waits for its
turn, is not held against it. `proc` is an open descriptor of /proc, None where there is none.
"""

import math
import os
import sys
import time
from typing import Any

from . import groups

REHEARSALS = 200
SUPPOSED = 0.8
PF_EXITING = 0x4  # from before a process closes its files, until it is collected


def excess(proc: int | None, pid: int, request: dict[str, Any]) -> str:
    """The limit of its own that a child has passed, or an empty string."""
    if cpu_seconds(pid) >= request["cpu_s"]:
        return "cpu"
    return "threads" if thread_count(proc, pid) > groups.MAX_THREADS else ""


def out_of_time(proc: int | None, pids: list[int], request: dict[str, Any], elapsed: float) -> bool:
    """Whether all the time of a run is up, or its processes, none of them reaped, have idled for too long."""
    if elapsed >= request["wall_s"]:
        return True
    idle = elapsed - sum(map(cpu_seconds, pids))
    return idle >= request["idle_s"] and idle - queue_seconds(proc, pids, elapsed) >= request["idle_s"]


def rehearse(proc: int | None, pid: int) -> None:
    """Look at a child so often that the interpreter has settled on how to: until then a look may leave memory behind,
    which moves the objects of children that are born later.
    """
    request = {"cpu_s": math.inf, "wall_s": math.inf, "idle_s": 0.0}
    for _ in range(REHEARSALS):
        excess(proc, pid, request)
        out_of_time(proc, [pid], request, 1.0)
        exiting(proc, pid)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, from its own clock (see clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2) if sys.platform == "linux" else 0.0


def thread_count(proc: int | None, pid: int) -> int:
    """Threads of a process; its task folder has one link for each, and two more."""
    if proc is None:
        return 1
    try:
        return os.stat(f"{pid}/task", dir_fd=proc).st_nlink - 2
    except FileNotFoundError:
        return 0


def queue_seconds(proc: int | None, pids: list[int], elapsed: float) -> float:
    """How long processes were ready to run and had to wait for a core, all their threads together. Where the kernel
    does not tell (proc(5), schedstat) most of the time is taken for it.
    """
    told = math.nan if proc is None else sum(queue_nanoseconds(proc, pid) for pid in pids) / 1e9
    return SUPPOSED * elapsed if math.isnan(told) else told


def queue_nanoseconds(proc: int, pid: int) -> float:
    """The same of one process; NaN where the kernel does not tell."""
    folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return sum(queue_of_thread(folder, task, str(pid)) for task in os.listdir(folder))
    finally:
        os.close(folder)


def queue_of_thread(folder: int, task: str, main: str) -> float:
    """The same of one thread. Threads may have ended since; the main one stays until it is collected."""
    try:
        file = os.open(f"{task}/schedstat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(file) as lines:
            return float(lines.read().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return math.nan if task == main else 0.0


def exiting(proc: int | None, pid: int) -> bool:
    """Whether a process has begun to end, though it may not be over (proc_pid_stat(5), flags)."""
    if proc is None:
        return False
    with os.fdopen(os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)) as file:
        return bool(int(file.read().rpartition(") ")[2].split()[6]) & PF_EXITING)
