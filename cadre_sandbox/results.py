"""Turn the end of a child (exit status, signal, times and outputs) into a status."""

import json
from dataclasses import replace
from typing import Any

from cadre_sandbox.inside.child import EXIT_MEMORY
from cadre_sandbox.records import Called, Limits, Result, Status
from cadre_sandbox.worker import Ending

SIGXCPU, SIGXFSZ = 24, 25


def result_of(ending: Ending, limits: Limits) -> Result:
    """Return the public record of how a program ended."""
    status = status_of(ending, limits)
    text = [part[: limits.output_bytes].decode("utf-8", "replace") for part in (ending.stdout, ending.stderr)]
    return Result(status, text[0], text[1] or ending.error, ending.wall_s, ending.cpu_s, ending.layers)


def called_of(ending: Ending, nonce: str, limits: Limits) -> Called:
    """Return the public record of a program whose function was called.

    The line with the nonce was written in the program's own process, so it may be anything: it is read as JSON of
    limited size, and whatever has not the expected form counts as no value.
    """
    result = result_of(ending, limits)
    printed, mark, line = result.stdout.rpartition(f"\n{nonce} ")
    result = replace(result, stdout=printed if mark else result.stdout)
    if result.status != "ok" or not mark:
        return Called(result)
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError):
        return Called(result)
    if type(data) is not dict:
        return Called(result)
    lists = data.get("lists")
    changed = tuple(lists) if type(lists) is list else ()
    if "value" in data:
        return Called(result, True, data["value"], lists=changed)
    return Called(result, type=str(data.get("type", "")), lists=changed)


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
