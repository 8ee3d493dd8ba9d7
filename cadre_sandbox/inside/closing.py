"""End a program as an interpreter does: wait for threads, call exit functions, flush buffers, run `__del__`.

See `Py_FinalizeEx` in CPython. Modules other than the program's own are not cleared.
"""

import atexit
import gc
import re
import sys
import weakref
from typing import Any

from .boundary import Returned, attempt

EXIT_FLUSH = 120  # an interpreter's exit status if its output could not be written


def close(code: int) -> int:
    """Do what an interpreter does after a program, whether it ended or raised, and return the exit status."""
    attempt(wait_for_threads)
    attempt(atexit._run_exitfuncs)
    # Flush twice: first the program's own streams, then the restored ones, to which a `__del__` method may print.
    written = [attempt(flush)]
    attempt(restore_streams)
    attempt(release_objects)
    written.append(attempt(flush))
    return code if all(isinstance(outcome, Returned) for outcome in written) else code or EXIT_FLUSH


def wait_for_threads() -> None:
    """Wait for the threads and executors of the program, if it imported `threading`."""
    # The warm parent does not import it: the hook that it registers for forks took a seventh of a child's life.
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()


def flush() -> None:
    """Flush stdout and stderr. Raises whatever the program's replacements of them raise."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def restore_streams() -> None:
    """Restore the original streams, in case the program replaced them."""
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__


def release_objects() -> None:
    """Release the program's objects: files that it left open are flushed, and its `__del__` methods run."""
    main = weakref.ref(sys.modules.pop("__main__"))
    gc.collect()
    survivor = main()
    if survivor is None:
        return
    # Something else refers to the module: empty it in the interpreter's order, private names first.
    names = vars(survivor)
    for name in sorted(names, key=lambda name: not re.match("_[^_]", name)):
        if name != "__builtins__":
            names[name] = None
