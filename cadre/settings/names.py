"""Names that stand in metrics and in the names of files: those of roles and policies."""

from __future__ import annotations

import re

MOST_LETTERS = 64
ALLOWED = re.compile(r"\w[\w.-]*")
# What metrics begin with that are nobody's, and what a checkpoint holds beside its policies.
METRICS = {"rollout", "time", "parts", "evaluate", "reward_model", "step"}
FILES = {"config.yaml", "state.json", "manifest.json", "in_flight.jsonl"}


def fault(name: str) -> str | None:
    """What is wrong with a name, as got, expected, what to do; None for one that can be used."""
    shown = repr(name if len(name) <= MOST_LETTERS else f"{name[:MOST_LETTERS]}...")
    if len(name) > MOST_LETTERS or not ALLOWED.fullmatch(name) or name.endswith("."):
        return (
            f"got the name {shown}; expected letters, digits, underscores, dots and hyphens, {MOST_LETTERS} at most, "
            "as it stands in metrics and in names of files. Rename it."
        )
    if name in METRICS | FILES:
        what = "metrics of the whole run" if name in METRICS else "another file"
        return f"got the name {shown}, which {what} would have too; expected another. Rename it."
    return None
