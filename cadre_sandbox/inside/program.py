"""A job of kind `program`: run source text as `__main__`, with stdin and stdout, as `python file.py` would."""

import builtins
import functools
import linecache
import os
import site
import socket
import sys
import traceback
import types
from importlib.machinery import SourceFileLoader
from typing import Any

from .boundary import Returned, attempt

FILE_NAME = "<program>"
PRELUDE_NAME = "<prelude>"  # of trusted source text that runs before the program
ARGUMENTS_NAME = "<arguments>"  # of trusted source text that makes the arguments of a call
PATH = "/program.py"
MAX_ERROR_LINES = 60


def run(job: dict[str, Any], peer: socket.socket | None) -> None:
    """Run `job["program"]`, after the trusted `job["prelude"]` if there is one. Raises whatever the program raises.

    The two are compiled apart, so that the program's lines count from 1.
    """
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=PATH,
        __loader__=SourceFileLoader("__main__", PATH),
    )
    sys.modules["__main__"] = module  # as dataclasses and pickle expect
    sys.argv = [PATH]
    names = module.__dict__
    if prelude := job.get("prelude"):
        execute(prelude, PRELUDE_NAME, names)
    execute(job["program"], FILE_NAME, names)


def prepare() -> None:
    """Add the built-ins that an interpreter gets from `site` (exit, copyright, help); the warm parent does it once."""
    site.setquit()
    site.setcopyright()
    site.sethelper()


def execute(source: str, name: str, namespace: dict[str, Any]) -> None:
    """Compile and run source text; its lines show in tracebacks under `name`."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec", dont_inherit=True), namespace)  # noqa: S102 - behind the layers, what it is for


def hide_arguments(trace: types.TracebackType | None) -> None:
    """Cut the frames of trusted functions, which the program was given as arguments, from the end of a traceback."""
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename == ARGUMENTS_NAME:
            trace.tb_next = None
        trace = trace.tb_next


def print_error(error: BaseException) -> None:
    """Report the error without the frames of this package: by the program's excepthook, or in a few lines on stderr."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(os.path.dirname(__file__)):
        trace = trace.tb_next
    hide_arguments(trace)
    if sys.excepthook is not sys.__excepthook__:
        attempt(lambda: sys.excepthook(type(error), error, trace))
        return
    format_trace = functools.partial(traceback.format_exception, limit=-MAX_ERROR_LINES, chain=False)
    outcome = attempt(lambda: format_trace(type(error), error, trace))
    lines = outcome.value if isinstance(outcome, Returned) else [f"{type(error).__name__}\n"]
    os.write(2, "".join(lines).encode("utf-8", "backslashreplace"))
