"""Running programs: fork servers, processes and containers, their ends, and the detection that a program is blocked.

A fork server (`inside/cadre_fork_server.py`) is one process for each way to start programs. It imports the program
once, forks its instances, and kills whatever they leave behind. Everything here runs in the endpoint's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from cadre.errors import ConfigError, NotStarted, ProgramFailed, ReplayDiverged, SandboxUnavailable
from cadre.file_limits import MIB, read_text
from cadre_programs import inside
from cadre_programs.containers import PROGRAM_USER, START_S, TAR_OVERHEAD, Container, find_runtime
from cadre_programs.sessions import FOLDER
from cadre_programs.settings import InstanceLimits, LaunchSpec

INSIDE = Path(inside.__file__).parent
STARTUP = INSIDE / "startup"
# Bytes of output that are quoted in an error, of a result, and of the last line of output that may be one.
QUOTED_OUTPUT = 2_000
MAX_RESULT_BYTES = 16 * MIB
MAX_LAST_LINE = 1 << 20
# Seconds for which a list of all processes is used.
PROCESS_LIST_S = 0.02

# Telemetry that agent frameworks send unless it is forbidden, some of which block on it at their end; and a list of
# prices that LiteLLM fetches when it is imported.
NO_TELEMETRY = {
    "AGNO_TELEMETRY": "false",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
}
# The key of clients that a program makes while it is imported. Which instance calls with it is known by its connection.
IMPORT_KEY = "cadre-imported-client"
# The descriptor of the folder that caches are in while a program is imported; in an instance it is one of its own.
CACHE_DESCRIPTOR = 199
# Variables with paths of the host, which a container does not get.
HOST_CACHES = ("HF_HUB_CACHE", "HF_TOKEN_PATH", "DATA_GYM_CACHE_DIR")
NO_PROXY = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")


def endpoint_variables(url: str, key: str) -> dict[str, str]:
    """Return the variables in which clients find the endpoint of this server and their key."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_AUTH_TOKEN": key,  # the user's own would be sent beside it
    }


def cache_variables(folder: str) -> dict[str, str]:
    """Return the variables that put caches into a folder: an answer from a cache that instances share is no call.

    Hugging Face's hub and tiktoken keep their own folders: they hold files by their content, which every instance would
    load anew. Tiktoken's is named by its second variable: libraries that bring its tables set the first where nobody
    has.
    """
    home = Path.home()
    hub_home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or home / '.cache'}/huggingface"
    return {
        "XDG_CACHE_HOME": folder,
        "DSPY_CACHEDIR": f"{folder}/dspy",
        "LITELLM_CACHE_DIR": f"{folder}/litellm",
        "JOBLIB_CACHE_DIR": f"{folder}/joblib",
        "JOBLIB_TEMP_FOLDER": folder,
        "PIP_CACHE_DIR": f"{folder}/pip",
        "HF_HOME": f"{folder}/huggingface",
        "HF_HUB_CACHE": os.environ.get("HF_HUB_CACHE") or f"{hub_home}/hub",
        "HF_TOKEN_PATH": os.environ.get("HF_TOKEN_PATH") or f"{hub_home}/token",
        "DATA_GYM_CACHE_DIR": os.environ.get("DATA_GYM_CACHE_DIR") or f"{tempfile.gettempdir()}/data-gym-cache",
    }


class Stuck(ProgramFailed):
    """The program made no call for too long, model time left out, or made too many."""


class ProgramDiverged(ProgramFailed, ReplayDiverged):
    """A program that was started again and got the same answers made another call."""


@dataclass(frozen=True)
class ProgramResult:
    """The end of a program: the value that it returned, or an error.

    unread   the last line that a command printed, if that is no JSON value
    """

    value: Any = None
    error: str = ""
    unread: str = ""


# Detection of blocked programs
#
# A decision consists of all calls that wait at the same time, so the program has to be blocked before the calls are
# taken: otherwise timing would decide which calls belong together. A program is blocked once all its threads sleep and
# none has used processor time between two looks. A thread that sleeps on purpose, or waits for another server, looks
# the same; what it calls later is a later decision.

# State and nanoseconds on a processor, by thread id.
ThreadActivity = dict[int, tuple[str, str]]


def read_activity(pids: Iterable[int]) -> ThreadActivity:
    """Return the activity of every thread of these processes."""
    threads: ThreadActivity = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for name in names:
            task = f"/proc/{pid}/task/{name}"
            state = _read_proc(f"{task}/stat").rpartition(")")[2].split(maxsplit=1)
            threads[int(name)] = (state[0] if state else "X"), _read_proc(f"{task}/schedstat").partition(" ")[0]
    return threads


def is_asleep(threads: ThreadActivity) -> bool:
    """Return True if no thread runs or is ready to run; threads that are gone do neither."""
    return all(state in "SZXIT" for state, _ in threads.values())


def _read_proc(path: str) -> str:
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except OSError:
        return ""


class ProcessTable:
    """The parents of all processes, read at most every `PROCESS_LIST_S` seconds however many instances need them."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._read_at = -1.0

    def process_tree(self, root: int) -> list[int]:
        """Return the ids of a process and all its descendants, the process first."""
        if time.monotonic() - self._read_at > PROCESS_LIST_S or root not in self._parents:
            self._parents = {}
            for name in os.listdir("/proc"):
                if name.isdecimal() and (stat := _read_proc(f"/proc/{name}/stat")):
                    self._parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
            self._read_at = time.monotonic()
        children: dict[int, list[int]] = {}
        for pid, parent in self._parents.items():
            children.setdefault(parent, []).append(pid)
        tree = [root]
        for pid in tree:
            tree += children.get(pid, [])
        return tree


def find_process(client_port: int, server_port: int, pids: Iterable[int]) -> int | None:
    """Return which of these processes has the connection from one port of this machine to another; None if none."""
    inode = ""
    local, remote = f"0100007F:{client_port:04X}", f"0100007F:{server_port:04X}"
    for line in _read_proc("/proc/net/tcp").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[1] == local and fields[2] == remote:
            inode = fields[9]
    if not inode or inode == "0":
        return None
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") == f"socket:[{inode}]":
                        return pid
    return None


# Running programs


class RunningProgram(Protocol):
    """A program that was started. `ended` is done once it has ended; `folder` is its own to write in, and all of its
    folders are in `root`."""

    ended: asyncio.Future[ProgramResult]
    folder: Path
    root: Path

    def threads(self) -> ThreadActivity:
        """Return the activity of its threads."""

    def processes(self) -> int:
        """Return the number of its processes."""

    def copy_folder(self, target: Path) -> None:
        """Copy what is in `folder` into an empty one, from which another instance can start."""

    def kill(self) -> None:
        """End it with all that it started, and remove its folder. May be called more than once."""


class ProgramProcess:
    """A process of a fork server.

    root      holds `folder`, where the program works, and `control`, where its task, output and result are
    kill_it   sends the fork server the order
    """

    def __init__(self, table: ProcessTable, root: Path, kill_it: Callable[[], None]) -> None:
        self.ended: asyncio.Future[ProgramResult] = asyncio.get_running_loop().create_future()
        self.root, self.folder, self.control = root, root / "work", root / "control"
        self.caches, self.temporary = root / "caches", root / "tmp"
        self.pid = 0
        self._table, self._kill_it = table, kill_it

    def threads(self) -> ThreadActivity:
        return read_activity(self._table.process_tree(self.pid))

    def processes(self) -> int:
        return len(self._table.process_tree(self.pid))

    def copy_folder(self, target: Path) -> None:
        shutil.copytree(self.folder, target, symlinks=True, dirs_exist_ok=True)

    def kill(self) -> None:
        if not self.ended.done():
            self._kill_it()
        shutil.rmtree(self.root, ignore_errors=True)

    def end(self, status: int) -> None:
        """Take in the end that the fork server reports: an exit code, or minus a signal."""
        if not self.ended.done():
            # A function's result is in a file. The program can write there too, so it may be too long or no JSON.
            path, text = self.control / "result.json", None
            if path.is_file():
                with contextlib.suppress(OSError, ValueError):
                    text = read_text(path, MAX_RESULT_BYTES)
            output = _read_end(self.control / "output.txt", MAX_LAST_LINE)
            errors = _read_end(self.control / "errors.txt", QUOTED_OUTPUT)
            self.ended.set_result(make_result(status, text, output, errors))


def make_result(status: int, text: str | None, output: str, errors: str) -> ProgramResult:
    """Return the result of a program by its exit code or minus its signal, and what it left: the JSON text of a
    function's result, and the ends of standard output and standard error. All of them may be anything."""
    quoted = "\n".join(filter(None, [output[-QUOTED_OUTPUT:].rstrip(), errors[-QUOTED_OUTPUT:].rstrip()]))
    result = None
    if text is not None:
        with contextlib.suppress(ValueError, RecursionError):
            result = json.loads(text)
    if isinstance(result, dict):
        error = f"{result['error']}\n{quoted}".rstrip() if "error" in result else ""
        return ProgramResult(result.get("value"), error)
    if status:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        return ProgramResult(error=f"the program {how}\n{quoted}".rstrip())

    # A command's result is the last line that it prints.
    last_line = output.rstrip().rpartition("\n")[2]
    value = None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(last_line)
    return ProgramResult(value, unread="" if value is not None or last_line.strip() in ("", "null") else last_line)


def _read_end(path: Path, length: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - length))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


# Fork servers


@dataclass(frozen=True)
class StartOrder:
    """One instance to start.

    task          the task as JSON values
    url, key      the server of the endpoint and the key of the session
    memo          the folder of the results that `cadre_program.memo` keeps; None where it cannot be had
    limits        the resources that it may use
    folder_copy   a folder whose copy it starts in; None for an empty one
    on_root       called with the instance's own folder before its process starts, which may call at once
    """

    task: Mapping[str, Any]
    url: str
    key: str
    memo: Path | None
    limits: InstanceLimits = field(default_factory=InstanceLimits)
    folder_copy: Path | None = None
    on_root: Callable[[Path], None] = lambda root: None


def instance_variables(
    launch: LaunchSpec, order: StartOrder, root: str, host: Mapping[str, str], inside: str = str(INSIDE)
) -> dict[str, str]:
    """Return the variables of an instance whose folders are in `root`, given those of the host that it may see."""
    configured = dict(launch.environment)
    # `cadre_program` comes first in the path, whatever the settings put there.
    path = configured.get("PYTHONPATH", host.get("PYTHONPATH"))
    python_path = [inside, *([path] if path else [])]
    steady = {}
    if launch.clock:
        python_path.insert(0, f"{inside}/{STARTUP.name}")
        steady = {
            "CADRE_CLOCK": launch.clock,
            "CADRE_SEED": hashlib.sha256(json.dumps(order.task, sort_keys=True).encode()).hexdigest(),
            "CADRE_STEADY_SECRETS": "1" if launch.secrets else "0",
        }
    return {
        **NO_TELEMETRY,
        **NO_PROXY,
        **endpoint_variables(order.url, order.key),
        **cache_variables(f"{root}/caches"),
        "TMPDIR": f"{root}/tmp",
        **steady,
        "CADRE_FOLDER": f"{root}/work",
        "CADRE_MEMO": "" if order.memo is None else str(order.memo),
        "CADRE_TASK": f"{root}/control/task.json",
        "CREWAI_STORAGE_DIR": f"{root}/control",
        "PYTHONHASHSEED": "0",
        **configured,
        "PYTHONPATH": os.pathsep.join(python_path),
    }


@dataclass(eq=False)
class ForkServer:
    """The handle of a fork server and its running instances, by name. Made by `start_fork_server`."""

    launch: LaunchSpec
    scratch: Path
    process: asyncio.subprocess.Process
    table: ProcessTable
    running: dict[str, ProgramProcess] = field(default_factory=dict)
    starting: dict[str, asyncio.Future[int]] = field(default_factory=dict)
    listener: asyncio.Task[None] | None = None
    numbers: Any = field(default_factory=itertools.count)

    @property
    def has_ended(self) -> bool:
        """True if the process has ended, as when the kernel kills it for its memory."""
        return self.listener is not None and self.listener.done()

    async def start(self, order: StartOrder) -> ProgramProcess:
        """Fork an instance and return once it has a process. If the caller is cancelled, the instance is killed."""
        name = str(next(self.numbers))
        running = ProgramProcess(self.table, self.scratch / name, lambda: self.send(kill=name))
        order.on_root(running.root)
        running.control.mkdir(parents=True)
        running.temporary.mkdir()
        # What was made in the folder for caches while the program was imported is there in every instance.
        shutil.copytree(self.scratch / "caches", running.caches, symlinks=True)
        if order.folder_copy is None:
            running.folder.mkdir()
        else:
            shutil.copytree(order.folder_copy, running.folder, symlinks=True)

        environment = instance_variables(self.launch, order, str(running.root), os.environ)
        self.running[name] = running
        started = self.starting[name] = asyncio.get_running_loop().create_future()
        self.send(
            start=name,
            task=dict(order.task),
            folder=str(running.folder),
            control=str(running.control),
            caches=str(running.caches),
            environment=environment,
            limits=order.limits.kernel,
        )
        try:
            running.pid = await started
        except BaseException:
            running.kill()
            raise
        return running

    def send(self, **order: Any) -> None:
        """Send an order, a line of JSON."""
        assert self.process.stdin is not None
        if not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps(order).encode() + b"\n")

    async def listen(self) -> None:
        """Take in the reports of the process until it ends, which ends all instances."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            report = json.loads(line)
            if "started" in report:
                started = self.starting.pop(report["started"])
                if not started.done():  # its caller may have been cancelled
                    started.set_result(report["pid"])
            elif "ended" in report:
                self.running.pop(report["ended"]).end(report["status"])
        for started in self.starting.values():
            if not started.done():
                started.set_exception(NotStarted("The process that starts programs has ended."))
        for running in self.running.values():
            running.end(-9)


# Containers

# Where Cadre's files and the endpoint's socket are in a container; `FOLDER` holds the instance's own folders.
CADRE_THERE, SOCKET_THERE = "/cadre_programs/inside", "/cadre/endpoint/socket"
# What a container may need beside the program: processes and threads of `cadre_container.py`, which passes calls on.
OWN_PROCESSES, MAX_CONNECTIONS = 128, 64


class ProgramContainer:
    """A container with one instance. The endpoint is reached through a socket, as a container has no network."""

    def __init__(self, table: ProcessTable, launch: LaunchSpec, root: Path) -> None:
        self.ended: asyncio.Future[ProgramResult] = asyncio.get_running_loop().create_future()
        self.root, self.folder, self.pid = root, Path(FOLDER) / "work", 0
        self._table, self._launch, self._connections = table, launch, 0
        self._has_started, self._server = asyncio.Event(), cast(asyncio.Server | None, None)
        assert launch.container is not None
        mounts = [
            (str(INSIDE), CADRE_THERE),
            (str(root), str(Path(SOCKET_THERE).parent)),
            *((path, path) for path in launch.mounts),
        ]
        limits = {"memory": launch.limits.memory, "processes": launch.limits.processes + OWN_PROCESSES}
        config = launch.container.model_copy(update=limits)
        self._container = Container(config, dict(launch.environment), mounts, FOLDER)

    async def start(self, order: StartOrder) -> None:
        """Return once the instance's process runs. Raises SandboxUnavailable if that fails."""
        try:
            await self._start(order)
        except BaseException:
            self.kill()
            raise

    async def _start(self, order: StartOrder) -> None:
        address = urlsplit(order.url)
        forward = partial(self._forward, str(address.hostname), int(address.port or 0))
        self._server = await asyncio.start_unix_server(forward, self.root / "socket")
        # Another user than ours connects to it.
        os.chmod(self.root / "socket", 0o666)
        os.chmod(self.root, 0o711)
        await self._container.start()
        if order.folder_copy is not None:
            archive = (order.folder_copy / "folder.tar").read_bytes()
            await self._container.execute(["sh", "-c", "mkdir work && tar -C work -xf -"], archive)
        # `cadre_container.py` puts its own port in the place of 0.
        inner_order = replace(order, url="http://127.0.0.1:0", memo=None)
        variables = instance_variables(self._launch, inner_order, FOLDER, {}, CADRE_THERE)
        names = {"folder": "work", "control": "control", "caches": "caches", "temporary": "tmp"}
        message = {
            "task": dict(order.task),
            "environment": {name: value for name, value in variables.items() if name not in HOST_CACHES},
            "limits": {"RLIMIT_CPU": order.limits.cpu},
            **{name: f"{FOLDER}/{folder}" for name, folder in names.items()},
        }
        self._run = asyncio.create_task(self._execute(json.dumps(message).encode()))
        waiting = asyncio.create_task(self._has_started.wait())
        await asyncio.wait([waiting, self._run], return_when=asyncio.FIRST_COMPLETED, timeout=START_S)
        waiting.cancel()
        if not self.pid and not self.ended.done():
            raise SandboxUnavailable(
                "isolation: container: a program's process is not seen from here; expected a runtime on this machine, "
                "in the same namespace of processes. Run Cadre where the containers run."
            )

    async def _execute(self, message: bytes) -> None:
        kind = "function" if self._launch.is_function else "command"
        script = [f"{CADRE_THERE}/cadre_container.py", SOCKET_THERE, kind, *self._launch.words]
        status, code, output, errors = await self._container.execute(
            [self._launch.python or "python3", *script], message, self._container.lifetime_s, 2 * MAX_RESULT_BYTES
        )
        quoted = errors[-QUOTED_OUTPUT:].decode(errors="replace")
        result = ProgramResult(error=f"the program's container ended ({status}, exit code {code})\n{quoted}".rstrip())
        # Whatever runs in the container may have written this.
        with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError, OverflowError):
            report = json.loads(output)
            text = None if report["result"] is None else str(report["result"])
            result = make_result(int(report["status"]), text, str(report["output"]), str(report["errors"]))
        if not self.ended.done():
            self.ended.set_result(result)

    async def _forward(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client in the container with the endpoint. The first one is the instance's process itself."""
        self._connections += 1
        try:
            if not self.pid:
                credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                self.pid = struct.unpack("3i", credentials)[0]
                self._has_started.set()
                await reader.read(1)
            elif self._connections <= MAX_CONNECTIONS:
                upstream, back = await asyncio.open_connection(host, port)
                await asyncio.gather(_pump(reader, back), _pump(upstream, writer))
                back.close()
        except OSError:
            pass
        finally:
            self._connections -= 1
            writer.close()

    def threads(self) -> ThreadActivity:
        return read_activity(self._table.process_tree(self.pid))

    def processes(self) -> int:
        return len(self._table.process_tree(self.pid)) - 1

    def copy_folder(self, target: Path) -> None:
        # The archive stays one: nothing of it is unpacked on the host.
        words = [find_runtime(self._container.config.runtime), "exec", f"--user={PROGRAM_USER}", self._container.name]
        limit = int(self._container.config.disk * MIB * TAR_OVERHEAD)
        with subprocess.Popen(
            [*words, "tar", "-C", str(self.folder), "-cf", "-", "."], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as copying:
            assert copying.stdout is not None
            # The program could stop the command that reads its folder.
            deadline = threading.Timer(START_S, copying.kill)
            deadline.start()
            archive = copying.stdout.read(limit + 1)
            deadline.cancel()
            copying.kill()
        if len(archive) > limit:
            raise ProgramFailed(f"Its folder has more than {limit >> 20} MiB (settings.container.disk).")
        (target / "folder.tar").write_bytes(archive)

    def kill(self) -> None:
        self._container.kill()
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self.root, ignore_errors=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def start_fork_server(launch: LaunchSpec, table: ProcessTable, scratch: Path, url: str) -> ForkServer:
    """Start a fork server and wait until it has imported the program. Raises ConfigError if that fails. A client that
    the program makes while it is imported finds the endpoint at `url` and a key."""
    scratch = Path(tempfile.mkdtemp(dir=scratch))
    process = await asyncio.create_subprocess_exec(
        launch.python or sys.executable,
        str(INSIDE / "cadre_fork_server.py"),
        str(scratch),
        str(CACHE_DESCRIPTOR),
        "function" if launch.is_function else "command",
        *launch.words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={
            **os.environ,
            **NO_TELEMETRY,
            **NO_PROXY,
            # Not the user's own key, and equal hashes in every instance.
            **endpoint_variables(url, IMPORT_KEY),
            **cache_variables(f"/proc/self/fd/{CACHE_DESCRIPTOR}"),
            **({"CADRE_CLOCK": launch.clock, "CADRE_SEED": "import"} if launch.clock else {}),
            "CADRE_STEADY_SECRETS": "1" if launch.secrets else "0",
            "PYTHONHASHSEED": "0",
            **dict(launch.environment),
        },
    )
    assert process.stdout is not None
    report = json.loads(await process.stdout.readline() or b'{"failed": "it ended before it was ready"}')
    if "failed" in report:
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # threads of what it imported may keep it alive
        await process.wait()
        raise ConfigError(f"settings.run: {launch.words[0]} failed to load: {report['failed']}. Fix the file.")
    server = ForkServer(launch, scratch, process, table)
    server.listener = asyncio.create_task(server.listen())
    return server
