"""The longest sequence that a model takes, read off its transformers configuration."""

from __future__ import annotations

from typing import Any


def context_of(config: Any) -> int | None:
    """The most tokens of a sequence, prompt and completion; None where the configuration does not say.

    Where angles of positions would change beyond some length, it is that length (see `steady`).
    """
    text = config.get_text_config()
    limits = (getattr(text, "max_position_embeddings", None), steady(config))
    # XLNet says -1 for no limit.
    return min((limit for limit in limits if limit and limit > 0), default=None)


def steady(config: Any) -> int | None:
    """Up to which length of the longest sequence in a batch a model's rotary angles stay as they are; None for any.

    transformers chooses them by that length for `longrope` (Phi-3, 3.5 and 4-mini) and `dynamic`, and for all of the
    batch: beyond it, what a sequence's tokens are worth depends on those beside it, and on how many it has itself.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    by_layer = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return min((limit for limit in (_steady(text, parameters) for parameters in by_layer) if limit), default=None)


def _steady(text: Any, parameters: dict[str, Any]) -> int | None:
    kind = str(parameters.get("rope_type"))
    longest: int | None = getattr(text, "max_position_embeddings", None)
    if kind == "longrope":
        return parameters.get("original_max_position_embeddings") or longest
    return longest if "dynamic" in kind else None
