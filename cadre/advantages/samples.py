"""The record that carries a sample from its tree to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadre.rollout import walk
from cadre.rollout.walk import TreeSample
from cadre.types import Sample, Targets, Tree


@dataclass(frozen=True)
class ScoredSample:
    """A sample of T tokens with all that belongs to it; every stage fills in what it finds out.

    decision    where it stands in which tree
    reference   [T] log-probabilities under the reference model, empty where nobody asked for them
    penalties   [T] what each token costs for its distance from the reference, empty for nothing
    overlong    what its length costs, on its last token
    returns     what it is worth, before what it costs
    size        the sum of absolute rewards that `returns` is made of, which rounding is relative to
    count       its part in the statistics of its group
    advantages  one for all of its tokens, or [T]
    weight      what it counts in the loss beside the others of its update
    trains      whether its policy learns from it; a critic may learn from one that no policy does
    targets     what a value head should say of its sequence
    values      what a critic said of it before the update, empty where none judges
    """

    tree_sample: TreeSample
    reference: tuple[float, ...] = ()
    penalties: tuple[float, ...] = ()
    overlong: float = 0.0
    returns: float = 0.0
    size: float = 0.0
    count: float = 1.0
    advantages: tuple[float, ...] = (0.0,)
    weight: float = 1.0
    trains: bool = True
    targets: Targets | None = None
    values: tuple[float, ...] = ()

    @property
    def sample(self) -> Sample:
        return self.tree_sample.sample

    @property
    def gains(self) -> bool:
        """Whether something of it is to become likelier."""
        return any(advantage > 0.0 for advantage in self.advantages)

    @property
    def costs(self) -> tuple[float, ...]:
        """[T] what its tokens cost in all."""
        if not self.sample.token_ids:
            return ()
        *others, last = self.penalties or (0.0,) * len(self.sample.token_ids)
        return (*others, last + self.overlong)

    @property
    def earned(self) -> float:
        """What it is worth less what its length costs."""
        return self.returns - self.overlong

    @property
    def paid(self) -> float:
        """What it is worth once all that it costs is taken off."""
        return self.earned - sum(self.penalties)


def samples_of(trees: Sequence[Tree]) -> list[ScoredSample]:
    """Every sample of the trees, parents before their children."""
    return [ScoredSample(decision) for decision in walk.decisions(trees)]
