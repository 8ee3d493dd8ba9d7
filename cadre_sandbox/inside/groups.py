"""The control group of one warm parent's children: it limits all their processes together and can kill them at once.

The trainer creates and removes the group (see `cadre_sandbox.cgroups`). The parent opens the group's files before it
enters its namespaces, where they cannot be reached by name. Memory that a child shares with its parent is not counted.
"""

import contextlib
import os
import select
from dataclasses import dataclass, field
from typing import Any

MAX_THREADS = 64  # of one child at any level; with a control group, processes count too
OWN_MB = 8  # for what the kernel itself allocates for a program: page tables, stacks, pipes
PERIOD_US = 100_000
EMPTY_S = 5.0  # seconds that killed processes may take to end
CONTROLS = ("cgroup.procs", "cgroup.kill", "memory.max", "pids.max")
# Missing without swap accounting, or without the cpu controller.
OPTIONAL = ("memory.swap.max", "cpu.max")
EVENTS = ("cgroup.events", "memory.events")


@dataclass
class Group:
    """A control group, by its open files. Owned by the warm parent; the children of one run are in it at a time."""

    files: dict[str, int]
    oom_kills_seen: int = field(default=0)  # processes that the group's memory limit has killed so far

    def join(self, pid: int) -> None:
        """Move a child into the group; it must not have received any code yet, or it could fork before."""
        self._write("cgroup.procs", str(pid))

    def limit(self, request: dict[str, Any]) -> None:
        """Set the limits of one run. Raises OSError if a controller has been taken away."""
        # Written before every run, so that a missing controller is an error and not a run without limits.
        for name, text in limits_of(request).items():
            if name in self.files:
                self._write(name, text)

    def kill(self) -> None:
        """Kill every process in the group, also those that left their session or changed their parent."""
        self._write("cgroup.kill", "1")

    def wait_until_empty(self) -> None:
        """Wait for killed processes to be gone. Raises TimeoutError."""
        poller = select.poll()
        poller.register(self.files["cgroup.events"], select.POLLPRI)
        while "populated 0" not in self._read("cgroup.events"):
            if not poller.poll(1000 * EMPTY_S):
                raise TimeoutError(f"processes of a killed control group are left after {EMPTY_S} s")

    def ran_out_of_memory(self) -> bool:
        """Return True if the memory limit has killed a process since the last call."""
        previous_kills, self.oom_kills_seen = self.oom_kills_seen, oom_kills(self._read("memory.events"))
        return self.oom_kills_seen > previous_kills

    def _write(self, name: str, text: str) -> None:
        os.pwrite(self.files[name], text.encode("ascii"), 0)

    def _read(self, name: str) -> str:
        return os.pread(self.files[name], 4096, 0).decode("ascii")


def limits_of(request: dict[str, Any]) -> dict[str, str]:
    """Return the control files of a run of `children` processes, each with a core, its threads and its memory."""
    count = request["children"]
    megabytes = count * int(request["memory_mb"]) + int(request["folder_mb"]) + OWN_MB
    return {
        "memory.max": str(megabytes << 20),
        "memory.swap.max": "0",
        "pids.max": str(count * MAX_THREADS),
        "cpu.max": f"{count * PERIOD_US} {PERIOD_US}",
    }


def oom_kills(events: str) -> int:
    """Return the count in the text of `memory.events`, which has a line such as `oom_kill 3`."""
    return next(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))


def open_group(folder: str) -> Group:
    """Open the group of this folder. Raises OSError if it lacks one of `CONTROLS`: cgroup.kill needs Linux 5.14."""
    files = {name: os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC) for name in CONTROLS}
    for name in OPTIONAL:
        with contextlib.suppress(FileNotFoundError):
            files[name] = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    return Group(files | {name: os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in EVENTS})
