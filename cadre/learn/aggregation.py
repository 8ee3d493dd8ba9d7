"""What a token of each sequence weighs in the loss of a minibatch: functions by name, as `loss.aggregate` gives it.

Plain numbers, without torch, so that settings can know the names. A weight depends on the sequence's own length and on
what the WHOLE minibatch holds, so that how a minibatch is cut into micro-batches does not change the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadre.types import TrainingSequence


@dataclass(frozen=True)
class Denominators:
    """What one policy's whole minibatch holds, and what weights are shares of.

    sequences  that are trained on; those that only a critic reads do not count
    tokens     of these that are trained on
    values     that value heads are trained on
    divisor    the setting `loss.divisor`
    """

    sequences: int
    tokens: int
    values: int
    divisor: float = 1.0

    @staticmethod
    def of(data: Sequence[TrainingSequence], divisor: float = 1.0) -> Denominators:
        """Those of the sequences given; no count is below 1."""
        return Denominators(
            sequences=max(1, sum(any(datum.mask) for datum in data)),
            tokens=max(1, trained_tokens(data)),
            values=max(1, sum(len(datum.targets.at) for datum in data if datum.targets)),
            divisor=divisor,
        )


def trained_tokens(data: Sequence[TrainingSequence]) -> int:
    """How many tokens of the sequences are trained on."""
    return sum(sum(datum.mask) for datum in data)


# The weight of a token in a sequence of so many trained tokens.
Aggregate = Callable[[int, Denominators], float]


def token_mean(length: int, whole: Denominators) -> float:
    """One over all trained tokens (DAPO, arXiv 2503.14476)."""
    return 1.0 / whole.tokens


def sequence_mean(length: int, whole: Denominators) -> float:
    """One over the sequences and the sequence's own length (GRPO, arXiv 2402.03300)."""
    return 1.0 / (whole.sequences * max(1, length))


def sequence_sum(length: int, whole: Denominators) -> float:
    """One over the sequences and a divisor (Dr. GRPO, arXiv 2503.20783: the longest completion allowed; MAGRPO: 1)."""
    return 1.0 / (whole.sequences * whole.divisor)


AGGREGATES: dict[str, Aggregate] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
}
