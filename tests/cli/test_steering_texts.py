"""Texts in records that would steer a terminal are written out."""

from __future__ import annotations

import pytest

from cadre.cli.play import format_tree
from cadre.files import validate_record
from cadre.runs.records import StepMetrics

STEERING = "\x1b]0;title\x07\x1b[2J\u202e"


def test_the_id_of_a_task() -> None:
    """Mistake: it is printed as it is."""
    (line,) = format_tree(
        {"step": 0, "tree": 0, "task": {"id": STEERING}, "nodes": [{"observations": {}, "branches": []}]}
    )
    assert "2J" in line
    assert not set("\x1b\x07\u202e") & set(line)


def test_the_name_of_a_metric_in_a_damaged_line() -> None:
    with pytest.raises(ValueError, match="2J") as raised:
        validate_record({"step": 0, STEERING: "x"}, StepMetrics)
    assert not set("\x1b\x07\u202e") & set(str(raised.value))
