"""Forks the instances of a program and leaves none of their processes behind. Standard library only, Linux only.

Orders come as JSON lines on standard input, and reports go out on standard output:

    {"start": "7", "task": {...}, "folder": "...", "environment": {...}, "limits": {...}}   a new instance
    {"kill": "7"}                                                                           with all that it started

    {"ready": true, "threads": 1}    {"started": "7", "pid": 4711}    {"ended": "7", "status": 0}

Run as `python cadre_fork_server.py SCRATCH DESCRIPTOR function FILE.py:NAME` or `... command WORD ...`. The file of a
function is imported once; each instance is a fork that calls the function. DESCRIPTOR is that of the folder for caches,
in an instance of its own one. When the input ends, as it does when Cadre is killed,
every instance is killed, and the folder that SCRATCH is in is removed. This process is a child subreaper: processes
that outlive their parents become its children, so that it finds them.
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
from collections.abc import Callable
from typing import Any

Order = dict[str, Any]
Run = Callable[[Order], int]
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HERE = os.path.dirname(os.path.abspath(__file__))
libc = ctypes.CDLL(None)
cache_descriptor = -1


class InstanceForker:
    """Owns the instances, by process id, and the pipes of orders and reports."""

    def __init__(self, run: Run, orders: int, reports: int) -> None:
        self.run, self.orders, self.reports = run, orders, reports
        self.names: dict[int, str] = {}
        self.keys: dict[int, bytes] = {}
        self.wakeup_pipe = os.pipe()

    def serve(self) -> None:
        """Follow orders until the input ends, or nobody reads the reports any more."""
        try:
            self._follow_orders()
        except BrokenPipeError:
            pass
        finally:
            # Processes that fork while they are killed may take another pass.
            signal.set_wakeup_fd(-1)
            for _ in range(3):
                self.kill(list(self.names))
                for pid in descendants(os.getpid()):
                    kill_process(pid)

    def _follow_orders(self) -> None:
        parent, buffered = os.getppid(), b""
        # A child's end writes to this pipe, and so ends the select.
        wakeup_read, wakeup_write = self.wakeup_pipe
        os.set_blocking(wakeup_write, False)
        os.set_blocking(wakeup_read, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while os.getppid() == parent:
            ready, _, _ = select.select([self.orders, wakeup_read], [], [], 1.0)
            if wakeup_read in ready:
                with contextlib.suppress(BlockingIOError):
                    while os.read(wakeup_read, 4096):
                        pass
            self.reap()
            if self.orders in ready:
                received = os.read(self.orders, 1 << 16)
                if not received:
                    break
                *lines, buffered = (buffered + received).split(b"\n")
                for line in lines:
                    self.follow(json.loads(line))

    def report(self, **message: Any) -> None:
        os.write(self.reports, json.dumps(message).encode() + b"\n")

    def follow(self, order: Order) -> None:
        if "kill" in order:
            self.kill([pid for pid, name in self.names.items() if name == order["kill"]])
            return
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for descriptor in (self.orders, self.reports, *self.wakeup_pipe):
                os.close(descriptor)
            run_instance(order, self.run)
        self.names[pid] = order["start"]
        self.keys[pid] = order["environment"].get("OPENAI_API_KEY", "").encode()
        self.report(started=order["start"], pid=pid)

    def reap(self) -> None:
        """Collect the children that have ended, and report those that are instances."""
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
                self.kill_orphans()
                self.report(ended=name, status=os.waitstatus_to_exitcode(status))

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            for process in [*descendants(pid), pid]:
                kill_process(process)
            kill_group(pid)
        self.kill_orphans()

    def kill_orphans(self) -> None:
        """Kill what ended instances left behind.

        An orphan is a child of this process that is no instance, and belongs to no running one: it is neither in the
        session of one nor has its key among its variables.
        """
        for pid, (parent, session) in read_processes().items():
            is_instance = pid in self.names or session in self.names
            if parent == os.getpid() and not is_instance and not self.has_key_of_instance(pid):
                kill_process(pid)

    def has_key_of_instance(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read()
        except OSError:
            return False
        return any(key and key in variables for key in self.keys.values())


def kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def read_processes() -> dict[int, tuple[int, int]]:
    """Return the parent and the session of every process."""
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    _, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
                processes[int(name)] = int(parent), int(session)
            except (OSError, ValueError):
                continue
    return processes


def descendants(root: int) -> list[int]:
    """Return all processes below one, the deepest last."""
    tree, processes = [root], read_processes()
    for pid in tree:
        tree += [child for child, (parent, _) in processes.items() if parent == pid]
    return tree[1:]


# In the forked child


def run_instance(order: Order, run: Run) -> None:
    """Run the program to the end of this process."""
    status = 1
    try:
        isolate(order)
        status = run(order)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises ends this process
        write_result(order, error=f"{type(error).__name__}: {error}")
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def isolate(order: Order) -> None:
    """Give this process a session of its own, an end with its parent's, its limits, its folder, and files as its input
    and output."""
    os.setsid()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name, limit in order["limits"].items():
        if limit:
            resource.setrlimit(getattr(resource, name), (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(order["control"] + "/task.json", "w") as file:
        json.dump(order["task"], file)
    os.dup2(os.open(order["control"] + "/task.json", os.O_RDONLY), 0)
    for descriptor, name in ((1, "output.txt"), (2, "errors.txt")):
        output = os.open(f"{order['control']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, descriptor)
    use_caches(order["caches"], cache_descriptor)
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["tempdir"] = None


def use_caches(folder: str, descriptor: int) -> None:
    """Let a descriptor be that of the folder. Paths that go through it, in /proc, then lead there."""
    os.makedirs(folder, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(opened, descriptor)
    os.close(opened)


def write_result(order: Order, **result: Any) -> None:
    with open(order["control"] + "/result.json", "w") as file:
        json.dump(result, file, default=plain_scalar)


def plain_scalar(value: Any) -> Any:
    """Return a scalar of numpy or torch as Python's own. Raises TypeError for what is none."""
    if not hasattr(value, "item"):
        raise TypeError(f"{type(value).__name__} is no JSON value")
    return value.item()


# Programs


def prepare_command(words: list[str]) -> Run:
    """Return a function that replaces the child by the command."""

    def run(order: Order) -> int:
        os.execvpe(words[0], words, os.environ)

    return run


def prepare_function(reference: str) -> Run:
    """Import the file of a function and return a function that calls it with the task, and a client if it takes one."""
    path, _, name = reference.rpartition(":")
    main = getattr(import_file(path), name)
    kinds = [parameter.kind for parameter in inspect.signature(main).parameters.values()]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes_client = inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in by_position for kind in kinds) > 1
    if takes_client:
        import openai
    # After the client was imported, here or by the file: it warms up no other.
    importlib.import_module("cadre_client_warmup").warm_up()
    shared_client: Any = None
    if takes_client:
        # Made once, as reading certificates is most of what an instance would take to start. It has no connection yet,
        # so forks may share it.
        is_async = inspect.iscoroutinefunction(inspect.unwrap(main))
        client_type = openai.AsyncOpenAI if is_async else openai.OpenAI
        shared_client = client_type(base_url="http://127.0.0.1:9/v1", api_key="none")

    def run(order: Order) -> int:
        importlib.import_module("cadre_steady").make_steady_by_variables()
        arguments = [order["task"]]
        if shared_client is not None:
            url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
            arguments.append(shared_client.with_options(base_url=url, api_key=key))
        value = main(*arguments)
        if inspect.isawaitable(value):

            async def wait() -> Any:
                return await value

            value = asyncio.run(wait())
        write_result(order, value=value)
        return 0

    return run


def import_file(path: str) -> Any:
    """Import the user's file as `python FILE.py` does: its folder, or that of its outermost package, is first on
    `sys.path`."""
    folder, name = os.path.split(os.path.splitext(os.path.realpath(path))[0])
    is_alone = not os.path.isfile(os.path.join(folder, "__init__.py"))
    if not is_alone:
        sys.path.append(folder)
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        name = package + "." + name
    sys.path.insert(0, folder)
    if not is_alone:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    global cache_descriptor
    # Orders and reports get descriptors of their own: a file that reads or prints while it is imported must not meet
    # them.
    orders, reports = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path.insert(0, HERE)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The program may parse its command line, which is not this one.
    (scratch, caches, kind, *words), sys.argv[1:] = sys.argv[1:], []
    cache_descriptor = int(caches)
    use_caches(os.path.join(scratch, "caches"), cache_descriptor)
    try:
        importlib.import_module("cadre_steady").make_steady_by_variables()
        run = prepare_function(words[0]) if kind == "function" else prepare_command(words)
        forker = InstanceForker(run, orders, reports)
    except BaseException as error:  # noqa: BLE001 - whatever the file raises is reported in one line
        traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        position = f"at line {last.lineno} of {os.path.basename(last.filename)}"
        failure = f"{type(error).__name__}: {str(error)[:2000]} {position}"
        os.write(reports, json.dumps({"failed": failure}).encode() + b"\n")
        sys.exit(1)
    gc.collect()
    gc.freeze()
    forker.report(ready=True, threads=threading.active_count())
    try:
        forker.serve()
    finally:
        shutil.rmtree(os.path.dirname(scratch), ignore_errors=True)


if __name__ == "__main__":
    main()
