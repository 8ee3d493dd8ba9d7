"""The ranks of a learner group, an actor each, on any machines: asked together, and replaced together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cadre.cluster.connection import deaths, ray_module
from cadre.cluster.member import Died, Member, as_raised, give_back
from cadre.cluster.rank_process import RankProcess
from cadre.errors import CadreError

# Seconds that the other ranks have to answer once one of them has failed.
GRACE = 5.0


class RankGroup(Member):
    """A `Member` of an actor a rank, whose `handle` is all of them; their answer is the first's.

    `options` are each rank's. One that dies, or meets what is no error of ours, takes the group with it: the others
    wait for it in a collective operation that does not end, and Ray puts their successors where there is room.
    """

    def __init__(self, arguments: tuple[Any, ...], options: Sequence[Mapping[str, Any]], most: int) -> None:
        self.ranks, self.size = options, len(options)
        self._latest: tuple[Any, ...] = ()
        super().__init__(RankProcess, arguments, {}, most)

    def ask(self, work: Callable[[Any], Any]) -> Any:
        """What comes of the reference that `work` returns for the first rank, once all have answered."""
        # Every rank has to be asked in the same order.
        with self._lock:
            return super().ask(work)

    def answer(self, handle: Any, work: Callable[[Any], Any]) -> Any:
        """The same, asked of these ranks alone. Raises Died."""
        return self._got([work(rank) for rank in handle])

    def close(self) -> None:
        """End the ranks, and what is reserved for them. May be called more than once, and when Ray has ended."""
        if ray_module().is_initialized():
            self._end(self._latest)
            for options in self.ranks:
                give_back(options)

    def _made(self) -> tuple[Any, Any]:
        actor = ray_module().remote(self.kind)
        ranks = tuple(actor.options(**options).remote() for options in self.ranks)
        self._latest = ranks
        meeting, nodes = ranks[0].meeting.remote(), [rank.node.remote() for rank in ranks]
        scratch = f"cadre-group-{secrets.token_hex(8)}"
        begin = (
            rank.begin.remote(*self.arguments, scratch, number, meeting, *nodes) for number, rank in enumerate(ranks)
        )
        return ranks, list(begin)

    def _end(self, handle: Any) -> None:
        for rank in handle:
            super()._end(rank)

    def _got(self, references: Any) -> Any:
        """What comes of the first of them, once all are there. Raises Died, or an error of ours that a rank raised."""
        ray = ray_module()
        waiting, failures = list(references), list[Any]()
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=GRACE if failures else None, fetch_local=False)
            if not done:
                raise Died("a rank has failed and others do not answer")
            try:
                ray.get(done[0])
            except (*deaths(), ray.exceptions.RayTaskError) as error:
                failures.append(as_raised(error))
        if failures:
            raise next((one for one in failures if isinstance(one, CadreError)), Died(str(failures[0])))
        return ray.get(references[0])
