"""How the weights of one policy move, and those of its value heads."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.tensor import DTensor

from cadre.engines.torch.learning.ranks import Ranks
from cadre.learn.optimiser import Optimiser

# Optimiser steps in a row that may be refused before training has diverged.
PATIENCE = 3


class PolicyOptimiser:
    """An optimiser for a policy, and one for its value heads if it has some. Lives as long as the policy is trained."""

    def __init__(self, weights: Optimiser, heads: Optimiser | None) -> None:
        self.weights = weights
        self.heads = heads

    @property
    def updates(self) -> int:
        """Updates that are done: the version of the policy."""
        return self.weights.updates

    @property
    def diverged(self) -> bool:
        """Whether one step after the other was refused."""
        return self.weights.skips >= PATIENCE

    def add_up(self, ranks: Ranks) -> None:
        """Sum the gradients that the ranks of a group have of what each of them holds whole; shards have theirs."""
        optimisers = [self.weights] if self.heads is None else [self.weights, self.heads]
        weights = [weight for optimiser in optimisers for weight in optimiser.parameters]
        ranks.add_gradients(weight for weight in weights if not isinstance(weight, DTensor))

    def step(self, loss: float) -> float:
        """One optimiser step of the policy and of its heads; the norm of the policy's gradient."""
        if self.heads is not None:
            self.heads.step(loss)
        return self.weights.step(loss)

    def finish_update(self) -> None:
        """An update is done: schedules go on."""
        self.weights.updates += 1
        if self.heads is not None:
            self.heads.updates += 1

    def save(self, folder: Path) -> None:
        """`folder/optimiser`, and `folder/heads` for the optimiser of the heads."""
        self.weights.save(folder / "optimiser")
        if self.heads is not None:
            self.heads.save(folder / "heads")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; of heads that were not trained before, nothing."""
        self.weights.load(folder / "optimiser")
        if self.heads is not None and (folder / "heads").is_dir():
            self.heads.load(folder / "heads")
