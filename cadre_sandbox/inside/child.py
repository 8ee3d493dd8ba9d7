"""One child: forked from the warm parent, it arms its layers, reports them, does one job, and exits.

A job arrives as descriptors only: the file that holds it, then stdin, stdout and stderr, then perhaps a socket to a
second child. The warm parent passes them on unread, so that the memory from which the next child is forked holds
nothing of a run.
"""

import atexit
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import addresses, closing, function, layers, program, repeatable, solution, tester, wire
from .boundary import Raised, Returned, attempt

EXIT_OK, EXIT_ERROR, EXIT_MEMORY, EXIT_NOT_ARMED = 0, 1, 77, 78
# A tool reads its second input from this descriptor. It must fit into a pipe, because nobody reads while it is written.
BESIDE_DESCRIPTOR, PIPE_BYTES = 3, 65_536
STREAMS = (("stdin", "r", "surrogateescape"), ("stdout", "w", "surrogateescape"), ("stderr", "w", "backslashreplace"))
OUT_OF_MEMORY = b"MemoryError: the program used more memory than it may\n"


def external(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Call a function of a preloaded library, for example the comparison of mathematical answers."""
    module, name = job["function"].split(":")
    verdict = getattr(sys.modules[module], name)(**job["arguments"])
    tester.write_verdict(job["nonce"], [verdict])


def tool(job: dict[str, Any], peer: socket.socket | None) -> NoReturn:
    """Execute `job["command"]`, which can read `job["beside"]` (at most PIPE_BYTES) as /dev/fd/3.

    The armed layers stay on and the environment is empty. Raises OSError for a file that the profile does not name.
    """
    if job["beside"]:
        reading, writing = os.pipe()
        os.write(writing, job["beside"].encode()[:PIPE_BYTES])
        os.dup2(reading, BESIDE_DESCRIPTOR)
        os.set_inheritable(BESIDE_DESCRIPTOR, True)
    # Everything else is closed, the writing end too: the tool reads to its end.
    os.closerange(BESIDE_DESCRIPTOR + bool(job["beside"]), layers.OPEN_FILES)
    os.execve(job["command"][0], job["command"], {})


JOBS: dict[str, Callable[[dict[str, Any], socket.socket | None], None]] = {
    "program": program.run,
    "function": function.call,
    "solution": solution.serve,
    "tester": tester.test,
    "external": external,
    "tool": tool,
}


def run_child(channel: socket.socket, armour: layers.Armour) -> NoReturn:
    """Run a child from its fork to its exit; it never returns into its parent's code, whatever goes wrong."""
    try:
        os.setsid()  # a process group of its own, which the parent can kill as one (`parent.kill_session`)
        channel.sendall(arm_and_report(armour, channel.fileno()))
        received = wire.receive(channel)
        channel.close()
        os._exit(work(*received) if received else EXIT_OK)
    finally:
        os._exit(EXIT_NOT_ARMED)


def prepare() -> None:
    """Set up in the warm parent what every child inherits: a program's signals and streams, and an empty atexit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    atexit._clear()
    # Judges print integers of any length, as Python did before 3.11; the limit of CPU time bounds the cost.
    sys.set_int_max_str_digits(0)
    program.prepare()
    # They name descriptors, not files, so the job's files take their place when `work` duplicates them there.
    for number, (name, mode, errors) in enumerate(STREAMS):
        raw: Any = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        stream: Any = io.TextIOWrapper(buffer, "utf-8", errors, newline="\n", line_buffering=name == "stderr")
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def arm_and_report(armour: layers.Armour, keep: int) -> bytes:
    """Arm the layers and return the report of them; it names none if one failed, and then the parent sends no job."""
    try:
        layers.arm(armour, keep)
    except OSError as error:
        return wire.pack({"layers": [], "error": str(error)})
    return armour.hello


def work(request: dict[str, Any], descriptors: list[int]) -> int:
    """Do the job that the descriptors hold and return the exit status."""
    file, *standard = descriptors
    for target, descriptor in enumerate(standard[:3]):
        os.dup2(descriptor, target)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=standard[3]) if len(standard) > 3 else None
    job = json.loads(wire.read_file(file))
    for descriptor in descriptors[:4]:
        os.close(descriptor)
    layers.tighten_self(request)
    if job["kind"] != "tool":  # threads of another executable would take the limit for the size of their stacks
        layers.lift_stack_limit()
    # Last before the program: these depend on every allocation and random draw that precedes them.
    repeatable.seed(job["seed"])
    addresses.take_spare()
    code = exit_code_of(attempt(lambda: JOBS[job["kind"]](job, peer)))
    return closing.close(code) if job["kind"] == "program" else code


def exit_code_of(outcome: Returned[None] | Raised) -> int:
    """Return the exit status of a job's outcome, after printing its exception as an interpreter does."""
    return EXIT_OK if isinstance(outcome, Returned) else report(outcome.error)


def report(error: BaseException) -> int:
    """Print the error to stderr and return its exit status."""
    if isinstance(error, MemoryError):
        error.__traceback__ = None  # releases the frames that hold the memory
        os.write(2, OUT_OF_MEMORY)
        return EXIT_MEMORY
    if isinstance(error, SystemExit):
        if error.code is None:
            return EXIT_OK
        if isinstance(error.code, int):
            return error.code & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return EXIT_ERROR
    program.print_error(error)
    return EXIT_ERROR
