"""Turn the end of a child (exit status, signal, times and outputs) into a status."""

from cadre_sandbox.inside.child import EXIT_MEMORY
from cadre_sandbox.records import Limits, Result, Status
from cadre_sandbox.worker import Ending

SIGXCPU, SIGXFSZ = 24, 25


def result_of(ending: Ending, limits: Limits) -> Result:
    """Return the public record of how a program ended."""
    status = status_of(ending, limits)
    text = [part[: limits.output_bytes].decode("utf-8", "replace") for part in (ending.stdout, ending.stderr)]
    return Result(status, text[0], text[1] or ending.error, ending.wall_s, ending.cpu_s, ending.layers)


def status_of(ending: Ending, limits: Limits) -> Status:
    """Return the status that the exit status, the signal, the times and the size of the outputs add up to."""
    # The order matters: a program that is out of CPU time may also have flooded its output, and reports one reason.
    if ending.cpu_s > limits.cpu_s or ending.killed == "cpu" or ending.code == -SIGXCPU:
        return "timeout"
    if ending.killed == "wall":
        return "wall"
    if ending.code == -SIGXFSZ or max(len(ending.stdout), len(ending.stderr)) > limits.output_bytes:
        return "flood"
    if ending.code == EXIT_MEMORY or ending.killed == "memory":
        return "oom"
    if ending.code < 0:
        return "killed"
    return "ok" if ending.code == 0 else "error"
