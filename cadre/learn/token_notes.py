"""What an update finds out about single tokens, kept for people to look at; nothing here reaches a loss."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from cadre.types import SamplePosition, TrainingSequence


@dataclass(frozen=True)
class TokenNote:
    """One sample of T tokens as the learner saw it before the first optimiser step of an update that changed it.

    `logprobs` and `entropy`, both [T], are under the distribution that the sample was drawn from; the first less the
    sampler's own are the mismatch of learner and sampler.
    """

    position: SamplePosition
    logprobs: tuple[float, ...]
    entropy: tuple[float, ...]


class TokenNotes:
    """Collects notes on the samples of the first `trees` trees of every update, the first of each sample.

    Shared by the learners of this process, whose threads all write to it; the loop empties it after every update.
    """

    def __init__(self, trees: int) -> None:
        self._trees, self._lock = trees, threading.Lock()
        self._notes: dict[SamplePosition, TokenNote] = {}

    def __reduce__(self) -> tuple[type[TokenNotes], tuple[int]]:
        """In another process nobody empties it, so there it takes nothing."""
        return TokenNotes, (0,)

    def wants(self, datum: TrainingSequence) -> bool:
        """Whether a note on the sequence would be kept."""
        place = datum.position
        return place is not None and place[0] < self._trees and any(datum.mask) and place not in self._notes

    def add(self, datum: TrainingSequence, logprobs: Sequence[float], entropy: Sequence[float]) -> None:
        """Note what the learner says of a sequence, both [T] as in the datum's own, from which the mask takes."""
        assert datum.position is not None
        kept = [index for index, inside in enumerate(datum.mask) if inside]
        note = TokenNote(datum.position, tuple(logprobs[i] for i in kept), tuple(entropy[i] for i in kept))
        with self._lock:
            self._notes.setdefault(datum.position, note)

    def drain(self) -> list[TokenNote]:
        """The notes since the last call, by place."""
        with self._lock:
            notes, self._notes = self._notes, {}
        return [notes[place] for place in sorted(notes)]
