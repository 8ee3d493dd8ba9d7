"""Statistics of single tokens in an update, kept for people to look at; nothing here reaches a loss."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from cadre.types import SamplePosition, TrainingSequence


@dataclass(frozen=True)
class TokenNote:
    """The learner's statistics of one sample of T tokens, before the first optimiser step of an update that changed it.

    `logprobs` and `entropy`, both [T], are under the distribution that the sample was drawn from; the difference of the
    first from the sampler's own is logprob_diff.
    """

    position: SamplePosition
    logprobs: tuple[float, ...]
    entropy: tuple[float, ...]


class TokenNotes:
    """Collects notes on the samples of the first `trees` trees of every update, the first of each sample. Shared by the
    learners of this process, whose threads all write to it; the loop empties it after every update."""

    def __init__(self, trees: int) -> None:
        self._trees, self._lock = trees, threading.Lock()
        self._notes: dict[SamplePosition, TokenNote] = {}

    def __reduce__(self) -> tuple[type[TokenNotes], tuple[int]]:
        """Pickle as notes on no tree: in another process nobody would empty them."""
        return TokenNotes, (0,)

    def wants(self, sequence: TrainingSequence) -> bool:
        """Return True if a note on the sequence would be kept."""
        position = sequence.position
        return position is not None and position[0] < self._trees and any(sequence.mask) and position not in self._notes

    def add(self, sequence: TrainingSequence, logprobs: Sequence[float], entropy: Sequence[float]) -> None:
        """Note the learner's statistics of a sequence, both [T] like its own; the mask selects from them."""
        assert sequence.position is not None
        indices = [index for index, inside in enumerate(sequence.mask) if inside]
        note = TokenNote(sequence.position, tuple(logprobs[i] for i in indices), tuple(entropy[i] for i in indices))
        with self._lock:
            self._notes.setdefault(sequence.position, note)

    def drain(self) -> list[TokenNote]:
        """Return the notes since the last call, by position."""
        with self._lock:
            notes, self._notes = self._notes, {}
        return [notes[position] for position in sorted(notes)]
