"""The control group of one warm parent's children: limits on all their processes together, and an end to all at once.

The trainer makes the group and takes it away (see `cadre_sandbox.cgroups`). The files are opened before the parent
enters its namespaces, from where they could not be reached. Memory that a child shares with its parent is not counted.
"""

import contextlib
import os
import select
from dataclasses import dataclass, field
from typing import Any

MAX_THREADS = 64  # of one child at any level; with a control group, processes count too
OWN_MB = 8  # what the kernel keeps for a program: page tables, stacks, pipes
PERIOD_US = 100_000
EMPTY_S = 5.0  # how long killed processes may take to go
CONTROLS = ("cgroup.procs", "cgroup.kill", "memory.max", "pids.max")
OPTIONAL = ("memory.swap.max", "cpu.max")  # missing without swap accounting, or without the cpu controller
EVENTS = ("cgroup.events", "memory.events")


@dataclass
class Group:
    """A control group, by its open files. Owned by the warm parent; the children of one run are in it at a time."""

    files: dict[str, int]
    seen: int = field(default=0)  # processes that the group's memory limit has killed so far

    def join(self, pid: int) -> None:
        """Move a child that has been given no code into the group."""
        self._write("cgroup.procs", str(pid))

    def limit(self, request: dict[str, Any]) -> None:
        """The limits of one run. Written before each, so that a controller which is gone is an OSError, not a gap."""
        for name, text in limits_of(request).items():
            if name in self.files:
                self._write(name, text)

    def kill(self) -> None:
        """Kill every process in the group, whatever it has made of itself."""
        self._write("cgroup.kill", "1")

    def wait_until_empty(self) -> None:
        """Wait for killed processes to be gone. Raises TimeoutError."""
        poller = select.poll()
        poller.register(self.files["cgroup.events"], select.POLLPRI)
        while "populated 0" not in self._read("cgroup.events"):
            if not poller.poll(1000 * EMPTY_S):
                raise TimeoutError(f"processes of a killed control group are left after {EMPTY_S} s")

    def ran_out_of_memory(self) -> bool:
        """Whether the memory limit has killed a process since it was last asked."""
        before, self.seen = self.seen, oom_kills(self._read("memory.events"))
        return self.seen > before

    def _write(self, name: str, text: str) -> None:
        os.pwrite(self.files[name], text.encode("ascii"), 0)

    def _read(self, name: str) -> str:
        return os.pread(self.files[name], 4096, 0).decode("ascii")


def limits_of(request: dict[str, Any]) -> dict[str, str]:
    """What is written for a run of `children` processes, each with a core, its threads and its memory."""
    count = request["children"]
    megabytes = count * int(request["memory_mb"]) + int(request["folder_mb"]) + OWN_MB
    return {
        "memory.max": str(megabytes << 20),
        "memory.swap.max": "0",
        "pids.max": str(count * MAX_THREADS),
        "cpu.max": f"{count * PERIOD_US} {PERIOD_US}",
    }


def oom_kills(events: str) -> int:
    """The count in the text of `memory.events`: lines such as `oom_kill 3`."""
    return next(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))


def open_group(folder: str) -> Group:
    """The group of this folder. Raises OSError when it lacks one of `CONTROLS`: cgroup.kill needs Linux 5.14."""
    files = {name: os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC) for name in CONTROLS}
    for name in OPTIONAL:
        with contextlib.suppress(FileNotFoundError):
            files[name] = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    return Group(files | {name: os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in EVENTS})
