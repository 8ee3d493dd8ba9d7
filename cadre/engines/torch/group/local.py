"""A learner group on this machine: the ranks are children of the trainer, which end when it does, however it ends."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import multiprocessing

from cadre.engines import scratch
from cadre.engines.torch.base import loading
from cadre.engines.torch.group.rank_learner import LearnerPart, RankLearner
from cadre.errors import CadreError, EngineError
from cadre.settings.user_imports import hold_files
from cadre.team import Metrics, Weights
from cadre.types import Message, TrainingSequence

# Seconds that the other ranks have to say what they met once one of them has failed, and to end once asked to.
GRACE = 5.0
CLOSE = "close"


@dataclass(frozen=True)
class Failure:
    """What a rank met: an error of ours as it is, of any other what it said, and when, by the machine's clock.

    A rank that was ended without a word counts as the first: what the others met is that it was gone.
    """

    when: float
    error: CadreError | None
    said: str


class RankFailed(EngineError):
    """A rank was ended, or met what is no error of ours."""


class GroupLearner:
    """A `Learner` whose policies are trained by several processes together. Lives as long as the run.

    Each rank has a part of the weights, gradients and moments, and runs a part of the data; see `RankLearner`. Raises
    EngineError where the model cannot be trained as asked, or a rank fails.
    """

    def __init__(self, part: LearnerPart, ranks: int) -> None:
        _check_cards(part, ranks)
        self._policies = tuple(name for name, policy in part.policies.items() if not policy.frozen)
        self._meeting = scratch.make("ranks")
        # At the latest when the process ends, whoever forgets to close this.
        self._removed = weakref.finalize(self, scratch.remove, self._meeting)
        # Before multiprocessing asks its children to end by a signal that these do not hear.
        atexit.register(self.close)
        self._asking = threading.Lock()
        spawning = multiprocessing.get_context("spawn")
        pipes = [spawning.Pipe() for _ in range(ranks)]
        self._pipes: list[Connection] = [mine for mine, _ in pipes]
        self._processes = [
            spawning.Process(target=serve, args=(theirs, part, Place(rank, ranks, self._meeting)), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self._processes, pipes, strict=True):
            process.start()
            theirs.close()
        self._answers()

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained here; frozen ones are sampled from only."""
        return self._policies

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """One update of every policy that has data; metrics by policy. Raises DivergedError."""
        metrics: dict[str, Metrics] = await asyncio.to_thread(self._ask, "update", data)
        return metrics

    async def publish(self, policy: str) -> Weights:
        """The policy's weights as a folder."""
        weights: Weights = await asyncio.to_thread(self._ask, "publish", policy)
        return weights

    def encode(self, policy: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids of a conversation that the policy would answer next."""
        ids: tuple[int, ...] = self._ask("encode", policy, messages)
        return ids

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """What the heads named in `targets` say at their places, a tuple a datum."""
        values: list[tuple[float, ...]] = self._ask("values", data)
        return values

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Log-probabilities of the masked tokens under the policies as they were before any training; T a datum."""
        logprobs: list[tuple[float, ...]] = self._ask("reference_logprobs", data)
        return logprobs

    def save(self, folder: Path) -> None:
        """`folder/POLICY` for each trained policy, which any number of ranks can load."""
        self._ask("save", folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, or what a learner in one process did."""
        self._ask("load", folder)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre, as `TorchEngine.export` does."""
        self._ask("export", policy, folder, merge)

    def close(self) -> None:
        """End the ranks' processes. May be called more than once."""
        for pipe in self._pipes:
            if not pipe.closed:
                # What a rank that has ended is not told, it need not know.
                _tell(pipe, (CLOSE, ()))
                pipe.close()
        for process in self._processes:
            process.join(GRACE)
            process.kill()
            process.join()
        self._removed()
        atexit.unregister(self.close)

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Have every rank make this call; what rank 0 answers."""
        with self._asking:
            if self._pipes[0].closed:
                raise EngineError(
                    "The learner group was closed, and is asked to go on; expected an open one. Load it again."
                )
            for pipe in self._pipes:
                _tell(pipe, (method, arguments))
            return self._answers()

    def _answers(self) -> Any:
        """What rank 0 answers once all ranks have. Raises the first failure, after which the group is closed."""
        answers: dict[int, Any] = {}
        failures: dict[int, Failure] = {}
        deadline: float | None = None
        while len(answers) + len(failures) < len(self._pipes):
            waiting = [rank for rank in range(len(self._pipes)) if rank not in {*answers, *failures}]
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = connection.wait([self._pipes[rank] for rank in waiting], left)
            if not ready:
                break
            for rank in waiting:
                if self._pipes[rank] in ready:
                    answer = _hear(self._pipes[rank], self._processes[rank])
                    (failures if isinstance(answer, Failure) else answers)[rank] = answer
            if failures and deadline is None:
                deadline = time.monotonic() + GRACE
        if failures:
            self._fail(failures)
        return answers[0]

    def _fail(self, failures: dict[int, Failure]) -> None:
        self.close()
        rank = min(failures, key=lambda rank: failures[rank].when)
        first = failures[rank]
        if first.error is not None:
            raise first.error
        raise RankFailed(
            f"Rank {rank} of the {len(self._pipes)} that train {', '.join(self._policies)} failed: {first.said} The "
            "others were ended with it, and what was learned since the last checkpoint is lost. What they printed is "
            "above; go on with --resume once that is mended."
        )


@dataclass(frozen=True)
class Place:
    """Which rank of how many a process is, and the folder where the ranks meet and leave what they hand over."""

    rank: int
    ranks: int
    folder: Path


def serve(pipe: Connection, part: LearnerPart, place: Place) -> None:
    """The life of a rank: make the calls that come through the pipe and answer each, until told to close."""
    _belong_to_the_trainer(place.folder)
    hold_files()
    # The ranks of one machine talk to each other over its own interface, whatever its name resolves to.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(max(1, torch.get_num_threads() // place.ranks))
    with Telling(pipe):
        learner = RankLearner(part, place.rank, place.ranks, f"file://{place.folder}/meeting", place.folder)
        method, arguments = "", ()
        answer: Any = None
        while method != CLOSE:
            pipe.send(answer if place.rank == 0 else None)
            method, arguments = pipe.recv()
            answer = getattr(learner, method)(*arguments)


class Telling:
    """Within it an error is told through the pipe, and then goes on; that the trainer is gone is none."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, EOFError | BrokenPipeError):
            return True
        ours = error if isinstance(error, CadreError) else None
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        _tell(self._pipe, Failure(time.monotonic(), ours, said if said.endswith((".", "!")) else f"{said}."))
        return ours is not None


def _belong_to_the_trainer(folder: Path) -> None:
    """End with the trainer, also in the middle of a call, and remove the folder if it has not; leave it to decide what
    Ctrl-C, SIGTERM and SIGHUP mean, which terminals and schedulers send to every process of a group."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    trainer = multiprocessing.parent_process()

    def watch() -> None:
        if trainer is not None:
            trainer.join()
        scratch.erase(folder)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _tell(pipe: Connection, message: Any) -> None:
    """Send, where somebody is still there to read it."""
    try:
        pipe.send(message)
    except OSError:
        return


def _hear(pipe: Connection, process: Any) -> Any:
    """What a rank answers, or the failure that it ended without an answer."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        process.join(GRACE)
        return Failure(-math.inf, None, f"its process ended (exit code {process.exitcode}).")


def _check_cards(part: LearnerPart, ranks: int) -> None:
    """Raise EngineError where there are fewer cards than ranks."""
    device = loading.pick_device(next(iter(part.policies.values())).device)
    if device.type == "cuda" and ranks > torch.cuda.device_count():
        raise EngineError(
            f"learner.ranks: got {ranks}, and this machine has {torch.cuda.device_count()} cards, of which each rank "
            "takes one; expected no more ranks than cards. Lower it, or set the policies' device to cpu."
        )
