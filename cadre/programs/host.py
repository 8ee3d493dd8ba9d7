"""Starts instances of programs and brings them to where an episode stands. Everything here is the endpoint's loop's."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cadre.errors import ContractError
from cadre.programs import inside
from cadre.programs.failures import Diverged
from cadre.programs.instance import Exchange, Instance, Standing
from cadre.programs.nurseries import Nursery, Start, open_nursery
from cadre.programs.running import InThread, Running, function_of
from cadre.programs.server import Server, shared
from cadre.programs.settings import Launch
from cadre.programs.standstill import ProcessTable
from cadre.types import Task

# Instances that are brought to where they stand at once; more would only wait for each other.
STARTS = 16


@dataclass(frozen=True)
class Play:
    """What all instances of one episode have in common.

    role_of     the role of each model that the program may ask for
    memo        where its tools' results are kept
    replayable  whether an instance that is given the same answers asks for the same
    """

    task: Task
    role_of: Mapping[str, str]
    launch: Launch
    memo: Path
    replayable: bool


@dataclass(eq=False)
class Host:
    """The endpoint of this process and the nurseries that start programs for it."""

    server: Server
    folder: tempfile.TemporaryDirectory[str]
    table: ProcessTable = field(default_factory=ProcessTable)
    nurseries: dict[Launch, asyncio.Task[Nursery]] = field(default_factory=dict)
    starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTS))

    @property
    def scratch(self) -> Path:
        """Where instances have their folders; gone with this process."""
        return Path(self.folder.name)

    async def at(
        self, play: Play, past: Sequence[Exchange], wanted: Standing | None, copied: Path | None = None
    ) -> tuple[Instance, Standing]:
        """An instance that was given the answers of the past and stands where `wanted` says, if it does.

        A program that asks for something else is started once more. Raises Diverged where it does so again.
        """
        if past and not play.replayable:
            raise ContractError(
                "settings.replayable: false, and the shape of the trees branches where answers have been given, which "
                "means to start the program again with them; expected a shape that plays episodes side by side. Set "
                "algorithm to one that is independent, such as grpo."
            )
        async with self.starting:
            try:
                return await self._at(play, past, wanted, copied)
            except Diverged:
                return await self._at(play, past, wanted, copied)

    async def _at(
        self, play: Play, past: Sequence[Exchange], wanted: Standing | None, copied: Path | None
    ) -> tuple[Instance, Standing]:
        instance = Instance(self.server.sessions, play.role_of, play.launch.limits, past)
        try:
            instance.run(await self._running(play, instance, copied))
            standing = await instance.standing()
            if wanted is not None and play.replayable:
                instance.follows(wanted)
        except BaseException:
            instance.close("it was not needed any more")
            raise
        return instance, standing

    async def _running(self, play: Play, instance: Instance, copied: Path | None) -> Running:
        data, url, key = {"id": play.task.id, **play.task.data}, f"{self.server.url}/v1", instance.session.key
        if play.launch.isolation == "thread":
            folder = Path(tempfile.mkdtemp(dir=self.scratch))
            return InThread(function_of(play.launch.words[0]), data, url, key, folder)
        return await (await self._nursery(play.launch)).start(Start(data, url, key, play.memo, copied))

    async def _nursery(self, launch: Launch) -> Nursery:
        """The launch's nursery, opened where there is none, or none any more."""
        opening = self.nurseries.get(launch)
        if opening is None or _over(opening):
            opening = self.nurseries[launch] = asyncio.create_task(open_nursery(launch, self.table, self.scratch))
        return await asyncio.shield(opening)


def _over(opening: asyncio.Task[Nursery]) -> bool:
    """Whether a nursery could not be opened, or has ended."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None or opening.result().over)


@lru_cache
def shared_host() -> Host:
    """The one host of this process, made when it is first asked for. Its folder goes with the process."""
    return Host(shared(), tempfile.TemporaryDirectory(prefix=inside.SCRATCH, ignore_cleanup_errors=True))
