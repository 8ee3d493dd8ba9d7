"""A learner spread over ranks: each is a process with a part of the weights and of the data (FSDP2).

`join_group` makes this process one rank. `GroupLearner` starts the ranks on this machine, as child processes that end
with the trainer, however it ends; another launcher can call `join_group` itself.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh

from cadre.concurrency import count_threads
from cadre.engines import host
from cadre.engines.torch.learner import RankLearner
from cadre.engines.torch.memory import keep_freed_memory
from cadre.engines.torch.model import DTYPES, load, locate, pick_device
from cadre.engines.torch.ranks import Ranks
from cadre.errors import CadreError, EngineError, as_sentence
from cadre.settings.user_code import freeze_files
from cadre.team import LearnerProxy

if TYPE_CHECKING:
    from cadre.engines.factory import LearnerSpec

# Seconds that the other ranks have to report their errors once one has failed, and to end once asked to.
GRACE = 5.0
CLOSE = "close"


def join_group(
    spec: LearnerSpec, rank: int, world_size: int, init_method: str, below: Path | None = None
) -> RankLearner:
    """Return rank `rank` of a learner of `world_size` ranks, in this process.

    `init_method` is where the ranks meet, as torch.distributed.init_process_group takes it: `file:///shared/new_file`
    or `tcp://host:port`. A process holds one of these at a time, and the policies' device is cuda, of which each rank
    takes a GPU of its own, or cpu. `below` and errors are those of `RankLearner`.
    """
    policies, seed = spec.engine.policies, spec.engine.seed
    first_policy = next(iter(policies.values()))
    device = _pick_rank_device(first_policy.device, rank)
    if device.type == "cpu":
        keep_freed_memory()
    else:
        torch.cuda.set_device(device)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    distributed.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size)
    mesh = init_device_mesh(device.type, (world_size,))
    # The model is loaded whole on the CPU, and sharding leaves each rank its part.
    loaded = load(locate(spec.engine.model), policies, torch.device("cpu"), seed)
    ranks, dtype = Ranks(rank, world_size, device), DTYPES[first_policy.dtype]
    return RankLearner(loaded, policies, spec.training, seed, dtype, ranks, mesh, below, spec.versions)


def _pick_rank_device(name: str, rank: int) -> torch.device:
    """Return the CPU, or this rank's GPU: the one of its number among those that the process sees. The count starts
    from 0 again if there are fewer (on another machine, or if a process sees only its own GPU)."""
    device = pick_device(name)
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise EngineError(
            f"device: got {name!r} for a learner of several ranks, each of which takes a GPU of its own; expected "
            "cuda, cpu or auto. Remove the number."
        )
    return torch.device("cuda", rank % torch.cuda.device_count())


# A group on this machine.


class RankFailed(EngineError):
    """A rank's process ended, or raised an error that is not one of Cadre's."""


@dataclass(frozen=True)
class RankFailure:
    """A rank's failure: Cadre's own error as it is, the text of any other, and its time by the machine's clock. A rank
    that was killed counts as the first to fail: the others then fail because it is gone."""

    time: float
    error: CadreError | None
    message: str


class GroupLearner(LearnerProxy):
    """A `Learner` whose policies are trained by several processes together. Lives as long as the run.

    Each rank has a part of the weights, gradients and moments, and runs a part of the data; see `RankLearner`. Raises
    EngineError if the model cannot be trained with these settings, or a rank fails.
    """

    def __init__(self, spec: LearnerSpec) -> None:
        ranks, policies = spec.ranks, spec.engine.policies
        device = pick_device(next(iter(policies.values())).device)
        if device.type == "cuda" and ranks > torch.cuda.device_count():
            raise EngineError(
                f"learner.ranks: got {ranks}, and this machine has {torch.cuda.device_count()} GPUs, of which each "
                "rank takes one; expected no more ranks than GPUs. Lower it, or set the policies' device to cpu."
            )
        super().__init__([name for name, policy in policies.items() if not policy.frozen])
        self._folder = host.make_scratch("ranks")
        # At the latest when the process ends, even if nobody closes this.
        self._remove_folder = weakref.finalize(self, host.remove_scratch, self._folder)
        # Before multiprocessing ends its children by a signal that these ignore.
        atexit.register(self.close)
        self._call_lock = threading.Lock()
        threads = max(1, count_threads() // ranks)
        spawning = multiprocessing.get_context("spawn")
        pipes = [spawning.Pipe() for _ in range(ranks)]
        self._pipes: list[Connection] = [parent_end for parent_end, _ in pipes]
        self._processes = [
            spawning.Process(target=run_rank, args=(child_end, spec, rank, self._folder, threads), daemon=True)
            for rank, (_, child_end) in enumerate(pipes)
        ]
        for process, (_, child_end) in zip(self._processes, pipes, strict=True):
            process.start()
            child_end.close()
        self._receive_answers()

    def close(self) -> None:
        """End the ranks' processes. May be called more than once."""
        for pipe in self._pipes:
            if not pipe.closed:
                _send(pipe, (CLOSE, ()))
                pipe.close()
        for process in self._processes:
            process.join(GRACE)
            process.kill()
            process.join()
        self._remove_folder()
        atexit.unregister(self.close)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Make every rank call the method, and return rank 0's answer."""
        with self._call_lock:
            if self._pipes[0].closed:
                raise EngineError(
                    "The learner group was closed, and is asked to go on; expected an open one. Load it again."
                )
            for pipe in self._pipes:
                _send(pipe, (method, arguments))
            return self._receive_answers()

    def _receive_answers(self) -> Any:
        """Return rank 0's answer once all ranks have answered. Raises the first failure, after which the group is
        closed; the other ranks have GRACE seconds to report theirs."""
        answers: dict[int, Any] = {}
        failures: dict[int, RankFailure] = {}
        deadline: float | None = None
        while len(answers) + len(failures) < len(self._pipes):
            waiting = [rank for rank in range(len(self._pipes)) if rank not in {*answers, *failures}]
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = connection.wait([self._pipes[rank] for rank in waiting], timeout)
            if not ready:
                break
            for rank in (rank for rank in waiting if self._pipes[rank] in ready):
                try:
                    answer = self._pipes[rank].recv()
                except (EOFError, OSError):
                    self._processes[rank].join(GRACE)
                    code = self._processes[rank].exitcode
                    answer = RankFailure(-math.inf, None, f"its process ended (exit code {code}).")
                (failures if isinstance(answer, RankFailure) else answers)[rank] = answer
            if failures and deadline is None:
                deadline = time.monotonic() + GRACE
        if not failures:
            return answers[0]

        self.close()
        rank = min(failures, key=lambda rank: failures[rank].time)
        first = failures[rank]
        if first.error is not None:
            raise first.error
        raise RankFailed(
            f"Rank {rank} of the {len(self._pipes)} that train {', '.join(self.policies)} failed: {first.message} The "
            "others were ended with it, and what was learned since the last checkpoint is lost. What they printed is "
            "above; go on with --resume once that is mended."
        )


def _send(pipe: Connection, message: Any) -> None:
    """Send a message; a receiver that has ended does not need it."""
    with suppress(OSError):
        pipe.send(message)


# In a rank's process.


def run_rank(pipe: Connection, spec: LearnerSpec, rank: int, folder: Path, threads: int) -> None:
    """Make the calls that come through the pipe and answer each, until told to close; the life of a rank. The ranks
    meet in `folder`, and leave published weights there. Each computes with so many threads."""
    end_with_parent(folder)
    freeze_files()
    # The ranks of one machine talk to each other over its own interface, whatever its name resolves to.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(threads)
    try:
        learner = join_group(spec, rank, spec.ranks, f"file://{folder}/meeting", folder)
        method, arguments = "", ()
        answer: Any = None
        while method != CLOSE:
            pipe.send(answer if rank == 0 else None)
            method, arguments = pipe.recv()
            answer = getattr(learner, method)(*arguments)
    except (EOFError, BrokenPipeError):
        return  # the trainer is gone
    except BaseException as error:
        own_error = error if isinstance(error, CadreError) else None
        message = as_sentence(f"{type(error).__name__}: {' '.join(str(error).split())}")
        _send(pipe, RankFailure(time.monotonic(), own_error, message))
        if own_error is None:
            raise  # so that its traceback is printed


def end_with_parent(folder: Path) -> None:
    """End this process with its parent, also in the middle of a call, and remove the folder if the parent has not.

    Ctrl-C, SIGTERM and SIGHUP, which terminals and schedulers send to every process of a group, are left to the parent.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        host.erase(folder)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
