"""Pictures of states: of the bundled games, and refused where a legend names no thing."""

import json

import pytest

from cadre.envs import drawings
from cadre.errors import ContractError
from cadre_tasks.games.plan_path import PlanPath
from cadre_tasks.games.sokoban import Sokoban
from cadre_tasks.games.sudoku import Sudoku
from tests.helpers.playing import play


@pytest.mark.parametrize(("game", "settings"), [(PlanPath, {}), (Sokoban, {}), (Sudoku, {"size": 4})])
def test_a_games_board_is_a_grid(game: type, settings: dict) -> None:
    (task,) = game.tasks("train", **settings)[:1]
    drawing = game(task, **settings).render()
    assert drawing["kind"] == "grid"
    assert "\n".join(drawing["rows"]) == game(task, **settings).draw()
    assert json.loads(json.dumps(drawing)) == drawing


def test_between_program_and_answer_both_are_drawn_with_the_way() -> None:
    (task,) = PlanPath.tasks("train", size=3, blocked=0.0)[:1]
    env = PlanPath(task)
    play(env, "```python\nprint('Moves: RRDDLLUURRDD')\n```")
    state, program = env.render()["parts"]
    assert "o" in "".join(state["drawing"]["rows"])
    assert program["drawing"]["source"].strip() == "print('Moves: RRDDLLUURRDD')"
    assert program["drawing"]["results"][0]["ok"]


def test_a_legend_of_unknown_things_is_refused() -> None:
    with pytest.raises(ContractError, match="Did you mean wall"):
        drawings.grid(["#"], {"#": "wal"})
    assert drawings.several(("a", None), ("b", drawings.text("x")))["parts"] == [
        {"title": "b", "drawing": {"kind": "text", "text": "x"}}
    ]
    assert drawings.table(("a",), [(1,)]) == {"kind": "table", "head": ["a"], "rows": [[1]]}
