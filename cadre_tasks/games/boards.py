"""Boards drawn as pictures for models that see: a square of pixels a cell, in plain shapes and colours.

What stands in a cell is one of the things of `cadre.envs.drawings`; those that people see are drawn by the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from cadre.envs.images import image
from cadre.types import Image

FREE, WALL, BLUE, GREEN, BROWN = (240, 240, 240), (40, 40, 40), (40, 90, 220), (30, 160, 70), (180, 120, 40)
# From the back to the front: (shape, how much of the cell it takes, colour).
Layer = tuple[str, float, tuple[int, int, int]]
GOAL: Layer = ("square", 0.7, GREEN)
WALKER: Layer = ("disc", 0.7, BLUE)
BOX: Layer = ("square", 0.45, BROWN)
LAYERS: dict[str, tuple[Layer, ...]] = {
    "free": (),
    "wall": (("square", 1.0, WALL),),
    "walker": (WALKER,),
    "goal": (GOAL,),
    "box": (BOX,),
    "box on goal": (GOAL, BOX),
    "walker on goal": (GOAL, WALKER),
}


def board(rows: Sequence[str], legend: Mapping[str, str], cell: int) -> Image:
    """Return the rows of a drawing as an image with `cell` pixels a cell; `legend` names the thing of each letter."""
    return _drawn(tuple(tuple(legend[mark] for mark in row) for row in rows), cell)


@lru_cache(maxsize=512)
def _drawn(contents: tuple[tuple[str, ...], ...], cell: int) -> Image:
    import numpy

    return image(numpy.concatenate([numpy.concatenate([_tile(t, cell) for t in row], axis=1) for row in contents]))


@lru_cache(maxsize=64)
def _tile(content: str, cell: int) -> Any:
    """Return the image of one cell, uint8 [cell, cell, 3]."""
    import numpy

    tile = numpy.full((cell, cell, 3), FREE, numpy.uint8)
    offset = numpy.abs(numpy.arange(cell) - (cell - 1) / 2)  # of a pixel from the middle, along one direction
    for shape, size, colour in LAYERS[content]:
        row, column = offset[:, None], offset[None, :]
        # The Euclidean norm draws a disc, the maximum norm a square.
        distance = numpy.hypot(row, column) if shape == "disc" else numpy.maximum(row, column)
        tile[distance <= size * cell / 2] = colour
    return tile
