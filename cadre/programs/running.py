"""A program that runs: in a process of its own, or in a thread of this one.

Everything here is the endpoint's loop's."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cadre.errors import ConfigError
from cadre.file_limits import MIB, read_text
from cadre.programs import standstill
from cadre.programs.standstill import Activity
from cadre.settings.user_code import load_function

TOLD = 2_000
MOST_RESULT = 16 * MIB  # bytes of what a program returns
LAST_LINE = 1 << 20


@dataclass(frozen=True)
class Ended:
    """How a program ended: the value that it returned, or what went wrong; or `unread`, what it printed last in place
    of a value."""

    value: Any = None
    error: str = ""
    unread: str = ""


class Running(Protocol):
    """A program that was started. `ended` is done once it has ended; `folder` is its own, to write in."""

    ended: asyncio.Future[Ended]
    folder: Path

    def threads(self) -> Activity:
        """What its threads are at."""
        ...

    def processes(self) -> int:
        """How many it has."""
        ...

    def kill(self) -> None:
        """End it with all that it started, and remove its folder. May be called more than once."""
        ...


class InProcess:
    """A process of a nursery, which tells of its end."""

    def __init__(self, table: standstill.ProcessTable, place: Path, kill: Any) -> None:
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.place, self.folder, self.control = place, place / "work", place / "control"
        self.pid = 0
        self._table, self._kill = table, kill

    def threads(self) -> Activity:
        return standstill.activity(self._table.family(self.pid))

    def processes(self) -> int:
        return len(self._table.family(self.pid))

    def kill(self) -> None:
        if not self.ended.done():
            self._kill()
        shutil.rmtree(self.place, ignore_errors=True)

    def end(self, status: int) -> None:
        """The nursery says that it has ended, by an exit code or minus a signal."""
        if not self.ended.done():
            self.ended.set_result(self._result(status))

    def _result(self, status: int) -> Ended:
        path = self.control / "result.json"
        said = _result_in(path) if path.is_file() else None
        if isinstance(said, dict):
            return Ended(said.get("value"), _with_output(str(said["error"]), self.output()) if "error" in said else "")
        if status:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
            return Ended(error=_with_output(f"the program {how}", self.output()))
        last = _end_of(self.control / "output.txt", LAST_LINE).rstrip().rpartition("\n")[2]
        value = _json(last)
        return Ended(value, unread="" if value is not None or last.strip() in ("", "null") else last)

    def output(self) -> str:
        """The end of what it printed, and of what it complained of."""
        said = (_end_of(self.control / name, TOLD) for name in ("output.txt", "errors.txt"))
        return "\n".join(filter(None, (text.rstrip() for text in said)))


def _end_of(path: Path, most: int) -> str:
    """The last so many bytes of a file, as text."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _result_in(path: Path) -> Any:
    """What the program's process left; None for what is none, or too much, as the program may write there too."""
    try:
        return _json(read_text(path, MOST_RESULT))
    except (OSError, UnicodeDecodeError):
        return None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _with_output(error: str, output: str) -> str:
    return f"{error}\n{output}".rstrip()


class InThread:
    """A thread of this process that calls a function. It cannot be ended: once its calls are refused it is left alone.

    Only its own thread is watched, so that a function which asks from several threads is better off in a process.
    """

    def __init__(self, function: Any, task: Mapping[str, Any], url: str, key: str, folder: Path) -> None:
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.folder, self._loop = folder, asyncio.get_running_loop()
        self._native = 0
        arguments = (function, task, url, key)
        self._thread = threading.Thread(target=self._run, args=arguments, name="cadre-program", daemon=True)
        self._thread.start()

    def threads(self) -> Activity:
        return {self._native: standstill.thread_activity(self._native)} if self._thread.is_alive() else {}

    def processes(self) -> int:
        return 1

    def kill(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, function: Any, task: Mapping[str, Any], url: str, key: str) -> None:
        self._native = threading.get_native_id()
        ended = _called(function, task, url, key)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, ended)

    def _end(self, ended: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)


def _called(function: Any, task: Mapping[str, Any], url: str, key: str) -> Ended:
    try:
        import openai

        kind = openai.AsyncOpenAI if inspect.iscoroutinefunction(function) else openai.OpenAI
        value = function(task, kind(base_url=url, api_key=key))
        return Ended(asyncio.run(value) if inspect.iscoroutine(value) else value)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is its end, and told
        return Ended(error=f"{type(error).__name__}: {error}")


def function_of(reference: str) -> Any:
    """The user's function. Raises ConfigError where there is none, or no client for it.

    One that takes no client is refused: in a thread of this process it would find another address and key in the
    environment, if any.
    """
    try:
        import openai  # noqa: F401
    except ImportError:
        raise ConfigError(
            "settings.isolation: thread hands a client to the function, and openai is not installed; expected it. "
            "Run: pip install openai."
        ) from None
    function: Any = load_function("settings.run", reference, {})
    parameters = inspect.signature(function).parameters.values()
    if len(parameters) < 2 and not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        raise ConfigError(
            f"settings.isolation: thread hands a client to the function, and {reference} takes none; expected a "
            "function of (task, client). Add the parameter, or leave isolation at fork."
        )
    return function
