"""How a model's layers attend, as its configuration names it: to all tokens before, or to those in a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names


@dataclass(frozen=True)
class LayerAttention:
    """The types of attention that a model's layers have, and the window of the sliding ones in tokens."""

    types: frozenset[str]
    window: int | None

    @classmethod
    def of(cls, config: Any) -> Self:
        """Read off a transformers configuration. Layers of other kinds, as of a state space, are among the types."""
        window: int | None = getattr(config, "sliding_window", None)
        types = frozenset(getattr(config, "layer_types", None) or [SLIDING if window else FULL])
        return cls(types, window if SLIDING in types else None)
