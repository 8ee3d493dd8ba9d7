"""Nurseries: one process for each way to start programs, which forks the instances and leaves none of them behind.

Everything here is the endpoint's loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadre.errors import ConfigError
from cadre.programs import inside
from cadre.programs.failures import NotStarted
from cadre.programs.running import InProcess
from cadre.programs.settings import Launch
from cadre.programs.standstill import ProcessTable

HERE = Path(inside.__file__).parent
# What programs tell the world of themselves unless it is forbidden; some call out and wait at their end.
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
}
FIXED = {"OPENAI_API_KEY": "none", "PYTHONHASHSEED": "0"}
LOCAL = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")


@dataclass(frozen=True)
class Start:
    """One instance: the task as JSON values, the endpoint, and the variables and the folder that it begins with."""

    task: Mapping[str, Any]
    url: str
    key: str
    memo: Path
    copied: Path | None = None


@dataclass(eq=False)
class Nursery:
    """The process that starts instances of one launch, and those that run. Made by `open_nursery`."""

    launch: Launch
    scratch: Path
    process: asyncio.subprocess.Process
    table: ProcessTable
    running: dict[str, InProcess] = field(default_factory=dict)
    started: dict[str, asyncio.Future[int]] = field(default_factory=dict)
    listening: asyncio.Task[None] | None = None
    numbers: Any = field(default_factory=itertools.count)

    async def start(self, wanted: Start) -> InProcess:
        """Fork an instance; returns once it has a process. One that is not waited for to its start is ended."""
        name = str(next(self.numbers))
        running = InProcess(self.table, self.scratch / name, lambda: self.tell(kill=name))
        prepare(running, wanted)
        self.running[name] = running
        started = self.started[name] = asyncio.get_running_loop().create_future()
        self.tell(
            start=name,
            task=dict(wanted.task),
            folder=str(running.folder),
            control=str(running.control),
            environment=environment(running, wanted, dict(self.launch.environment)),
            limits=self.launch.limits.kernel,
        )
        try:
            running.pid = await started
        except BaseException:
            running.kill()
            raise
        return running

    def tell(self, **order: Any) -> None:
        """Send an order."""
        assert self.process.stdin is not None
        if not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps(order).encode() + b"\n")

    @property
    def over(self) -> bool:
        """Whether the process has ended, as one that the kernel kills for its memory, so that it starts nothing."""
        return self.listening is not None and self.listening.done()

    async def listen(self) -> None:
        """Take in what the process says, to its end, which is that of all instances."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            if "started" in said:
                waiting = self.started.pop(said["started"])
                if not waiting.done():  # cancelled where nobody waits any more
                    waiting.set_result(said["pid"])
            elif "ended" in said:
                self.running.pop(said["ended"]).end(said["status"])
        for waiting in self.started.values():
            if not waiting.done():
                waiting.set_exception(NotStarted("The process that starts programs has ended."))
        for running in self.running.values():
            running.end(-9)


def prepare(running: InProcess, wanted: Start) -> None:
    """Make the folders of an instance."""
    running.control.mkdir(parents=True)
    if wanted.copied is None:
        running.folder.mkdir()
    else:
        shutil.copytree(wanted.copied, running.folder, symlinks=True)


def environment(running: InProcess, wanted: Start, chosen: Mapping[str, str]) -> dict[str, str]:
    """The variables of an instance: where its endpoint is, and that it keeps to itself, beside those that were chosen.
    What a program may import of ours comes first in its path, whoever chose the rest."""
    path = chosen.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
    return {
        **QUIET,
        **LOCAL,
        "OPENAI_BASE_URL": wanted.url,
        "OPENAI_API_BASE": wanted.url,
        "OPENAI_API_KEY": wanted.key,
        "CADRE_FOLDER": str(running.folder),
        "CADRE_MEMO": str(wanted.memo),
        "CADRE_TASK": str(running.control / "task.json"),
        "CREWAI_STORAGE_DIR": str(running.control),
        "PYTHONHASHSEED": "0",
        **chosen,
        "PYTHONPATH": f"{HERE}{os.pathsep}{path}" if path else str(HERE),
    }


async def open_nursery(launch: Launch, table: ProcessTable, scratch: Path) -> Nursery:
    """Start the process and wait until it has imported the program. Raises ConfigError where that fails."""
    scratch = Path(tempfile.mkdtemp(dir=scratch))
    kind = "function" if launch.is_function else "command"
    process = await asyncio.create_subprocess_exec(
        launch.python or sys.executable,
        str(HERE / "nursery.py"),
        str(scratch),
        kind,
        *launch.words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **QUIET, **LOCAL, **dict(launch.environment), **FIXED},
    )
    assert process.stdout is not None
    said = json.loads(await process.stdout.readline() or b'{"failed": "it ended before it was ready"}')
    if "failed" in said:
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # what it imported may have left threads
        await process.wait()
        raise ConfigError(f"settings.run: {launch.words[0]} failed to load: {said['failed']}. Fix the file.")
    nursery = Nursery(launch, scratch, process, table)
    nursery.listening = asyncio.create_task(nursery.listen())
    return nursery
