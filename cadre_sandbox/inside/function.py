"""A job of kind `function`: load a program, call one of its functions, and write the value as plain data.

The value is what the program answers, so nothing is gained by forging it: whoever asked judges the answer elsewhere.
It is written as JSON, and an object of a class that is not built in is never written, whatever it claims to be.
"""

import ast
import json
import os
import signal
import socket
import sys
import types
from collections import deque
from typing import Any

from . import closing
from .boundary import attempt
from .program import ARGUMENTS_NAME, FILE_NAME, PATH, PRELUDE_NAME, execute

MAX_DEPTH = 20
MAX_BITS = 256  # of an integer
SEQUENCES = (list, tuple, deque)


class NotPlainError(TypeError):
    """A value that cannot be written as JSON; its text names the type."""


def call(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Run `job["program"]` as a module and call its function `job["name"]`. Raises whatever the program raises.

    `job["arguments"]` is trusted source text that defines the tuple `arguments`, apart from the program.
    `job["prelude"]` runs in the program's own namespace before it, and does not count in the program's lines.
    """
    writing = os.dup(1)  # whatever the program does to its stdout
    trusted: dict[str, Any] = {"__name__": "arguments"}
    execute(job["arguments"], ARGUMENTS_NAME, trusted)
    arguments = trusted["arguments"]
    # Not `__main__`: code below `if __name__ == "__main__"` is no part of the function.
    names = sys.modules.setdefault("solution", types.ModuleType("solution")).__dict__
    names["__file__"] = PATH
    execute(job["prelude"], PRELUDE_NAME, names)
    names.pop(job["name"], None)
    before = dict(names)
    report_when_out_of_time(job["report_s"], job["program"])
    try:
        execute(job["program"], FILE_NAME, names)
        value = find_function(job["name"], names, before)(*arguments)
    finally:
        attempt(closing.flush)
    signal.setitimer(signal.ITIMER_PROF, 0)
    os.write(writing, f"\n{job['nonce']} {describe_call(value, arguments)}\n".encode("ascii"))


def report_when_out_of_time(seconds: float, source: str) -> None:
    """Have this process write, after so many seconds of CPU time, where the program is, and end as out of CPU time.

    It does not interrupt native code, in which the warm parent ends the program without a report.
    """

    def end(number: int, frame: types.FrameType | None) -> None:
        line = 0
        while frame is not None:
            if frame.f_code.co_filename == FILE_NAME:
                line = frame.f_lineno
            frame = frame.f_back
        attempt(closing.flush)
        place = describe_place(source, line)
        os.write(2, f"TimeoutError: the program was still running after {seconds:g} s{place}\n".encode())
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGXCPU)

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def describe_place(source: str, line: int) -> str:
    """Return ", in the loop that begins in line N" for the outermost loop around a line, else ", in line N"."""
    # The line where the clock stops a program differs from run to run; its outermost loop seldom does.
    loops = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For | ast.While)]
    around = [loop.lineno for loop in loops if loop.lineno <= line <= (loop.end_lineno or line)]
    if around:
        return f", in the loop that begins in line {min(around)}"
    return f", in line {line}" if line else ""


def find_function(name: str, names: dict[str, Any], before: dict[str, Any]) -> Any:
    """Return the function `name` of the program, or its method in a class `Solution`, or the only function that the
    program defines. Raises NameError without one."""
    if callable(names.get(name)):
        return names[name]
    method = getattr(names.get("Solution"), name, None)
    if callable(method):
        return getattr(names["Solution"](), name)
    own = [
        value for key, value in names.items() if isinstance(value, types.FunctionType) and value is not before.get(key)
    ]
    if len(own) == 1:
        return own[0]
    defined = ", ".join(f"`{function.__name__}`" for function in own) or "none"
    raise NameError(f"expected a function `{name}`; the program defines {defined}")


def describe_call(value: Any, arguments: tuple[Any, ...]) -> str:
    """Return the JSON of a call: its plain value or the name of its type, and the lists among the arguments, which the
    call may have changed."""
    try:
        outcome: dict[str, Any] = {"value": to_plain(value)}
    except NotPlainError as error:
        outcome = {"type": str(error)}
    lists: list[Any] = []
    for argument in arguments:
        try:
            lists.append(to_plain(argument) if type(argument) is list else None)
        except NotPlainError:
            lists.append(None)
    return json.dumps({**outcome, "lists": lists})


def to_plain(value: Any, depth: int = 0) -> Any:
    """Return the value in lists, numbers, texts and None. What inherits from these is read past its own methods.

    Raises NotPlainError for anything else: it is not iterated over, as it may be infinite.
    """
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        if value.bit_length() > MAX_BITS:
            raise NotPlainError(f"int of more than {MAX_BITS} bits")
        return value
    for base in SEQUENCES:
        if issubclass(kind, base):
            if depth == MAX_DEPTH:
                raise NotPlainError(f"{base.__name__} nested more than {MAX_DEPTH} deep")
            return [to_plain(item, depth + 1) for item in base.__iter__(value)]
    raise NotPlainError(kind.__name__[:80])
