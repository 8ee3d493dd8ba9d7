"""Starts programs and leaves none behind: a process of its own, told what to do by JSON lines on its standard input.

    {"start": "7", "task": {...}, "folder": "...", "environment": {...}, "limits": {...}}   a new instance
    {"kill": "7"}                                                                           with all that it started

and it answers `{"ready": true, "threads": 1}`, `{"started": "7", "pid": 4711}`, `{"ended": "7", "status": 0}`.

Run as `python nursery.py SCRATCH function FILE.py:NAME` or `python nursery.py SCRATCH command WORD ...`. A function's
file is imported once; each instance is a fork that calls the function. When the input ends, as it does when Cadre is
killed, everything is killed, and the folder that SCRATCH is in removed. Linux alone: instances that outlive their
parents are found as this process adopts them.
"""

import asyncio
import contextlib
import ctypes
import gc
import importlib.util
import inspect
import json
import os
import resource
import select
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

Order = dict[str, Any]
Run = Callable[[Order], int]
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
libc = ctypes.CDLL(None)


class Nursery:
    """Owns the instances, by process id, and the pipes that it hears and is heard on."""

    def __init__(self, run: Run, orders: int, out: int) -> None:
        self.run, self.orders, self.out = run, orders, out
        self.names: dict[int, str] = {}
        self.keys: dict[int, bytes] = {}
        self.pipe = os.pipe()

    def serve(self) -> None:
        """Until the input ends, or nobody hears the output any more."""
        try:
            self._serve()
        except BrokenPipeError:
            pass
        finally:
            self.kill_all()

    def _serve(self) -> None:
        parent, buffered = os.getppid(), b""
        woken, wake = self.pipe
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while os.getppid() == parent:
            ready, _, _ = select.select([self.orders, woken], [], [], 1.0)
            if woken in ready:
                drain(woken)
            self.reap()
            if self.orders in ready:
                more = os.read(self.orders, 1 << 16)
                if not more:
                    break
                *lines, buffered = (buffered + more).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))

    def tell(self, **message: Any) -> None:
        os.write(self.out, json.dumps(message).encode() + b"\n")

    def obey(self, order: Order) -> None:
        if "kill" in order:
            self.kill([pid for pid, name in self.names.items() if name == order["kill"]])
            return
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for mine in (self.orders, self.out, *self.pipe):
                os.close(mine)
            become(order, self.run)
        self.names[pid] = order["start"]
        self.keys[pid] = order["environment"].get("OPENAI_API_KEY", "").encode()
        self.tell(started=order["start"], pid=pid)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self.names.pop(pid, None)
            if name is not None:
                del self.keys[pid]
                kill_group(pid)
                self.kill_strays()
                self.tell(ended=name, status=os.waitstatus_to_exitcode(status))

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            for below in [*descendants(pid), pid]:
                end(below)
            kill_group(pid)
        self.kill_strays()

    def kill_strays(self) -> None:
        """What an instance left behind is a child of this process that it did not start, and of no instance that runs:
        neither in the session of one nor with its key."""
        for pid, (parent, session) in processes().items():
            if parent == os.getpid() and pid not in self.names and session not in self.names and not self.owned(pid):
                end(pid)

    def owned(self, pid: int) -> bool:
        """Whether a process was given the key of an instance that runs."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                given = file.read()
        except OSError:
            return False
        return any(key and key in given for key in self.keys.values())

    def kill_all(self) -> None:
        signal.set_wakeup_fd(-1)
        for _ in range(3):
            self.kill(list(self.names))
            for pid in descendants(os.getpid()):
                end(pid)


def drain(pipe: int) -> None:
    try:
        while os.read(pipe, 4096):
            pass
    except BlockingIOError:
        pass


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def processes() -> dict[int, tuple[int, int]]:
    """The parent and the session of every process."""
    known = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    _, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
                known[int(name)] = int(parent), int(session)
            except (OSError, ValueError):
                continue
    return known


def descendants(root: int) -> list[int]:
    """All processes below one, the deepest last."""
    below, known = [root], processes()
    for pid in below:
        below += [child for child, (parent, _) in known.items() if parent == pid]
    return below[1:]


def become(order: Order, run: Run) -> None:
    """In the child: what the order asks for, to the end of the process."""
    status = 1
    try:
        settle(order)
        status = run(order)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises ends this process
        report(order, error=f"{type(error).__name__}: {error}")
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def settle(order: Order) -> None:
    """A session of its own, dead with its parent, within its limits, in its folder, with its output in two files."""
    os.setsid()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name, most in order["limits"].items():
        if most:
            resource.setrlimit(getattr(resource, name), (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(order["control"] + "/task.json", "w") as file:
        json.dump(order["task"], file)
    given = os.open(order["control"] + "/task.json", os.O_RDONLY)
    os.dup2(given, 0)
    for number, name in ((1, "output.txt"), (2, "errors.txt")):
        os.dup2(os.open(f"{order['control']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ.update(order["environment"])
    os.chdir(order["folder"])


def report(order: Order, **result: Any) -> None:
    with open(order["control"] + "/result.json", "w") as file:
        json.dump(result, file)


def command(words: list[str]) -> Run:
    """Runs the command in place of the child."""

    def run(order: Order) -> int:
        os.execvpe(words[0], words, os.environ)

    return run


def function(reference: str) -> Run:
    """Calls the function of a file, which is imported here and now with what its client loads, with the task and a
    client where it takes one."""
    path, _, name = reference.rpartition(":")
    main = getattr(user_imports().import_file(path), name)
    importlib.import_module("cadre_warm").warm_up()
    first = client(main) if len(inspect.signature(main).parameters) > 1 else None

    def run(order: Order) -> int:
        arguments = [order["task"]]
        if first is not None:
            told = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
            arguments.append(first.with_options(**told))
        value = main(*arguments)
        if inspect.isawaitable(value):
            value = asyncio.run(finished(value))
        report(order, value=value)
        return 0

    return run


def user_imports() -> Any:
    """How a file of the user's finds its neighbours, as in Cadre's own process; of the standard library alone."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "settings", "user_imports.py")
    spec = importlib.util.spec_from_file_location("cadre_user_imports", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def client(main: Callable[..., Any]) -> Any:
    """OpenAI's own, asynchronous for a coroutine function. Made once, as reading certificates is most of what an
    instance would take to start; it has no connection yet, so that forks may share it."""
    import openai

    kind = openai.AsyncOpenAI if inspect.iscoroutinefunction(main) else openai.OpenAI
    return kind(base_url="http://127.0.0.1:9/v1", api_key="none")


async def finished(value: Awaitable[Any]) -> Any:
    return await value


def start() -> None:
    orders, out = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a file that reads its input while it is imported has none
    os.dup2(2, 1)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Not the words of a program that parses its own.
    (scratch, kind, *words), sys.argv[1:] = sys.argv[1:], []
    try:
        nursery = Nursery(function(words[0]) if kind == "function" else command(words), orders, out)
    except BaseException as error:  # noqa: BLE001 - whatever the file raises is told in one line
        traceback.print_exc()
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if not frame.filename.endswith("user_imports.py")][-1]
        told = f"{type(error).__name__}: {str(error)[:2000]} at line {last.lineno} of {os.path.basename(last.filename)}"
        os.write(out, json.dumps({"failed": told}).encode() + b"\n")
        sys.exit(1)
    gc.collect()
    gc.freeze()
    nursery.tell(ready=True, threads=threading.active_count())
    try:
        nursery.serve()
    finally:
        shutil.rmtree(os.path.dirname(scratch), ignore_errors=True)


if __name__ == "__main__":
    start()
