"""Games on a board that a planner sees as a picture: Plan-Path and Sokoban, with the same tasks, moves and rewards.

The grid itself is in no prompt. There is no role that writes programs, as those would read the grid as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre.types import Message, Task
from cadre_tasks.games import plan_path, sokoban
from cadre_tasks.games.boards import board
from cadre_tasks.games.tool_planner import WORDS, PlannerNoTool

Pixels = Annotated[int, Field(ge=4, le=64)]
MOVES = "Moves: U (up), D (down), L (left), R (right)."


class Pictured(PlannerNoTool):
    """A planner without the tool that sees the state as an image. Name it before the game among the bases. Settings,
    beside those of the game: `cell`, the width of a board cell in pixels."""

    legend: ClassVar[Mapping[str, str]]

    def __init__(self, task: Task, cell: Pixels = 28, **settings: Any) -> None:
        super().__init__(task, **settings)  # type: ignore[call-arg]  # the game that comes next
        self.pixels = cell

    def conversation(self) -> tuple[Message, ...]:
        # The compact prompt is its title alone: the image holds the state.
        text = self.titles[1] if self.words is WORDS["compact"] else self.rules() + self.ask_answer()
        return (Message("user", text, images=(board(self.draw().split("\n"), self.legend, self.pixels),)),)


class PlanPathPicture(Pictured, plan_path.PlanPath):
    """Plan-Path, seen."""

    legend = plan_path.LEGEND

    def rules(self) -> str:
        return (
            f"The picture shows a {self.grid.size}x{self.grid.size} grid. The blue disc is you, the green square is "
            f"the goal, black cells are blocked, white ones are free.\n{MOVES} A move into a blocked cell or off the "
            "grid stays in place and costs extra; fewer moves are better. "
            f"At most {self.max_moves} moves are executed.\n\n"
        )


class SokobanPicture(Pictured, sokoban.Sokoban):
    """Sokoban, seen."""

    legend = sokoban.LEGEND

    def rules(self) -> str:
        return (
            f"The picture shows a Sokoban level of {self.level.rows}x{self.level.columns} cells. Black cells are walls,"
            " white ones are floor, the blue disc is you, brown squares are boxes, green squares are goals; a box or "
            f"you may stand on a goal. Every box must end on a goal.\n{MOVES} Walking into a box pushes it one cell if "
            "the cell behind it is free of walls and boxes; boxes cannot be pulled. Any other blocked move stays in "
            "place. "
            f"{self.max_moves - self.spent} moves are left.\n\n"
        )
