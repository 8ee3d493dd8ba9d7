"""Drawings of a state for people to look at: the return value of `Env.render`, plain JSON that `cadre view` draws.

    def render(self):
        return grid(self.rows, {"#": "wall", "S": "walker", "G": "goal"})

Nothing in them reaches a model. Colours and sizes are the page's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadre.errors import ContractError, nearest
from cadre.types import Drawing

# The meanings of a grid's letters, from which the page takes colour and figure.
THINGS = ("free", "wall", "walker", "goal", "box", "box on goal", "walker on goal", "given", "filled", "empty", "path")


def grid(rows: Sequence[str], legend: Mapping[str, str], boxes: int = 0) -> Drawing:
    """Return a board of one letter a cell. Raises ContractError for an unknown thing.

    `legend` maps letters to THINGS; others are written as they are. `boxes` is the width of the blocks that a thicker
    line separates, as in a sudoku; 0 for none.
    """
    for letter, kind in legend.items():
        if kind not in THINGS:
            expected = f"expected one of {', '.join(THINGS)}, or no entry. Fix or remove it.{nearest(kind, THINGS)}"
            raise ContractError(f"render: {letter!r} is {kind!r} in the legend; {expected}")
    return {"kind": "grid", "rows": list(rows), "legend": dict(legend), "boxes": boxes}


def code(source: str, results: Sequence[Mapping[str, Any]] = (), language: str = "python") -> Drawing:
    """Return a program with its test results, `{"name": "1", "ok": False, "message": "got 3"}` each."""
    return {"kind": "code", "source": source, "language": language, "results": [dict(result) for result in results]}


def table(head: Sequence[str], rows: Sequence[Sequence[str | float]]) -> Drawing:
    """Return rows under a heading."""
    return {"kind": "table", "head": list(head), "rows": [list(row) for row in rows]}


def text(words: str) -> Drawing:
    """Return a text as it is, with its line breaks."""
    return {"kind": "text", "text": words}


def several(*titled: tuple[str, Drawing]) -> Drawing:
    """Return drawings under each other, each with a title; those that are None are left out."""
    return {"kind": "several", "parts": [{"title": title, "drawing": part} for title, part in titled if part]}
