"""How a model's layers attend: to all tokens before, or to those in a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from cadre.errors import EngineError

FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names


@dataclass(frozen=True)
class LayerAttention:
    """The types of attention that a model's layers have, and the window of the sliding ones in tokens."""

    types: frozenset[str]
    window: int | None

    @classmethod
    def of(cls, config: Any) -> Self:
        """Read off a transformers configuration. Raises EngineError for a layer that is neither full nor sliding."""
        window: int | None = getattr(config, "sliding_window", None)
        types = frozenset(getattr(config, "layer_types", None) or [SLIDING if window else FULL])
        unknown = types - {FULL, SLIDING}
        if unknown:
            raise EngineError(
                f"The model has layers of the kind {sorted(unknown)[0]!r}; the torch engine samples from models whose "
                f"layers are {FULL} or {SLIDING}. Choose another model, or another engine."
            )
        return cls(types, window if SLIDING in types else None)
