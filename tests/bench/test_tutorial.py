"""Figures of the tutorial are those that its commands print."""

from __future__ import annotations

import pytest

import tutorial


def test_successes_are_read_off_the_trainings() -> None:
    said = [f"success on 20 held-out tasks: 0.0% before, {after}% after" for after in ("95.0", "0.0")]
    assert tutorial.successes(said) == pytest.approx(
        {
            "tutorial.corridor.before.success": 0.0,
            "tutorial.corridor.after.success": 0.95,
            "tutorial.shared.before.success": 0.0,
            "tutorial.shared.after.success": 0.0,
        }
    )
    with pytest.raises(ValueError, match="zip"):
        tutorial.successes(said[:1])
