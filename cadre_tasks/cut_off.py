"""Completions that reached their token limit, which the feedback of environments reports."""

from __future__ import annotations

from collections.abc import Mapping

from cadre.types import Sample


def count_cut_off(samples: Mapping[str, Sample]) -> dict[str, int]:
    """Return the tokens of each completion that ended because it reached its token limit, by role."""
    return {role: len(sample.token_ids) for role, sample in samples.items() if sample.finish == "length"}


def describe_cut_off(tokens: int) -> str:
    """Return "It was cut off at 512 tokens. ", or nothing for 0."""
    return f"It was cut off at {tokens:,} tokens. " if tokens else ""
