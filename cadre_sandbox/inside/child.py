"""One child: born of the warm parent, it arms its layers, says so, is given a job, and never returns.

A job arrives as descriptors only: the file that holds it, then stdin, stdout and stderr, then perhaps a socket to a
second child. The warm parent passes them on unread, so that nothing of one run is in the memory that the next child is
forked from.
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

from . import addresses, closing, layers, program, repeatable, solution, tester, wire
from .boundary import Raised, Returned, attempt

EXIT_OK, EXIT_ERROR, EXIT_MEMORY, EXIT_NOT_ARMED = 0, 1, 77, 78
BESIDE, PIPE_BYTES = 3, 65_536  # the descriptor of what a tool reads beside its input, and the most it may be
STREAMS = (("stdin", "r", "surrogateescape"), ("stdout", "w", "surrogateescape"), ("stderr", "w", "backslashreplace"))
OUT_OF_MEMORY = b"MemoryError: the program used more memory than it may\n"


def external(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Call a function of a preloaded library, for example the comparison of mathematical answers."""
    module, name = job["function"].split(":")
    verdict = getattr(sys.modules[module], name)(**job["arguments"])
    tester.write_verdict(job["nonce"], [verdict])


def tool(job: dict[str, Any], peer: socket.socket | None) -> NoReturn:
    """Become the executable of `job["command"]`, which reads `job["beside"]` as /dev/fd/3: some kilobytes at most.
    Whatever is armed stays on, and the environment is empty. Raises OSError for one that the profile does not name."""
    if job["beside"]:
        reading, writing = os.pipe()
        os.write(writing, job["beside"].encode()[:PIPE_BYTES])
        os.dup2(reading, BESIDE)
        os.set_inheritable(BESIDE, True)
    os.closerange(BESIDE + bool(job["beside"]), layers.OPEN_FILES)
    os.execve(job["command"][0], job["command"], {})


JOBS: dict[str, Callable[[dict[str, Any], socket.socket | None], None]] = {
    "program": program.run,
    "solution": solution.serve,
    "tester": tester.test,
    "external": external,
    "tool": tool,
}


def live(channel: socket.socket, armour: layers.Armour) -> NoReturn:
    """The child's whole life; whatever goes wrong, it never returns into its parent's code."""
    try:
        os.setsid()
        channel.sendall(announce(armour, channel.fileno()))
        received = wire.receive(channel)
        channel.close()
        os._exit(work(*received) if received else EXIT_OK)
    finally:
        os._exit(EXIT_NOT_ARMED)


def prepare() -> None:
    """What every child needs and the warm parent can do once: a program's signals and streams, and a clean atexit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    atexit._clear()
    program.prepare()
    open_standard_streams()


def announce(armour: layers.Armour, keep: int) -> bytes:
    """Arm, and say which layers are on; none when one of them failed, and then the parent gives no job."""
    try:
        layers.arm(armour, keep)
    except OSError as error:
        return wire.pack({"layers": [], "error": str(error)})
    return armour.hello


def work(request: dict[str, Any], descriptors: list[int]) -> int:
    """Do the job that the descriptors hold; the exit status."""
    file, *standard = descriptors
    for target, descriptor in enumerate(standard[:3]):
        os.dup2(descriptor, target)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=standard[3]) if len(standard) > 3 else None
    job = json.loads(wire.read_file(file))
    for descriptor in descriptors[:4]:
        os.close(descriptor)
    layers.tighten_self(request)
    repeatable.seed(job["seed"])
    addresses.take_spare()
    code = finished(attempt(lambda: JOBS[job["kind"]](job, peer)))
    return closing.close(code) if job["kind"] == "program" else code


def open_standard_streams() -> None:
    """Text streams over 0, 1 and 2, whatever these become; undecodable bytes and lone surrogates never raise."""
    for number, (name, mode, errors) in enumerate(STREAMS):
        raw: Any = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        stream: Any = io.TextIOWrapper(buffer, "utf-8", errors, newline="\n", line_buffering=name == "stderr")
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def finished(outcome: Returned[None] | Raised) -> int:
    """Print what the job raised, as an interpreter does, and forget it; the exit status."""
    return EXIT_OK if isinstance(outcome, Returned) else report(outcome.error)


def report(error: BaseException) -> int:
    """Print the error to stderr; the exit status that it means."""
    if isinstance(error, MemoryError):
        error.__traceback__ = None  # lets go of the frames that hold the memory
        os.write(2, OUT_OF_MEMORY)
        return EXIT_MEMORY
    if isinstance(error, SystemExit):
        return exit_status(error.code)
    program.print_error(error)
    return EXIT_ERROR


def exit_status(code: object) -> int:
    """What `sys.exit(code)` means for the process."""
    if code is None:
        return EXIT_OK
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return EXIT_ERROR
