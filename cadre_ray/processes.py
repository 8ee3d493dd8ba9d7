"""The classes that run in other processes, of which Ray makes actors, and the form in which files travel to them.

Files and tensors travel as arrays of bytes, which Ray keeps in shared memory and passes to actors without a copy.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadre.engines import host
from cadre.engines.factory import LearnerSpec, SamplerSpec
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import EngineError, PromptError
from cadre.plugins import configure_sandbox
from cadre.rollout.batching import SharedBarrier
from cadre.settings import SandboxConfig
from cadre.settings.user_code import freeze_files
from cadre.team import BatchMemory, Weights
from cadre.types import Request, Reward, Sample
from cadre_ray.ray_actors import ray_module

# The samples of a request, or the error of its prompt.
Outcome = list[Sample] | PromptError
Bytes = NDArray[np.uint8]
# Content by name relative to a folder.
Files = dict[str, Bytes]
# Name, content, dtype and shape of each tensor.
Tensors = list[tuple[str, Bytes, Any, tuple[int, ...]]]


def pack_weights(weights: Weights) -> Tensors | Files:
    """Return the tensors of weights, or the files of their folder.

    Tensors on a CPU are not copied: Ray stores their bytes before the caller has its result, and with it the next call
    that may change them. Folders within the folder are left out: a sampler needs neither optimiser states nor value
    heads. Raises EngineError if the weights have neither.
    """
    if weights.tensors is not None:
        return [_pack_tensor(name, value.detach().cpu()) for name, value in weights.tensors.items()]
    if weights.folder is not None:
        return _read(weights.folder, weights.folder.iterdir())
    raise EngineError(f"Got weights of policy {weights.policy!r} without any; expected tensors or a folder.")


def _pack_tensor(name: str, tensor: Any) -> tuple[str, Bytes, Any, tuple[int, ...]]:
    import torch

    # As bytes, since numpy has no bfloat16.
    return name, tensor.contiguous().reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape)


def unpack_tensors(packed: Tensors) -> dict[str, Any]:
    """Return the tensors by name, to be read only: they are views of what Ray has in shared memory."""
    import torch

    with warnings.catch_warnings(action="ignore"):  # that such memory must not be written to
        return {name: torch.from_numpy(content).view(dtype).view(shape) for name, content, dtype, shape in packed}


def read_files(folder: Path) -> Files:
    """Return every file below a folder."""
    return _read(folder, folder.rglob("*"))


def _read(folder: Path, paths: Iterable[Path]) -> Files:
    files = sorted(path for path in paths if path.is_file())
    return {str(path.relative_to(folder)): np.fromfile(path, np.uint8) for path in files}


def write_files(files: Files, folder: Path) -> None:
    """Write the files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(path)


def collect_files(fill: Callable[[Path], object]) -> Files:
    """Return the files that `fill` writes into the folder that it is given."""
    with host.temporary_scratch("files") as folder:
        fill(folder)
        return read_files(folder)


def prepare_process(threads: int) -> None:
    """Use so many threads, and keep the user's files as they are when they are first imported."""
    import torch

    freeze_files()
    torch.set_num_threads(threads)


class Process:
    """The base of all actors. Each gets a call of `begin` first (`SupervisedActor`)."""

    async def pid(self) -> int:
        """Return the process id, on its machine."""
        return os.getpid()


class SamplerProcess(Process):
    """Samples the policies of one base model."""

    async def begin(self, threads: int, spec: SamplerSpec) -> None:
        prepare_process(threads)
        self.sampler = spec.make()
        self._scope: tuple[int, SharedBarrier] | None = None

    async def memory(self) -> int | None:
        """Return the bytes that a batch may take; None if the sampler does not state them."""
        return self.sampler.memory if isinstance(self.sampler, BatchMemory) else None

    async def limit_memory(self, memory: int) -> None:
        """Let a batch take so many bytes, if they are the sampler's to choose."""
        if isinstance(self.sampler, BatchMemory):
            self.sampler.memory = memory

    async def sample(self, scope: int, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Outcome]]:
        """Yield (number, outcome) of each request as soon as it ends; all requests are one batch.

        Batches of one `scope` belong together, as those of a step do in one process.
        """
        finished: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()

        async def run(number: int, request: Request) -> None:
            try:
                outcome: Outcome = await self.sampler.sample(request)
            except PromptError as error:
                outcome = error
            await finished.put((number, outcome))

        if self._scope is None or self._scope[0] != scope:
            self._scope = scope, SharedBarrier()
        batch = asyncio.create_task(self._scope[1].gather(*(run(n, request) for n, request in enumerate(requests))))
        try:
            for _ in requests:
                # Wait for the next outcome, or for an error of the batch.
                getting = asyncio.create_task(finished.get())
                await asyncio.wait([getting, batch], return_when=asyncio.FIRST_COMPLETED)
                if not getting.done() and batch.exception() is not None:
                    getting.cancel()
                    batch.result()
                yield await getting
            await batch
        finally:
            if not batch.done():  # the caller has gone; a cancelled scope is of no further use
                batch.cancel()
                await asyncio.wait([batch])
                self._scope = None

    async def load(self, policy: str, version: int, content: Tensors | Files) -> None:
        """Sample a policy from these weights."""
        if isinstance(content, dict):
            with host.temporary_scratch("files") as folder:
                write_files(content, folder)
                await self.sampler.load(Weights(policy, version, folder))
        else:
            await self.sampler.load(Weights(policy, version, tensors=unpack_tensors(content)))


class LearnerProcess(Process):
    """Trains the policies of one base model in one process."""

    learner: Any
    is_first = True

    async def begin(self, threads: int, spec: LearnerSpec) -> None:
        prepare_process(threads)
        self.learner = spec.make(spec.engine.make())

    async def call_learner(self, method: str, *arguments: Any) -> Any:
        """Return what the learner's method of that name does, from the first rank alone: all have the same."""
        answer = getattr(self.learner, method)(*arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer if self.is_first else None

    async def publish(self, policy: str) -> tuple[int, Tensors | Files]:
        """Return the policy's version and its weights, as two objects: the caller keeps the second unread."""
        weights = await self.learner.publish(policy)
        return weights.version, pack_weights(weights)

    async def export(self, policy: str, merge: bool) -> Files:
        """Return the files of a policy for use without Cadre."""
        return collect_files(lambda folder: self.learner.export(policy, folder, merge))

    async def state(self) -> tuple[None, Files]:
        """Return all that `load` needs as the second of two objects; the first signals that it is there."""
        return None, collect_files(self.learner.save)

    async def load(self, *states: Files) -> None:
        """Restore the learner from the parts of a state."""
        with host.temporary_scratch("files") as folder:
            for state in states:
                write_files(state, folder)
            self.learner.load(folder)


class RankProcess(LearnerProcess):
    """One rank of the learner of one base model, on any machine. All ranks get the same calls in the same order.

    Files for the other ranks of its machine lie in the folder `scratch`; the first rank of the machine
    (`is_first_here`) makes and empties it.
    """

    async def node(self) -> str:
        """Return the id of the machine in the cluster."""
        name: str = ray_module().get_runtime_context().get_node_id()
        return name

    async def rendezvous(self) -> str:
        """Return the address at which the ranks meet if this is the first: a port that was free just now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{_own_address()}:{probe.getsockname()[1]}"

    async def begin(  # type: ignore[override]
        self, threads: int, spec: LearnerSpec, scratch: str, rank: int, rendezvous: str, *nodes: str
    ) -> None:
        """Become rank `rank` of the ranks on these `nodes`; returns when all have met."""
        import psutil

        from cadre.engines.torch.group import join_group

        prepare_process(threads)
        # Collective operations use the interface of the address by which the other machines know this one.
        address = _own_address()
        interface = next(
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(item.family == socket.AF_INET and item.address == address for item in addresses)
        )
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        self.scratch = Path(tempfile.gettempdir()) / f"{scratch}-{nodes[rank]}"
        self.is_first, self.is_first_here = rank == 0, nodes.index(nodes[rank]) == rank
        self.learner = join_group(spec, rank, len(nodes), rendezvous)

    async def publish(self, policy: str) -> tuple[int, Tensors | Files]:
        """Return the policy's version, and from the first rank its weights."""
        weights = self.learner.publish(policy)
        if weights.folder is None:
            return weights.version, {}
        content = pack_weights(weights)
        # Actors are killed without notice, so no file may stay here that is of no more use.
        host.remove_scratch(weights.folder.parent.parent)
        return weights.version, content

    async def state(self) -> tuple[None, Files]:
        """Return the files that the ranks of this machine wrote, from the first of them."""
        return None, self._work_together(self.learner.save)

    async def load(self, *states: Files) -> None:
        """Restore the learner from the parts of a state, a part a rank of its group."""
        self._work_together(self.learner.load, states)

    def _work_together(self, work: Callable[[Path], None], states: Sequence[Files] = ()) -> Files:
        """Let all ranks work on their machine's folder, in which its first rank has put `states`.

        Returns the files that are there afterwards, at that rank.
        """
        if self.is_first_here:
            self.scratch.mkdir(mode=0o700)
            for state in states:
                write_files(state, self.scratch)
        try:
            # All wait until the states are there, and until every rank of the machine has written or read its part.
            self.learner.meet()
            work(self.scratch)
            self.learner.meet()
            return read_files(self.scratch) if self.is_first_here else {}
        finally:
            if self.is_first_here:
                shutil.rmtree(self.scratch)


def _own_address() -> str:
    address: str = ray_module().util.get_node_ip_address()
    return address


class EnvironmentProcess(Process):
    """Steps environments, with the sandbox that their programs need."""

    async def begin(self, env: str | type[Env], settings: Mapping[str, Any], confined: SandboxConfig) -> None:
        EnvSpec(env, settings)  # loads the file that defines the class, so that its instances can be unpickled
        configure_sandbox(confined.level, confined.cgroup)

    async def step(self, env: Env, actions: Mapping[str, str] | Mapping[str, Sample]) -> tuple[Env, Reward]:
        """Return the environment after the step, by texts or by samples, and its reward."""
        texts = {role: text for role, text in actions.items() if isinstance(text, str)}
        samples = {role: sample for role, sample in actions.items() if isinstance(sample, Sample)}
        return env, await (env.step_samples(samples) if samples else env.step(texts))
