"""A learner spread over ranks: each is a process with a part of the weights and of the data (FSDP2).

`RankLearner` is one rank. All ranks of a group make the same calls with the same arguments in the same order, and
return alike; a folder that is written is seen by all ranks. `GroupLearner` starts the ranks on this machine, as child
processes that end with the trainer, however it ends; another launcher can make `RankLearner`s itself.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh

from cadre.concurrency import count_threads
from cadre.engines import host
from cadre.engines.torch import storage
from cadre.engines.torch.forward import MicroBatchRunner, Scorer
from cadre.engines.torch.logprobs import check_projection
from cadre.engines.torch.memory import keep_freed_memory
from cadre.engines.torch.model import DTYPES, is_fully_trained, load, load_reference, locate, pick_device
from cadre.engines.torch.prefix_tree import check_flex_attention
from cadre.engines.torch.ranks import Ranks, gather_weights, shard
from cadre.engines.torch.trainer import PolicyOptimiser, Trainer, TrainingSettings
from cadre.errors import CadreError, EngineError, as_sentence
from cadre.learn import tensor_files
from cadre.learn.loss import ValueHeads
from cadre.settings import PolicyConfig
from cadre.settings.user_code import freeze_files
from cadre.team import Metrics, Weights
from cadre.types import Message, Tool, TrainingSequence

# Seconds that the other ranks have to report their errors once one has failed, and to end once asked to.
GRACE = 5.0
CLOSE = "close"


@dataclass(frozen=True)
class LearnerPart:
    """The part of an experiment that a group trains: policies on one base model, as `TorchEngine` takes them.

    `kept` is the number of versions of a policy that stay on disk for samplers to load, the newest ones. Can be sent to
    another process.
    """

    model: str
    policies: Mapping[str, PolicyConfig]
    training: TrainingSettings
    seed: int
    kept: int = 2


class RankLearner:
    """Rank `rank` of the `world_size` of a `Learner`, whose calls are plain methods here.

    `init_method` is where the ranks meet, as torch.distributed.init_process_group takes it: `file:///shared/new_file`
    or `tcp://host:port`. A process holds one of these at a time, and the policies' device is cuda, of which each rank
    takes a GPU of its own, or cpu. Rank 0 publishes weights in the folder `below`, or among temporary files. Raises
    EngineError if the model cannot be trained with these settings.
    """

    def __init__(
        self, part: LearnerPart, rank: int, world_size: int, init_method: str, below: Path | None = None
    ) -> None:
        self._part = part
        first_policy = next(iter(part.policies.values()))
        device = _pick_rank_device(first_policy.device, rank)
        check_flex_attention(part.training.learners, device)
        if device.type == "cpu":
            keep_freed_memory()
        else:
            torch.cuda.set_device(device)
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        distributed.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size)
        self._mesh = init_device_mesh(device.type, (world_size,))
        self._ranks = Ranks(rank, world_size, device)
        self._dtype = DTYPES[first_policy.dtype]

        # The model is loaded whole on the CPU, and sharding leaves each rank its part. Adapters stay whole, on the
        # device where their layers compute.
        self._loaded = load(locate(part.model), part.policies, torch.device("cpu"), part.seed)
        model, adapters = self._loaded.model, self._loaded.adapters
        model.requires_grad_(any(is_fully_trained(policy) for policy in part.policies.values()))
        check_projection(model)
        for policy in adapters.pairs:
            for weight in adapters.parameters(policy).values():
                weight.data = weight.data.to(device)

        self._heads = ValueHeads(part.training.heads, model.config.get_text_config().hidden_size, device)
        learners = list(part.training.learners.values())
        self._runner = MicroBatchRunner(self._loaded, self._dtype, self._heads, learners, self._ranks)
        shard(self._runner.scorer, self._mesh, self._dtype)
        self._optimisers = {
            name: PolicyOptimiser(self._loaded, self._heads, part.training, name)
            for name, policy in part.policies.items()
            if not policy.frozen
        }
        self._trainer = Trainer(self._runner, self._optimisers, part.training, part.seed)
        self._reference: Scorer | None = None
        self._start_adapters = storage.copy_adapters(adapters, part.training.start or {})
        self._below = below
        self._published: Path | None = None  # on rank 0, once weights were published

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained here."""
        return tuple(self._optimisers)

    def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Make one update of every policy that has sequences; return metrics by policy.

        Raises DivergedError on every rank.
        """
        return self._trainer.update(data)

    def publish(self, policy: str) -> Weights:
        """Write the policy's weights to a folder on rank 0's machine, which stays until `kept` newer ones are there."""
        version = self._optimisers[policy].updates
        if not self._is_first:
            self.export(policy, Path())
            return Weights(policy, version)
        if self._published is None or not self._published.exists():
            self._published = host.make_scratch("weights", self._below)
        folder = self._published / policy / f"v{version}"
        self.export(policy, folder)
        versions = sorted(folder.parent.iterdir(), key=lambda path: int(path.name[1:]))
        for outdated in versions[: -self._part.kept]:
            shutil.rmtree(outdated)
        return Weights(policy, version, folder)

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation that the policy would answer next."""
        return self._loaded.templates[policy].prompt_ids(messages, None, self._loaded.stops, tools)

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return the outputs of the value heads at the positions in `targets`, a tuple a sequence."""
        return self._runner.compute_values(data)

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return log-probabilities of the masked tokens under the reference, as `TorchLearner` does; T a sequence."""
        if self._start_adapters:
            with self._loaded.adapters.replaced(self._start_adapters):
                return self._runner.compute_logprobs(data)
        if self._reference is None and self._loaded.adapters.pairs:
            self._reference = self._runner.scorer
        elif self._reference is None:
            original = load_reference(self._loaded.source, self._part.policies, self._part.training.start)
            self._reference = Scorer(original.requires_grad_(False))
            shard(self._reference, self._mesh, self._dtype)
        return self._runner.compute_logprobs(data, self._reference)

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return log-probabilities of the masked tokens under the policies as they are now; T a sequence."""
        return self._runner.compute_logprobs(data)

    def save(self, folder: Path) -> None:
        """Write `folder/POLICY` for each trained policy, as `TorchLearner.save` does.

        Of a fully trained model each rank writes its shards of weights and moments, and rank 0 the rest. Any number of
        ranks can load it, and a `TorchLearner`.
        """
        for name, optimiser in self._optimisers.items():
            target = folder / name
            has_adapter = name in self._loaded.adapters.pairs
            if not has_adapter:
                target.mkdir(parents=True, exist_ok=True)
                tensor_files.write(self._loaded.parameters(name), target, "model")
                optimiser.weights.save(target / "optimiser", counters=self._is_first)
            if self._is_first:
                if has_adapter:
                    self._save_adapter(name, target)
                    optimiser.weights.save(target / "optimiser")
                else:
                    tokenizer = self._loaded.templates[name].tokenizer_to_save()
                    storage.save_description(self._loaded.model, self._loaded.stops, tokenizer, target)
                optimiser.save_heads(target)
        self._ranks.wait()

    def load(self, folder: Path) -> None:
        """Restore what `save` or a `TorchLearner` wrote."""
        for name, optimiser in self._optimisers.items():
            if name in self._loaded.adapters.pairs:
                storage.load_adapter(self._loaded.parameters(name), folder / name)
            else:
                tensor_files.read(self._loaded.parameters(name), folder / name, "model")
            optimiser.load(folder / name)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre, as `TorchEngine.export` does; rank 0 alone writes.

        Raises EngineError if `merge` is True for a policy without an adapter.
        """
        loaded, pairs = self._loaded, self._loaded.adapters.pairs.get(policy)
        if merge and pairs is None:
            raise EngineError(
                f"Policy {policy!r} has no adapter to merge; it is a whole model. Export it without merge."
            )
        if pairs is not None and not merge:
            if self._is_first:
                self._save_adapter(policy, folder)
            return
        state = gather_weights(loaded.model, self._is_first)
        if self._is_first:
            tokenizer = loaded.templates[policy].tokenizer_to_save()
            merged = storage.merge_adapter(state, pairs or {})
            storage.save_model(loaded.model, loaded.stops, tokenizer, folder, merged)

    def meet(self) -> None:
        """Return once every rank has made this call."""
        self._ranks.wait()

    def close(self) -> None:
        """Leave the group. May be called more than once."""
        if self._published is not None:
            host.remove_scratch(self._published)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    @property
    def _is_first(self) -> bool:
        return self._ranks.rank == 0

    def _save_adapter(self, policy: str, folder: Path) -> None:
        loaded = self._loaded
        base = storage.name_of_base(self._part.policies[policy].model, loaded.source)
        storage.write_adapter(loaded.parameters(policy), loaded.adapters.configs[policy], base, folder)
        loaded.templates[policy].tokenizer_to_save().save_pretrained(folder)


def _pick_rank_device(name: str, rank: int) -> torch.device:
    """Return the CPU, or this rank's GPU: the one of its number among those that the process sees.

    The count starts from 0 again if there are fewer (on another machine, or if a process sees only its own GPU).
    """
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
    """A rank's failure: Cadre's own error as it is, the text of any other, and its time by the machine's clock.

    A rank that was killed counts as the first to fail: the others then fail because it is gone.
    """

    time: float
    error: CadreError | None
    message: str


class GroupLearner:
    """A `Learner` whose policies are trained by several processes together. Lives as long as the run.

    Each rank has a part of the weights, gradients and moments, and runs a part of the data; see `RankLearner`. Raises
    EngineError if the model cannot be trained with these settings, or a rank fails.
    """

    def __init__(self, part: LearnerPart, ranks: int) -> None:
        device = pick_device(next(iter(part.policies.values())).device)
        if device.type == "cuda" and ranks > torch.cuda.device_count():
            raise EngineError(
                f"learner.ranks: got {ranks}, and this machine has {torch.cuda.device_count()} GPUs, of which each "
                "rank takes one; expected no more ranks than GPUs. Lower it, or set the policies' device to cpu."
            )
        self._policies = tuple(name for name, policy in part.policies.items() if not policy.frozen)
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
            spawning.Process(target=run_rank, args=(child_end, part, rank, ranks, self._folder, threads), daemon=True)
            for rank, (_, child_end) in enumerate(pipes)
        ]
        for process, (_, child_end) in zip(self._processes, pipes, strict=True):
            process.start()
            child_end.close()
        self._receive_answers()

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that are trained here; frozen ones are sampled from only."""
        return self._policies

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Make one update of every policy that has sequences; return metrics by policy. Raises DivergedError."""
        metrics: dict[str, Metrics] = await asyncio.to_thread(self._call, "update", data)
        return metrics

    async def publish(self, policy: str) -> Weights:
        """Return the policy's weights as a folder."""
        weights: Weights = await asyncio.to_thread(self._call, "publish", policy)
        return weights

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the token ids of a conversation that the policy would answer next."""
        ids: tuple[int, ...] = self._call("encode", policy, messages, tools)
        return ids

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return the outputs of the value heads at the positions in `targets`, a tuple a sequence."""
        values: list[tuple[float, ...]] = self._call("values", data)
        return values

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return log-probabilities of the masked tokens under the policies before any training; T a sequence."""
        logprobs: list[tuple[float, ...]] = self._call("reference_logprobs", data)
        return logprobs

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return log-probabilities of the masked tokens under the policies as they are now; T a sequence."""
        logprobs: list[tuple[float, ...]] = self._call("logprobs", data)
        return logprobs

    def save(self, folder: Path) -> None:
        """Write `folder/POLICY` for each trained policy, which any number of ranks can load."""
        self._call("save", folder)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, or what a learner in one process did."""
        self._call("load", folder)

    def export(self, policy: str, folder: Path, merge: bool = False) -> None:
        """Write a policy for use without Cadre, as `TorchEngine.export` does."""
        self._call("export", policy, folder, merge)

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
        """Return rank 0's answer once all ranks have answered.

        Raises the first failure, after which the group is closed; the other ranks have GRACE seconds to report theirs.
        """
        answers: dict[int, Any] = {}
        failures: dict[int, RankFailure] = {}
        deadline: float | None = None
        while len(answers) + len(failures) < len(self._pipes):
            waiting = [rank for rank in range(len(self._pipes)) if rank not in {*answers, *failures}]
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = connection.wait([self._pipes[rank] for rank in waiting], timeout)
            if not ready:
                break
            for rank in waiting:
                if self._pipes[rank] in ready:
                    answer = _receive(self._pipes[rank], self._processes[rank])
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
            f"Rank {rank} of the {len(self._pipes)} that train {', '.join(self._policies)} failed: {first.message} The "
            "others were ended with it, and what was learned since the last checkpoint is lost. What they printed is "
            "above; go on with --resume once that is mended."
        )


def _send(pipe: Connection, message: Any) -> None:
    """Send a message; a receiver that has ended does not need it."""
    try:
        pipe.send(message)
    except OSError:
        return


def _receive(pipe: Connection, process: Any) -> Any:
    """Return a rank's answer, or the failure if it ended without one."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        process.join(GRACE)
        return RankFailure(-math.inf, None, f"its process ended (exit code {process.exitcode}).")


# In a rank's process.


def run_rank(pipe: Connection, part: LearnerPart, rank: int, ranks: int, folder: Path, threads: int) -> None:
    """Make the calls that come through the pipe and answer each, until told to close; the life of a rank.

    The ranks meet in `folder`, and leave published weights there. Each computes with so many threads.
    """
    end_with_parent(folder)
    freeze_files()
    # The ranks of one machine talk to each other over its own interface, whatever its name resolves to.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(threads)
    with _report_failure(pipe):
        learner = RankLearner(part, rank, ranks, f"file://{folder}/meeting", folder)
        method, arguments = "", ()
        answer: Any = None
        while method != CLOSE:
            pipe.send(answer if rank == 0 else None)
            method, arguments = pipe.recv()
            answer = getattr(learner, method)(*arguments)


@contextmanager
def _report_failure(pipe: Connection) -> Iterator[None]:
    """Send an error through the pipe; those of other code are raised too, so that their traceback is printed."""
    try:
        yield
    except (EOFError, BrokenPipeError):
        return  # the trainer is gone
    except BaseException as error:
        own_error = error if isinstance(error, CadreError) else None
        message = as_sentence(f"{type(error).__name__}: {' '.join(str(error).split())}")
        _send(pipe, RankFailure(time.monotonic(), own_error, message))
        if own_error is None:
            raise


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
