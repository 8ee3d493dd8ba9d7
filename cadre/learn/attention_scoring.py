"""How scores of attention are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scoring:
    """A score is a product of query and key times `scale`; a `softcap` c makes a score s into c tanh(s / c).

    A token attends to at most `window` tokens, itself included.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
