"""The records that cross the front of the sandbox."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "error", "timeout", "wall", "oom", "flood", "killed"]
Level = Literal["process", "confined", "isolated"]
LevelName = Literal["auto", "process", "confined", "isolated"]
Mode = Literal["pool", "cold"]
GroupMode = Literal["auto", "on", "off"]
LEVELS: tuple[Level, ...] = ("process", "confined", "isolated")


BACKSTOP = 30.0


@dataclass(frozen=True)
class Limits:
    """What one run may use. For example `Limits(cpu_s=1.0, memory_mb=128)`.

    cpu_s          seconds of CPU time, all threads together: what decides, as it does not hang on the machine's load
    wall_s         seconds on the clock, waiting included: the backstop for programs that wait for ever, reported as
                   such. 0 stands for cpu_s of idling, as in a sleep, and BACKSTOP times cpu_s in all
    memory_mb      MiB of address space, the interpreter's own 40 included
    output_bytes   bytes of stdout, and as many again of stderr
    folder_mb      MiB of a writable folder, empty at the start, wiped at the end, the program's current directory;
                   0 gives none. Needs level `isolated`.
    """

    cpu_s: float = 2.0
    wall_s: float = 0.0
    memory_mb: int = 256
    output_bytes: int = 65_536
    folder_mb: int = 0

    @property
    def idle_s(self) -> float:
        """Seconds that a program may spend neither computing nor waiting for its turn to compute."""
        return self.wall_s or self.cpu_s

    @property
    def clock_s(self) -> float:
        """Seconds on the clock after which a run is ended."""
        return self.wall_s or BACKSTOP * self.cpu_s


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Result:
    """How a run ended. For example `Result("ok", "42\\n", "", 0.003, 0.002, ("rlimits", ..., "seccomp"))`.

    status    ok           it ran to its end
              error        it raised, did not compile, or left with another exit status than 0
              timeout      it used up its CPU time
              wall         it was ended by the clock with CPU time to spare: it waits, or the machine is overloaded
              oom          it asked for more memory than it may have, and did not catch the refusal
              flood        it wrote more than `output_bytes`
              killed       a signal ended it (a crash in native code, or too many threads)
    There is none for a sandbox that could not run the program: that is the exception `SandboxUnavailable`.
    stdout, stderr   at most `output_bytes` each; bytes that are not UTF-8 become U+FFFD
    wall_s, cpu_s    seconds
    layers           what the process had armed before it was given the program
    """

    status: Status
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    layers: tuple[str, ...]
