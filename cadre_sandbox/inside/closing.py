"""The end of a program, as an interpreter brings it about: threads, exit functions, buffers, and what `__del__` does.

See `Py_FinalizeEx` in CPython. Leaves out the clearing of modules other than the program's own.
"""

import atexit
import gc
import re
import sys
import weakref
from typing import Any

from .boundary import Returned, attempt

EXIT_FLUSH = 120  # what an interpreter ends with when its output could not be written


def close(code: int) -> int:
    """What an interpreter does after the last line, whether it was reached or not; the exit status."""
    attempt(wait_for_threads)
    attempt(atexit._run_exitfuncs)
    written = [attempt(flush)]
    attempt(restore_streams)
    attempt(let_go)
    written.append(attempt(flush))
    return code if all(isinstance(outcome, Returned) for outcome in written) else code or EXIT_FLUSH


def wait_for_threads() -> None:
    """Wait for what the program started with the module, executors too, if it imported it. The warm parent does not:
    the hook that it registers for forks took a seventh of a child's life.
    """
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()


def flush() -> None:
    """Write out what is buffered. Raises whatever the program has put in place of its streams."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def restore_streams() -> None:
    """Bring the streams of the start back, whatever the program has put in their place."""
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__


def let_go() -> None:
    """Let the program's objects go: files that it left open are written out, and its `__del__` methods run."""
    main = weakref.ref(sys.modules.pop("__main__"))
    gc.collect()
    survivor = main()
    if survivor is None:
        return
    names = vars(survivor)  # something else holds on to it: emptied in an interpreter's order, private names first
    for name in sorted(names, key=lambda name: not re.match("_[^_]", name)):
        if name != "__builtins__":
            names[name] = None
