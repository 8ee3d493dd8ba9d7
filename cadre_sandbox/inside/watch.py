"""Observe running children from outside: find the limit that one has passed, or that the run is out of time.

CPU time decides. The clock ends programs that wait for ever; the time that a program waits for a core does not count
against it. `proc` is an open descriptor of /proc, None if there is none.
"""

import math
import os
import sys
import time
from typing import Any

from . import groups

REHEARSALS = 200
ASSUMED_QUEUE_FRACTION = 0.8
# A flag of a process from before it closes its files until it is reaped.
PF_EXITING = 0x4


def excess(proc: int | None, pid: int, request: dict[str, Any]) -> str:
    """Return the limit that a child has passed, `cpu` or `threads`, or an empty string."""
    if cpu_seconds(pid) >= request["cpu_s"]:
        return "cpu"
    return "threads" if thread_count(proc, pid) > groups.MAX_THREADS else ""


def out_of_time(proc: int | None, pids: list[int], request: dict[str, Any], elapsed: float) -> bool:
    """Return True if the time of a run is up or its processes, none of them reaped, have idled for too long."""
    if elapsed >= request["wall_s"]:
        return True
    idle = elapsed - sum(map(cpu_seconds, pids))
    # The queues are read only if the limit may be passed, as that opens a file per thread.
    return idle >= request["idle_s"] and idle - queue_seconds(proc, pids, elapsed) >= request["idle_s"]


def rehearse(proc: int | None, pid: int) -> None:
    """Call the functions of this module on a child until the interpreter's caches are filled.

    Until then a call may allocate memory that stays, which moves the objects of children that are forked later.
    """
    request = {"cpu_s": math.inf, "wall_s": math.inf, "idle_s": 0.0}
    for _ in range(REHEARSALS):
        excess(proc, pid, request)
        out_of_time(proc, [pid], request, 1.0)
        is_exiting(proc, pid)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, read from its own clock (see clock_getcpuclockid(3))."""
    # The kernel encodes the clock of a process as its inverted id, shifted, with the clock's kind (2: scheduler) below.
    return time.clock_gettime((~pid << 3) | 2) if sys.platform == "linux" else 0.0


def thread_count(proc: int | None, pid: int) -> int:
    """Return the number of threads of a process: its task folder has one link for each, and two more."""
    if proc is None:
        return 1
    try:
        return os.stat(f"{pid}/task", dir_fd=proc).st_nlink - 2
    except FileNotFoundError:
        return 0


def queue_seconds(proc: int | None, pids: list[int], elapsed: float) -> float:
    """Return the seconds that the threads of the processes were ready to run and waited for a core.

    If the kernel has no schedstat (proc(5)), ASSUMED_QUEUE_FRACTION of the elapsed time is returned.
    """
    seconds = math.nan if proc is None else sum(queue_nanoseconds(proc, pid) for pid in pids) / 1e9
    return ASSUMED_QUEUE_FRACTION * elapsed if math.isnan(seconds) else seconds


def queue_nanoseconds(proc: int, pid: int) -> float:
    """Return the waiting time of one process in nanoseconds; NaN if the kernel has no schedstat."""
    folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return sum(queue_of_thread(folder, task, str(pid)) for task in os.listdir(folder))
    finally:
        os.close(folder)


def queue_of_thread(folder: int, task: str, main: str) -> float:
    """Return the waiting time of one thread in nanoseconds."""
    # A thread may have ended since it was listed; the main one stays until it is reaped, so its file must exist.
    try:
        file = os.open(f"{task}/schedstat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(file) as lines:
            return float(lines.read().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return math.nan if task == main else 0.0


def is_exiting(proc: int | None, pid: int) -> bool:
    """Return True if a process has begun to exit (flags of proc_pid_stat(5)); it may still be running its exit."""
    if proc is None:
        return False
    with os.fdopen(os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)) as file:
        return bool(int(file.read().rpartition(") ")[2].split()[6]) & PF_EXITING)
