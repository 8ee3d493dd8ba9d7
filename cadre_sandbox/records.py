"""The public records of the sandbox: limits of a run, and its result."""

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "error", "timeout", "wall", "oom", "flood", "killed"]
Level = Literal["process", "confined", "isolated"]
LevelName = Literal["auto", "process", "confined", "isolated"]
Mode = Literal["pool", "cold"]
GroupMode = Literal["auto", "on", "off"]
LEVELS: tuple[Level, ...] = ("process", "confined", "isolated")

# By default a run may take so many times its CPU seconds on the clock, so that a busy machine rarely ends a program.
BACKSTOP = 30.0


@dataclass(frozen=True)
class Limits:
    """The resources that one run may use, for example `Limits(cpu_s=1.0, memory_mb=128)`.

    cpu_s          seconds of CPU time, all threads together. This limit decides, as it is independent of the load.
    wall_s         seconds on the clock, waiting included: ends programs that wait for ever, with the status `wall`.
                   0 allows cpu_s of idling, as in a sleep, and BACKSTOP times cpu_s in total.
    memory_mb      MiB of address space, the interpreter's own 40 included
    output_bytes   bytes of stdout, and as many again of stderr
    folder_mb      MiB of a writable folder, the program's current directory, empty at the start and removed at the
                   end; 0 gives none. Needs level `isolated`.
    """

    cpu_s: float = 2.0
    wall_s: float = 0.0
    memory_mb: int = 256
    output_bytes: int = 65_536
    folder_mb: int = 0

    @property
    def idle_s(self) -> float:
        """Seconds that a program may spend neither computing nor waiting for a core."""
        return self.wall_s or self.cpu_s

    @property
    def clock_s(self) -> float:
        """Seconds on the clock after which a run is ended."""
        return self.wall_s or BACKSTOP * self.cpu_s


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Result:
    """The result of a run, for example `Result("ok", "42\\n", "", 0.003, 0.002, ("rlimits", ..., "seccomp"))`.

    status    ok           it ran to its end
              error        it raised, did not compile, or left with another exit status than 0
              timeout      it used up its CPU time
              wall         it was ended by the clock with CPU time to spare: it waits, or the machine is overloaded
              oom          it asked for more memory than it may have, and did not catch the MemoryError
              flood        it wrote more than `output_bytes`
              killed       a signal ended it (a crash in native code, or too many threads)
    A sandbox that could not run the program raises `SandboxUnavailable` instead.
    stdout, stderr   at most `output_bytes` each; bytes that are not UTF-8 become U+FFFD
    wall_s, cpu_s    seconds
    layers           the layers that the process had armed before it received the program
    """

    status: Status
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    layers: tuple[str, ...]


@dataclass(frozen=True)
class FunctionProgram:
    """A program of which one function is called, for example `FunctionProgram(text, "add", "arguments = (3, 4)")`.

    program     source text that a model wrote
    name        of the function. A method of that name of a class `Solution` will do, and so will the only function
                that the program defines.
    arguments   trusted source text that defines the tuple `arguments`; it may read stdin. The program cannot see it.
    prelude     trusted source text that runs in the program's namespace before it: imports
    """

    program: str
    name: str
    arguments: str
    prelude: str = ""


@dataclass(frozen=True)
class Called:
    """The end of a program whose function was called.

    result     as of any program. Its stdout is what the program printed.
    returned   True if the function returned a plain value: None, numbers, texts, and lists of these
    value      that value; a tuple is a list here
    type       name of the type of a value that is not plain, else empty
    lists      the function's arguments after the call if they are plain lists, else None each: the call may change them
    """

    result: Result
    returned: bool = False
    value: Any = None
    type: str = ""
    lists: tuple[Any, ...] = ()
