"""Containers for programs and tools, by the command line of docker or podman.

    config = ContainerConfig(image="python:3.12-slim", memory=1.0, seconds=20)
    result = await run_in_container(config, ["python3", "-m", "unittest"], make_archive({"test_sum.py": source}))
    files = read_archive((await run_in_container(config, command, archive, collect=True)).archive)

A container has no network, no capability, no new privileges, no variable of this process, a read-only root, a user
other than root, and limits on memory, processes, CPUs, disk, output and time. Its folder and its /tmp are file systems
in its memory, so that nothing is written to the host's disk. Files go in and come out as tar archives through pipes:
nothing is unpacked on the host.

A container outlives nobody: its first process, of another user than the program's, ends when its input closes, as it
does when this process is killed, and in any case after its lifetime. It has labels with the run and the process that
owns it; what is left of dead processes is removed at the next start.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cadre.concurrency import run_coroutine
from cadre.envs.tools import RunnableTool, tool
from cadre.errors import ConfigError, SandboxError, SandboxUnavailable, require_linux
from cadre.rollout.deadlines import in_line
from cadre.types import Task

MIB = 1 << 20
# The user of programs, and that of a container's first process, which programs therefore cannot signal.
PROGRAM_USER, KEEPER_USER = "65534:65534", "65533:65533"
FOLDER = "/workspace"
IMAGE = "[A-Za-z0-9][A-Za-z0-9_.:/@-]*"
# Files of an archive that are read, and bytes of tar's own for each MiB of them.
MAX_FILES, TAR_OVERHEAD = 10_000, 1.25
# Seconds until a container that starts, or a command that asks about one, counts as failed.
START_S, COMMAND_S = 120.0, 60.0
KEEPER = 'exec 3<&0; sleep "$1" & s=$!; { cat <&3 >/dev/null; kill "$s"; } & echo ready; wait "$s"'
# The archive is the input; the command itself has none.
UNPACK_AND_RUN = 'tar -xf - || exit 125; exec "$@" </dev/null'
# What holds inside, as NAME=VALUE lines.
PROBE = r"""echo "user=$(id -u)"
while read -r k v; do case "$k" in CapEff:|CapBnd:|NoNewPrivs:) echo "${k%:}=$v";; esac; done < /proc/self/status
for f in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
  [ -r "$f" ] && echo "memory=$(cat "$f")"; done
for f in /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max; do [ -r "$f" ] && echo "processes=$(cat "$f")"; done
while read -r name rest; do case "$name" in lo:|Inter-*|face) ;; *) echo "interface=$name";; esac
done < /proc/net/dev
(: > /cadre-probe) 2>/dev/null && echo "root=writable"
command -v tar >/dev/null || echo "tar=missing"
"""

Status = Literal["ok", "error", "timeout", "flood", "killed"]

_numbers = itertools.count()
_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
_swept: set[str] = set()
_lock = threading.Lock()


class ContainerConfig(BaseModel):
    """Settings:

    image      the image, unless a task's data has an `image` of its own; it needs sh, tar and sleep
    runtime    auto, docker or podman: the command line; auto takes the first of them that works
    network    true: the runtime's default network; false: none
    memory     GiB, files of the container included; there is no swap
    processes  and threads at once
    cpus       that all of them may use
    disk       MiB of the folder that a program can write, and as much of /tmp
    output     KiB of standard output and of standard error
    seconds    of a command
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str = Field("python:3.12-slim", pattern=f"^{IMAGE}$", max_length=255)
    runtime: str = Field("auto", min_length=1)
    network: bool = False
    memory: float = Field(1.0, ge=0.01, le=4096, allow_inf_nan=False)
    processes: int = Field(64, ge=4, le=100_000)
    cpus: float = Field(1.0, gt=0, le=1024, allow_inf_nan=False)
    disk: int = Field(128, ge=1, le=1 << 20)
    output: int = Field(256, ge=1, le=1 << 20)
    seconds: float = Field(60.0, gt=0, le=86_400)

    def with_image(self, image: Any) -> ContainerConfig:
        """Return the settings with the image of a task. Raises ConfigError for what is no name of one."""
        if not isinstance(image, str) or not re.fullmatch(IMAGE, image):
            raise ConfigError(f"container.image: got {image!r}; expected the name of an image in `image` of the task.")
        return self if image == self.image else self.model_copy(update={"image": image})


@dataclass(frozen=True)
class ContainerResult:
    """The end of a command in a container.

    status    ok, error (another exit code than 0), timeout, flood (too much output, or too many files), or killed
    archive   the folder afterwards as a tar archive, if it was asked for and the command left one; nobody but the
              program vouches for it: pass it on to another container, or read it with `read_archive`
    """

    status: Status
    code: int
    stdout: str
    stderr: str
    archive: bytes | None = None


# Files in and out


def make_archive(files: Mapping[str, str | bytes]) -> bytes:
    """Return a tar archive of these files, equal for equal files. Raises ValueError for paths that leave its folder."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            if not _is_plain_path(name):
                raise ValueError(f"got the path {name!r}; expected a relative one without `..`, such as src/main.py")
            data = _as_bytes(files[name])
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def make_repository(files: Mapping[str, str | bytes]) -> dict[str, str | bytes]:
    """Return the files with a git repository whose one commit has them, the same for equal files."""
    objects: dict[str, str | bytes] = {}

    def store(kind: str, content: bytes) -> bytes:
        data = f"{kind} {len(content)}\0".encode() + content
        digest = hashlib.sha1(data, usedforsecurity=False)
        objects[f".git/objects/{digest.hexdigest()[:2]}/{digest.hexdigest()[2:]}"] = zlib.compress(data)
        return digest.digest()

    def store_tree(prefix: str) -> bytes:
        below = {path.removeprefix(prefix) for path in files if path.startswith(prefix)}
        folders = {path.partition("/")[0] for path in below if "/" in path}
        entries = [(f"{name}/", f"40000 {name}", store_tree(f"{prefix}{name}/")) for name in folders]
        for path in (path for path in below if "/" not in path):
            entries.append((path, f"100644 {path}", store("blob", _as_bytes(files[prefix + path]))))
        # Git sorts folders as if their names ended with a slash.
        return store("tree", b"".join(head.encode() + b"\0" + digest for _, head, digest in sorted(entries)))

    author = "Cadre <cadre@localhost> 1767225600 +0000"
    commit = store("commit", f"tree {store_tree('').hex()}\nauthor {author}\ncommitter {author}\n\nFirst\n".encode())
    refs: dict[str, str | bytes] = {
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/refs/heads/main": f"{commit.hex()}\n",
        ".git/config": "[core]\nrepositoryformatversion = 0\nbare = false\n[user]\nname = Cadre\nemail = c@localhost\n",
    }
    return {**files, **objects, **refs}


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def read_archive(archive: bytes | None, max_bytes: int = 16 * MIB) -> dict[str, bytes]:
    """Return the regular files of an archive that a program left, by path.

    Links, devices, sparse files and files with odd names are left out, and so is whatever follows after `max_bytes` or
    `MAX_FILES`, or where the archive is damaged.
    """
    files: dict[str, bytes] = {}
    damaged = suppress(tarfile.TarError, ValueError, OSError, EOFError)
    with damaged, tarfile.open(fileobj=io.BytesIO(archive or b""), mode="r:") as tar:
        for count, member in enumerate(tar):
            # A sparse file of a few bytes would be read as gigabytes of zeros.
            is_regular = member.isreg() and not member.issparse()
            max_bytes -= member.size if is_regular else 0
            if max_bytes < 0 or count >= MAX_FILES:
                break
            name = member.name.removeprefix("./")
            content = tar.extractfile(member) if is_regular and _is_plain_path(name) else None
            if content is not None:
                files[name] = content.read()
    return files


def _is_plain_path(name: str) -> bool:
    """Return True for a relative path of printable characters that does not leave its folder."""
    parts = name.split("/")
    return name.isprintable() and len(name) <= 1024 and not {"", ".", ".."} & set(parts)


# The runtime


def call_runtime(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a short command of the runtime and return its end; one that hangs counts as failed."""
    try:
        return subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=COMMAND_S, check=False)
    except (subprocess.TimeoutExpired, OSError) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


@lru_cache
def find_runtime(name: str) -> str:
    """Return the path of the runtime's program. Raises ConfigError if there is none that works."""
    faults = []
    for program in ("docker", "podman") if name == "auto" else (name,):
        path = shutil.which(program)
        if path is None:
            faults.append(f"{program} is not on the PATH")
            continue
        end = call_runtime([path, "info"])
        if end.returncode == 0:
            return path
        faults.append(f"{program} info fails ({_last_line(end.stderr)})")
    raise ConfigError(
        f"container.runtime: got {name}, and {'; '.join(faults)}; expected docker or podman that this user may call. "
        "Install podman, which needs no daemon, or start docker's; or choose another isolation."
    )


@lru_cache
def is_podman(runtime: str) -> bool:
    """Return True for podman, whatever its program is called."""
    return "podman" in call_runtime([runtime, "--version"]).stdout


@lru_cache
def require_image(runtime: str, image: str) -> None:
    """Raise ConfigError for an image that is not on this machine: none is pulled in the middle of a run."""
    end = call_runtime([runtime, "image", "inspect", "--format", "{{.Id}}", image])
    if end.returncode:
        raise ConfigError(
            f"container.image: got {image}, which this machine does not have ({_last_line(end.stderr)}); expected one "
            f"that is here, as none is pulled while a run goes on. Run: {os.path.basename(runtime)} pull {image}"
        )


def check_containers(config: ContainerConfig, images: Iterable[str] = ()) -> None:
    """Check that containers work here and confine: to be called before any model loads.

    Removes what dead processes left, looks for the images, and starts one container for a trial of its limits. Raises
    ConfigError if something is missing, and SandboxError for a limit that the runtime does not enforce.
    """
    require_linux(
        "container",
        "the containers of a process that was killed are found by what its kernel says of processes",
        "Run Cadre in a Linux virtual machine.",
    )
    runtime = find_runtime(config.runtime)
    sweep(runtime)
    for image in dict.fromkeys([*images] or [config.image]):
        require_image(runtime, config.with_image(image).image)
    try_limits(config.with_image(next(iter(images), config.image)))


@lru_cache
def try_limits(config: ContainerConfig) -> None:
    result = run_coroutine(run_in_container(config, ["sh", "-c", PROBE]))
    if faults := find_missing_limits(config, result.stdout):
        raise SandboxError(
            f"isolation: container: a trial in {config.image} printed {result.stdout!r} {result.stderr[-300:]!r}; "
            f"expected {', '.join(faults)} to hold. Use a runtime that enforces it (limits need cgroups, for podman "
            "without root those of version 2) and an image with sh, tar, sleep and id."
        )


def find_missing_limits(config: ContainerConfig, printed: str) -> list[str]:
    """Return the names of the limits that do not hold in a container, by what `PROBE` printed there."""
    got = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    capabilities, memory = got.get("CapEff", "1") + got.get("CapBnd", "1"), got.get("memory", "")
    holds = {
        "the user": got.get("user") == PROGRAM_USER.partition(":")[0],
        "dropped capabilities": not capabilities.strip("\t 0"),
        "no-new-privileges": got.get("NoNewPrivs", "").strip() == "1",
        "the memory limit": memory.isdigit() and int(memory) <= config.memory * 1024 * MIB,
        "the limit of processes": got.get("processes") == str(config.processes),
        "the read-only root": "root" not in got,
        "no network": config.network or "interface" not in got,
        "tar in the image": "tar" not in got,
    }
    return [name for name, is_held in holds.items() if not is_held]


def owner_label() -> str:
    """Return this process as `BOOT-NAMESPACE-PID-START`, which no other process ever is."""
    return f"{_machine()}-{os.getpid()}-{_start_time(os.getpid())}"


@lru_cache
def _machine() -> str:
    """Return the boot of this machine and the namespace of its process ids, as the runtime may serve several."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip().replace('-', '')[:16]}-{os.stat('/proc/self/ns/pid').st_ino}"


def _start_time(pid: int) -> str:
    """Return when a process started, in ticks since the boot; nothing if it is gone."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="latin-1") as file:
        fields = file.read().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


def sweep(runtime: str, again: bool = False) -> list[str]:
    """Remove the containers whose owner is gone, once for each process; return their ids."""
    with _lock:
        if runtime in _swept and not again:
            return []
        _swept.add(runtime)
    ids = call_runtime([runtime, "ps", "--all", "--quiet", "--filter", "label=cadre.owner"]).stdout.split()
    if not ids:
        return []
    form = '{{.Id}} {{index .Config.Labels "cadre.owner"}}'
    abandoned = []
    for line in call_runtime([runtime, "inspect", "--format", form, *ids]).stdout.splitlines():
        name, _, owner = line.partition(" ")
        machine, _, process = owner.strip().rpartition("-")[0].rpartition("-")
        start = owner.strip().rpartition("-")[2]
        if machine == _machine() and process.isdigit() and _start_time(int(process)) != start:
            abandoned.append(name)
    if abandoned:
        # First, as podman gives what it removes ten seconds to end.
        call_runtime([runtime, "kill", *abandoned])
        call_runtime([runtime, "rm", "--force", *abandoned])
    return abandoned


# Running


class _TooMuch(Exception):
    """A stream has more bytes than it may have."""


@dataclass(eq=False)
class Container:
    """A running container, from `start` to `close`. It belongs to the event loop that started it.

    environment   its variables
    mounts        (path here, path there) of what it can read of the host
    lifetime_s    seconds after which it ends by itself
    """

    config: ContainerConfig
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[tuple[str, str]] = ()
    folder: str = FOLDER
    lifetime_s: int = 86_400
    name: str = field(default_factory=lambda: f"cadre-{os.getpid()}-{next(_numbers)}-{secrets.token_hex(4)}")
    process: asyncio.subprocess.Process | None = None
    _end: asyncio.Task[None] | None = None

    def run_words(self) -> list[str]:
        """Return the command that starts it."""
        config, runtime = self.config, find_runtime(self.config.runtime)
        memory = f"{int(config.memory * 1024)}m"
        files = f"rw,exec,nosuid,nodev,size={config.disk}m,mode=1777"
        own_options: list[str] = []
        if is_podman(runtime):
            # Podman would give the folder the image's permissions, and hand on proxies with their passwords.
            files += ",notmpcopyup"
            own_options = ["--read-only-tmpfs=false", "--http-proxy=false", "--image-volume=ignore"]
        proxies = [f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "FTP", "ALL", "NO")]
        variables = (
            dict.fromkeys([*proxies, *map(str.lower, proxies)], "") | {"HOME": self.folder} | dict(self.environment)
        )
        run = re.sub(r"[^\w.-]", "_", os.environ.get("CADRE_RUN", ""))[:128]  # empty outside of a training
        return [
            *(runtime, "run", "--rm", "--interactive", "--pull=never", f"--name={self.name}"),
            *(f"--label=cadre.run={run}", f"--label=cadre.owner={owner_label()}"),
            *([] if config.network else ["--network=none"]),
            *("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--user={KEEPER_USER}"),
            *(f"--memory={memory}", f"--memory-swap={memory}", f"--pids-limit={config.processes}"),
            *(
                f"--cpus={config.cpus:g}",
                "--ulimit=core=0:0",
                "--ulimit=nofile=1024:1024",
                "--shm-size=16m",
                "--log-driver=none",
            ),
            *(f"--tmpfs={self.folder}:{files}", f"--tmpfs=/tmp:{files}"),
            # Without it SELinux hides mounted files, which would have to be labelled anew.
            *(["--security-opt=label=disable"] if self.mounts else []),
            *(f"--mount=type=bind,source={source},target={target},readonly" for source, target in self.mounts),
            *(f"--env={name}={value}" for name, value in variables.items()),
            *("--hostname=sandbox", "--workdir=/", "--no-healthcheck", "--entrypoint=sh", *own_options),
            *(config.image, "-c", KEEPER, "keeper", str(self.lifetime_s)),
        ]

    async def start(self) -> None:
        """Start it. Raises SandboxUnavailable if it does not start, which is no fault of a program."""
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*self.run_words(), stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                line = await self.process.stdout.readline()
        if line != b"ready\n":
            await self.close()
            fault = (await self.process.stderr.read(64_000)).decode(errors="replace")
            raise SandboxUnavailable(
                f"a container of {self.config.image} did not start ({_last_line(fault)}); expected it to. See whether "
                f"`{os.path.basename(find_runtime(self.config.runtime))} run` works, and whether the image has sh."
            )

    async def execute(
        self, command: Sequence[str], stdin: bytes = b"", seconds: float = 0.0, max_bytes: int = 0
    ) -> tuple[Status, int, bytes, bytes]:
        """Run a command as the program's user; return its status, exit code, output and errors. A command that takes
        too long, or prints too much, is killed with the container."""
        runtime = find_runtime(self.config.runtime)
        words = [runtime, "exec", "--interactive", f"--user={PROGRAM_USER}", f"--workdir={self.folder}", self.name]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, *command, stdin=pipe, stdout=pipe, stderr=pipe)
        limit = max_bytes or 1024 * self.config.output
        output, errors = bytearray(), bytearray()
        status: Status = "ok"
        try:
            try:
                async with asyncio.timeout(seconds or self.config.seconds), asyncio.TaskGroup() as streams:
                    streams.create_task(_feed(process, stdin))
                    streams.create_task(_read(process.stdout, output, limit))
                    streams.create_task(_read(process.stderr, errors, limit))
                    streams.create_task(process.wait())
            except* _TooMuch:
                status = "flood"
        except TimeoutError:
            status = "timeout"
        finally:
            if process.returncode is None or status != "ok":
                # Its pipes too, which whatever it started may hold open.
                process._transport.close()  # type: ignore[attr-defined]
                self.kill()
        code = process.returncode or 0
        if status == "ok" and code:
            has_ended = self.process is None or self.process.returncode is not None
            status = "killed" if has_ended or code > 128 else "error"
        return status, code, bytes(output), bytes(errors)

    async def read_folder(self) -> bytes | None:
        """Return its folder as an archive; None if that is too large or takes too long."""
        limit = int(self.config.disk * MIB * TAR_OVERHEAD)
        status, _, archive, _ = await self.execute(["tar", "-cf", "-", "."], max_bytes=limit)
        return archive if status in ("ok", "error") and archive else None

    def kill(self) -> None:
        """End it with all that runs in it, without waiting for that. May be called more than once."""
        if self.process is not None and self._end is None:
            self._end = asyncio.get_running_loop().create_task(self._kill(self.process))

    async def close(self) -> None:
        """End it with all that runs in it, and wait until it is removed."""
        self.kill()
        if self._end is not None:
            await asyncio.shield(self._end)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            quiet = asyncio.subprocess.DEVNULL
            words = [find_runtime(self.config.runtime), "kill", self.name]
            killing = await asyncio.create_subprocess_exec(*words, stdin=quiet, stdout=quiet, stderr=quiet)
            with suppress(TimeoutError):
                async with asyncio.timeout(COMMAND_S):
                    await killing.wait()
                    await process.wait()


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader | None, into: bytearray, limit: int) -> None:
    """Read a stream to its end. Raises _TooMuch if it has more bytes than the limit."""
    assert stream is not None
    while chunk := await stream.read(1 << 16):
        is_too_much = len(into) + len(chunk) > limit
        into += chunk[: limit - len(into)]
        if is_too_much:
            raise _TooMuch


async def run_in_container(
    config: ContainerConfig, command: Sequence[str], archive: bytes = b"", collect: bool = False
) -> ContainerResult:
    """Run a command in a new container, in a folder with the files of an archive, and return its end.

    With `collect` the result has the folder as the command left it. The time that it takes to get a container does not
    count towards an episode's deadline. Raises SandboxUnavailable if it cannot be had.
    """
    loop = asyncio.get_running_loop()
    with _lock:
        slots = _slots.setdefault(loop, asyncio.Semaphore(2 * (os.cpu_count() or 1)))
    container = Container(config, lifetime_s=int(3 * config.seconds + START_S))
    with in_line():
        await asyncio.to_thread(find_runtime, config.runtime)
        await slots.acquire()
    try:
        with in_line():
            await container.start()
        words = ["sh", "-c", UNPACK_AND_RUN, "sh", *command] if archive else list(command)
        status, code, output, errors = await container.execute(words, archive)
        folder = await container.read_folder() if collect and status in ("ok", "error") else None
        if collect and status in ("ok", "error") and folder is None:
            status = "flood"
        return ContainerResult(status, code, output.decode(errors="replace"), errors.decode(errors="replace"), folder)
    finally:
        slots.release()
        await asyncio.shield(container.close())


class ContainerShell:
    """A shell in a container as a tool, an entry of `Env.tools`: `tools = {"coder": [ContainerShell(seconds=20)]}`.

    Each command has a container of its own, with the files that the last one left, so a fork has its own files. A
    task's data may have the `image` and, as texts by path, the `files` that the first command finds. `files` are those
    of all tasks; `git` makes all of them a repository with one commit (the index is empty: begin with `git reset`).
    Further settings are those of `ContainerConfig`.
    """

    def __init__(self, files: Mapping[str, str | bytes] | None = None, git: bool = False, **settings: Any) -> None:
        self.config, self.files, self.git = ContainerConfig(**settings), dict(files or {}), git
        self.archive = make_archive(self.files)

    def __repr__(self) -> str:
        return f"ContainerShell({self.config.image!r})"

    def check(self) -> None:
        """Raise ConfigError if there is no runtime or image, and SandboxError if a limit does not hold."""
        check_containers(self.config)

    def begin(self, task: Task) -> None:
        """Take the image and the files of an episode's task."""
        self.config = self.config.with_image(task.data.get("image", self.config.image))
        files = {**self.files, **task.data.get("files", {})}
        self.archive = make_archive(make_repository(files) if self.git else files)

    def runnable_tools(self) -> Iterator[RunnableTool]:
        """Yield the one tool."""
        yield tool(self.run_command)

    def close(self) -> None:
        """Release nothing: no container outlives its command."""

    async def run_command(self, command: str) -> str:
        """Run a command of the shell in the working folder; return its output and how it ended.

        Args:
            command: such as "ls -l" or "python3 -m unittest"
        """
        result = await run_in_container(self.config, ["sh", "-c", command], self.archive, collect=True)
        # A command that was ended leaves the files as they were.
        if result.archive is not None:
            self.archive = result.archive
        ends = {
            "ok": "",
            "timeout": f"Error: the command did not end within {self.config.seconds:g} s.",
            "flood": "Error: the command printed or wrote too much.",
        }
        end = ends.get(result.status, f"[exit code {result.code}]")
        return "\n".join(filter(None, (end, result.stdout, result.stderr)))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1][:300]
