"""What a run is doing now, for whoever looks from outside: `status.json` in its folder, written anew every few seconds.

Whole or not at all, as it is renamed into place. What it leaves out: the past, which the run's other files have.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cadre.cluster.remote_learner import RemoteLearner
from cadre.cluster.sampler_pool import SamplerPool
from cadre.data.json_text import to_json
from cadre.errors import RunError
from cadre.experiment import jsonl, records
from cadre.experiment.ahead import SamplingAhead
from cadre.experiment.keeper import Keeper
from cadre.experiment.records import exists, open_plain, parse, read_text
from cadre.team import Metrics, Team

FILE = "status.json"
SECONDS = 2.0


@dataclass(frozen=True)
class Part:
    """A sampler or a learner: the policies that it has, in how many processes (0: in the one that trains), how many
    requests it has been asked and not answered, and how often one of its processes was replaced."""

    kind: str
    policies: Sequence[str]
    processes: int = 0
    waiting: int = 0
    replaced: int = 0


def parts_of(team: Team) -> list[Part]:
    """The samplers and learners of a team."""
    played = {id(sampler): sampler for sampler in team.samplers.values()}
    names = {key: [name for name, sampler in team.samplers.items() if id(sampler) == key] for key in played}
    parts = []
    for key, sampler in played.items():
        if isinstance(sampler, SamplerPool):
            deaths = sum(member.deaths for member in sampler.members)
            parts.append(Part("sampler", names[key], len(sampler.members), sampler.asked, deaths))
        else:
            parts.append(Part("sampler", names[key]))
    for learner in team.learners:
        if isinstance(learner, RemoteLearner):
            parts.append(
                Part("learner", learner.policies, learner.member.size, int(learner.busy), learner.member.deaths)
            )
        else:
            parts.append(Part("learner", learner.policies))
    return parts


class Status:
    """Writes the file for as long as a training goes on; owned by the loop. `last` are the metrics of the last step."""

    def __init__(self, keeper: Keeper, ahead: SamplingAhead) -> None:
        self.last: Metrics = {}
        self._keeper, self._ahead = keeper, ahead

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Within it the file is written every few seconds, and once more at its end."""
        writing = asyncio.create_task(self._write_on())
        try:
            yield
        finally:
            writing.cancel()
            self.write()

    def write(self) -> None:
        """Write it now. Where the disk is full it stays as it was: a run does not end for its status."""
        path = self._keeper.run.folder / FILE
        fresh = path.with_suffix(".new")
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
            fresh.write_text(to_json(self._now(), indent=1) + "\n")
            fresh.replace(path)

    async def _write_on(self) -> None:
        while True:
            self.write()
            await asyncio.sleep(SECONDS)

    def _now(self) -> dict[str, Any]:
        goal, last = self._keeper.run.config.train, self.last
        seconds = last.get("time/wait_s", 0.0) + last.get("time/learn_s", 0.0)
        return {
            "written": time.time(),
            "process": os.getpid(),
            "step": self._keeper.state.step,
            "steps": goal.steps,
            "learning": self._keeper.is_changing,
            "sampling": self._ahead.sampling(),
            "ready": [step.step for step in self._ahead.ready()],
            "max_staleness": goal.max_staleness,
            "staleness": {name: value for name, value in last.items() if "/staleness" in name},
            "tokens_per_s": last["rollout/tokens"] / seconds if seconds else None,
            "parts": [asdict(part) for part in parts_of(self._keeper.team)],
        }


def read(folder: Path) -> dict[str, Any]:
    """What the run in `folder` was doing when it last said so, whether it still `runs`, and its last `evaluation`.

    Raises RunError where no run ever trained there.
    """
    path = folder / FILE
    if not exists(path):
        raise RunError(f"status: {folder} holds no {FILE}; expected the folder of a run that has begun to train.")
    try:
        said = parse(read_text(path), records.Status)
    except ValueError as error:
        raise RunError(
            f"status: {path} is damaged ({error}); expected what a run writes. It is written anew with --resume."
        ) from None
    last = None
    for report in jsonl.records(folder / "evaluations.jsonl", records.Evaluation):
        last = report
    return {
        **said.model_dump(),
        "runs": _locked(folder / ".lock"),
        "evaluation": last,
    }


def _locked(path: Path) -> bool:
    if not exists(path):
        return False
    with open_plain(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
