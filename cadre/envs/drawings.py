"""Pictures of a state for people to look at: what `Env.render` returns, plain JSON that `cadre view` draws.

    def render(self):
        return grid(self.rows, {"#": "wall", "S": "walker", "G": "goal"})

Nothing in them reaches a model. What this leaves out: colours and sizes, which are the page's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadre.errors import ContractError, nearest
from cadre.types import Drawing

# What a mark of a grid stands for, from which the page takes its colour and its figure.
THINGS = ("free", "wall", "walker", "goal", "box", "box on goal", "walker on goal", "given", "filled", "empty", "path")


def grid(rows: Sequence[str], legend: Mapping[str, str], boxes: int = 0) -> Drawing:
    """A board of one letter a cell. `legend` says which of THINGS a letter is; others are written as they are. `boxes`
    is the width of the blocks that are set apart by a thicker line, as in a sudoku; 0 for none. Raises ContractError
    for a thing that there is not."""
    for letter, thing in legend.items():
        if thing not in THINGS:
            raise ContractError(
                f"render: {letter!r} is {thing!r} in the legend; expected one of {', '.join(THINGS)}. Leave a letter "
                f"out of the legend to have it written as it is.{nearest(thing, THINGS)}"
            )
    return {"kind": "grid", "rows": list(rows), "legend": dict(legend), "boxes": boxes}


def code(source: str, results: Sequence[Mapping[str, Any]] = (), language: str = "python") -> Drawing:
    """A program, with the tests it was put to: `{"name": "1", "ok": False, "message": "got 3"}` each."""
    return {"kind": "code", "source": source, "language": language, "results": [dict(result) for result in results]}


def table(head: Sequence[str], rows: Sequence[Sequence[str | float]]) -> Drawing:
    """Rows under a heading."""
    return {"kind": "table", "head": list(head), "rows": [list(row) for row in rows]}


def text(words: str) -> Drawing:
    """A text as it is, line breaks and all."""
    return {"kind": "text", "text": words}


def several(*titled: tuple[str, Drawing]) -> Drawing:
    """Drawings under each other, each with a title; those that are None are left out."""
    return {"kind": "several", "parts": [{"title": title, "drawing": part} for title, part in titled if part]}
