"""Programs in processes of their own, forked from one that has imported torch and Cadre already.

A new interpreter takes seconds of processor time to import them, a fork of the server next to none. What a program
sees is what `python -c CODE ARGUMENTS` would see: its own arguments, folder, environment and streams, signals with
their default effect, and nothing that a test has patched in this process.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path

import torch

CADRE = "from cadre.cli import main; main()"

PRELOADED = (
    "torch.utils.tensorboard",
    "transformers.models.llama.modeling_llama",
    "cadre.cli.app",
    "cadre.engines.torch",
)
SERVER = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Fork the server from this process, which has imported the same: a new interpreter would take seconds to do so.

    tests/conftest.py calls this when the tests are collected and before any of them runs. What pytest has changed by
    then is put back. Elsewhere than on Linux the server is an interpreter of its own.
    """
    if not Path("/proc/self/fd").exists():
        SERVER.set_forkserver_preload(list(PRELOADED))
        return
    for name in PRELOADED:
        importlib.import_module(name)
    resource_tracker.ensure_running()
    alive, actual = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        address = connection.arbitrary_address("AF_UNIX")
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        if not (pid := os.fork()):
            _serve(listener.detach(), alive)
    os.close(alive)
    state = {"address": address, "alive_fd": actual, "pid": pid}
    vars(forkserver._forkserver).update({f"_forkserver_{name}": value for name, value in state.items()})


def _serve(listener: int, alive: int) -> None:
    """Be the server, in the child, until this process and all that it has forked have ended."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor not in (1, 2, listener, alive):
                os.dup2(nothing, descriptor)  # not closed: what holds the number still would close another's
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        importlib.reload(warnings)  # pytest collects them
        signal.signal(signal.SIGINT, signal.default_int_handler)
        forkserver.main(listener, alive, [])
    finally:
        os._exit(0)


class Forked:
    """A running program, with what is used of subprocess.Popen. Its stdout and stderr are one pipe."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        code: str = CADRE,
        env: Mapping[str, str] | None = None,
        terminal: str | None = None,
    ) -> None:
        """`env` is added to the environment; `terminal` is the path of one that becomes the program's own, with all
        of its streams, instead of the pipe."""
        self.args = list(arguments)
        with tempfile.TemporaryDirectory() as folder:
            output = terminal or f"{folder}/output"
            if terminal is None:
                os.mkfifo(output)
                reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)
                os.set_blocking(reader, True)
                self.stdout = os.fdopen(reader, encoding="utf-8", errors="replace")
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
            passed = (code, self.args, str(cwd), environment, output, terminal is not None, f"{folder}/begun")
            self._process = SERVER.Process(target=_run, args=passed)
            self._process.start()
            deadline = time.monotonic() + 180
            while not os.path.exists(f"{folder}/begun"):  # a pipe that nobody writes to yet is at its end
                assert self.returncode is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return the exit code, the negative number of the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 60.0) -> int:
        """Return the exit code. Raises TimeoutExpired where the program still runs then, and kills it."""
        self._process.join(timeout)
        if self.returncode is None:
            self._process.kill()
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, timeout: float = 60.0) -> tuple[str, None]:
        """Return what it wrote, once it has ended. Raises TimeoutExpired as `wait` does."""
        killer = threading.Timer(timeout, self._process.kill)
        killer.start()
        printed = self.stdout.read()
        killer.cancel()
        self.stdout.close()
        self.wait(timeout)
        return printed, None


def run(
    arguments: Sequence[str], cwd: Path, code: str = CADRE, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Return the exit code of a program, and what it wrote."""
    program = Forked(arguments, cwd, code, env)
    printed, _ = program.communicate()
    return program.wait(), printed


def _run(
    code: str, arguments: list[str], cwd: str, env: dict[str, str], output: str, is_terminal: bool, begun: str
) -> None:
    """Be the program, in the child."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if is_terminal:
        os.setsid()
    stream = os.open(output, os.O_RDWR if is_terminal else os.O_WRONLY)
    if is_terminal:
        fcntl.ioctl(stream, termios.TIOCSCTTY, 0)
    for descriptor in (0, 1, 2) if is_terminal else (1, 2):
        os.dup2(stream, descriptor)
    os.close(stream)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False, buffering=1 if is_terminal else -1)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1, errors="backslashreplace")
    sys.argv = ["-c", *arguments]
    atexit._clear()
    Path(begun).touch()
    status = _status_of(code)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        status = 120  # as Python itself has it
    os._exit(status)


def _status_of(code: str) -> int:
    """Return what an interpreter that runs the code would end with."""
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else 1 if end.code else 0
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0
