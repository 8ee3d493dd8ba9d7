"""One rank of a learner group as an actor: the ranks of a group may be on any machines."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from cadre.cluster import files
from cadre.cluster.actors import LearningProcess, settle
from cadre.cluster.connection import ray_module
from cadre.cluster.files import Bytes, Files
from cadre.cluster.recipes import LearnerRecipe
from cadre.engines import scratch
from cadre.team import Metrics
from cadre.types import TrainingSequence


class RankProcess(LearningProcess):
    """A rank of what trains the policies of one base model. All ranks are asked the same in the same order.

    What it writes for the others to read lies in a folder of its machine, `scratch`; `first_here` makes and empties it.
    """

    async def node(self) -> str:
        """The machine's name in the cluster."""
        name: str = ray_module().get_runtime_context().get_node_id()
        return name

    async def meeting(self) -> str:
        """Where the ranks can meet that this one is the first of: a port of this machine that was free just now."""
        with socket.socket() as found:
            found.bind(("", 0))
            return f"tcp://{_address()}:{found.getsockname()[1]}"

    async def begin(
        self, threads: int, recipe: LearnerRecipe, scratch: str, rank: int, meeting: str, *nodes: str
    ) -> None:
        """Be rank `rank` of as many as there are `nodes`, which are the ranks' machines; returns when all have met."""
        from cadre.engines.torch.group import RankLearner

        settle(threads)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface(_address()))
        self.scratch = Path(tempfile.gettempdir()) / f"{scratch}-{nodes[rank]}"
        self.first, self.first_here = rank == 0, nodes.index(nodes[rank]) == rank
        self.learner = RankLearner(recipe.part, rank, len(nodes), meeting)

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        return self.learner.update(data)

    async def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Where this is the first rank: whoever asks fetches what each returns, and all would return the same."""
        values = await super().values(data)
        return values if self.first else []

    async def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Likewise."""
        logprobs = await super().reference_logprobs(data)
        return logprobs if self.first else []

    async def publish(self, policy: str) -> tuple[int, Bytes | Files]:
        """The policy's version, and its weights where this is the first rank."""
        weights = self.learner.publish(policy)
        if weights.folder is None:
            return weights.version, {}
        content = files.content_of(weights)
        # Actors are ended without a word, so nothing may lie here that is of no more use.
        scratch.remove(weights.folder.parent.parent)
        return weights.version, content

    async def state(self) -> tuple[None, Files]:
        """The files that the ranks of this machine wrote, where this is the first of them."""
        return None, self._together(self.learner.save, lambda folder: None)

    async def load(self, *states: Files) -> None:
        """Be as the learner was whose state these are, a part a rank of its group."""

        def put(folder: Path) -> None:
            for state in states:
                files.write(state, folder)

        self._together(self.learner.load, put)

    async def export(self, policy: str, merge: bool) -> Files:
        return files.written_by(lambda folder: self.learner.export(policy, folder, merge))

    def _together(self, work: Callable[[Path], None], put: Callable[[Path], None]) -> Files:
        """Have all ranks work on their machine's folder, into which its first has `put` something; what is there after
        it, at that one."""
        if self.first_here:
            self.scratch.mkdir(mode=0o700)
            put(self.scratch)
        try:
            self.learner.meet()
            work(self.scratch)
            self.learner.meet()
            return files.read(self.scratch) if self.first_here else {}
        finally:
            if self.first_here:
                shutil.rmtree(self.scratch)


def _address() -> str:
    address: str = ray_module().util.get_node_ip_address()
    return address


def _interface(address: str) -> str:
    """The network interface that has this address."""
    return next(
        name
        for name, has in psutil.net_if_addrs().items()
        if any(each.family == socket.AF_INET and each.address == address for each in has)
    )
