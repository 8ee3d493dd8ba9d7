"""Whether a program has come to a standstill: all its threads sleep, and none has run since one looked before.

What a program asks at once has to be seen at once, else what shares a decision would follow from the clock. A thread
that sleeps on purpose, or waits for somebody else's server, looks just like one that waits for us: what it asks later
is a later decision.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

# State and nanoseconds on a processor, by thread.
Activity = dict[int, tuple[str, str]]
# Seconds that the table of all processes may be old.
FRESH = 0.02


class ProcessTable:
    """Who is whose child. Read at most every `FRESH` seconds, however many ask."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._read = -1.0

    def family(self, root: int) -> list[int]:
        """A process and all below it."""
        if time.monotonic() - self._read > FRESH or root not in self._parents:
            self._parents, self._read = _parents(), time.monotonic()
        below: dict[int, list[int]] = {}
        for pid, parent in self._parents.items():
            below.setdefault(parent, []).append(pid)
        family = [root]
        for pid in family:
            family += below.get(pid, [])
        return family


def _parents() -> dict[int, int]:
    known = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := _read(f"/proc/{name}/stat")):
            known[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return known


def activity(pids: Iterable[int]) -> Activity:
    """What every thread of these processes is at."""
    threads: Activity = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for name in names:
            threads[int(name)] = _activity(f"/proc/{pid}/task/{name}")
    return threads


def thread_activity(native: int) -> tuple[str, str]:
    """What a thread of this process is at."""
    return _activity(f"/proc/self/task/{native}")


def _activity(task: str) -> tuple[str, str]:
    state = _read(f"{task}/stat").rpartition(")")[2].split(maxsplit=1)
    return (state[0] if state else "X"), _read(f"{task}/schedstat").partition(" ")[0]


def sleeps(threads: Activity) -> bool:
    """Whether nobody runs or is about to; a process that is gone does neither."""
    return all(state in "SZXIT" for state, _ in threads.values())


def _read(path: str) -> str:
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except OSError:
        return ""
