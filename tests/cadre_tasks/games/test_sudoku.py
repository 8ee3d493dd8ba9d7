"""Sudoku: the reward by hand, clues that are kept, one solution, and answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadre.envs.splits import in_split
from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.games.sudoku import Sudoku, SudokuNoTool, SudokuSingleAgent
from cadre_tasks.games.sudoku_grid import solutions
from tests.helpers.playing import play, prompt

# Sixteen cells, of which six are clues; worked out by hand below.
CLUES = ["12..", "..12", "...3", "4..."]
FULL = ["1234", "3412", "2143", "4321"]


def alone(rows: list[str] = CLUES, **options) -> SudokuNoTool:
    return SudokuNoTool(Task("t", {"grid": rows}), **options)


def test_the_reward_of_the_solution_by_hand() -> None:
    env = alone()
    assert env.solution == tuple(FULL)
    assert env.blanks == 10
    (reward,) = play(env, " ".join(FULL))
    # the potential from 0 to 1, half of 1 for the solved grid; ten cells written at -0.01, the other half
    assert reward.team == pytest.approx(1.0 + 0.5)
    assert reward.local == {"planner": pytest.approx(-0.1 + 0.5)}
    assert env.success
    assert env.observe() == {}


def test_what_is_partly_filled_becomes_the_state() -> None:
    env = alone(prompts="compact")
    (reward,) = play(env, "123. ..12 ...3 4...")  # one right cell of ten
    assert (reward.team, reward.local["planner"]) == pytest.approx((0.1, -0.01))
    assert prompt(env) == "sudoku grid\n123.\n..12\n...3\n4..."
    (reward,) = play(env, "124. ..12 ...3 4...")  # right turns wrong: from 0.1 to -0.1
    assert (reward.team, reward.local["planner"]) == pytest.approx((-0.2, -0.01))
    (reward,) = play(env, "12.. ..12 ...3 4...")
    assert (reward.team, reward.local["planner"]) == pytest.approx((0.1, -0.01))
    assert env.state == tuple(CLUES)


@pytest.mark.parametrize("answer", ["2134 3412 2143 4321", "4321 2143 3412 1234", ".234 3412 2143 4321"])
def test_a_grid_that_contradicts_a_clue_fails(answer: str) -> None:
    """Also one that is a solution of another puzzle, and one that leaves a clue out."""
    env = alone()
    (reward,) = play(env, answer)
    assert (reward.team, reward.local["planner"]) == (0.0, -0.2)
    assert reward.parts["clues"] == -0.2
    assert env.state == tuple(CLUES)
    assert not env.success


def test_a_full_grid_with_mistakes_is_no_success() -> None:
    env = alone(turns=1)
    (reward,) = play(env, "1234 3412 2143 4341")
    assert reward.parts["solved"] == 0.0
    assert (reward.team, reward.local["planner"]) == pytest.approx((0.8, -0.1))
    assert env.observe() == {}
    assert not env.success


def test_what_the_roles_see() -> None:
    env = Sudoku(Task("t", {"grid": CLUES}), prompts="compact")
    assert prompt(env) == "sudoku program\n" + "\n".join(CLUES)
    (reward,) = play(env, "for row in ['1234', '3412', '2143', '4321']:\n    print(row)")
    assert reward.team == pytest.approx(1.0 + 0.5)
    assert reward.local == {"tool": pytest.approx(0.1 - 0.1 + 0.5)}
    assert prompt(env) == "sudoku grid\n" + "\n".join(CLUES) + "\ntool solved 1:1234 2:3412 3:2143 4:4321"
    play(env, "")
    play(env, "for row in ['1234', '3412', '2143', '4341']:\n    print(row)")
    assert prompt(env).endswith("\ntool wrong 1:1234 2:3412 3:2143 4:4341")
    play(env, "")
    play(env, "1 / 0")
    assert prompt(env).endswith("\ntool error")
    full = Sudoku(Task("t", {"grid": CLUES}), prompts="full")
    play(full, "```python\nfor row in grid:\n    print(*[x or 3 for x in row], sep='')\n```")
    assert "This grid is no solution." in prompt(full)
    assert "x or 3" in prompt(full)


def test_programs_find_the_names_of_the_prelude() -> None:
    env = Sudoku(Task("t", {"grid": CLUES}))
    program = "print(size, side, list(digits), len(empty), empty[0], fits(0, 2, 3), fits(0, 2, 1), fits(3, 2, 1))"
    play(env, program)
    assert env.run is not None
    assert env.run.stdout == "4 2 [1, 2, 3, 4] 10 (0, 2) True False False\n"


def test_the_solo_agent_goes_on_in_one_conversation() -> None:
    env = SudokuSingleAgent(Task("t", {"grid": CLUES}), prompts="compact")
    play(env, "print(1)")
    assert [message.role for message in env.observe()["agent"].messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1234 3412 2143 4321", "1234 3412 2143 4321"),
        ("1:1234 2:3412 3:2143 4:4321", "1234 3412 2143 4321"),
        ("1234\n34..\n2143\n....\n", "1234 34.. 2143 ...."),
        ("I see.\nGrid:\n1234\n3412\n2143\n4321", "1234 3412 2143 4321"),
        ("grid: 1111\nno, Grid: 1234 3412 2143 4321", "1234 3412 2143 4321"),
        ("Grid: 1234, 3412, 2143, 4321.", "1234 3412 2143 4321"),
        ("Grid: 1234 3412 2143 432.", "1234 3412 2143 432."),
        ("1234 3412. 2143 4321", None),
        ("", None),
        ("Grid:", None),
        ("1234 3412 2143", None),
        ("1234 3412 2143 4325", None),
        ("1234 3412 2143 432", None),
        ("2:1234 1:3412 3:2143 4:4321", None),
        ("1234 3412 2143 4321 done", None),
        ("1 2 3 4", None),
        ("1234 3412 2143 43²1", None),
    ],
)
def test_answers(text: str, answer: str | None) -> None:
    assert alone().parse(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            "```python\ngrid = [\n  [1, 2, 3, 4],\n  [3, 4, 1, 2],\n  [2, 1, 0, 3],\n  [4, 3, 2, 1]\n]\n```",
            "1234 3412 21.3 4321",
        ),
        ("Grid: [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]] I hope.", "1234 3412 2143 4321"),
        ("grid = [[1,2,3,4]]\ngrid = [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]", "1234 3412 2143 4321"),
        ("Grid:\n1234\n3412\n2143\n4321", "1234 3412 2143 4321"),
        ("grid = [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1],]", None),
        ("grid = [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,5]]", None),
        ("grid = [[1,2,3,4],[3,4,1,2],[2,1,4,3]]", None),
        ("grid = [[" + "1" * 5000 + "]]", None),
        ("grid = " + "[" * 5000, None),
    ],
)
def test_answers_as_a_list(text: str, answer: str | None) -> None:
    assert alone(prompts="function").parse(text) == answer


def test_models_that_write_functions_see_lists() -> None:
    env = Sudoku(Task("t", {"grid": CLUES}), prompts="function")
    play(
        env, "def solve_sudoku(grid, is_allowed):\n    return [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]"
    )
    text = prompt(env)
    assert text.count("grid = [") == 2  # the puzzle and the program's grid; the state is the puzzle still
    assert "    [1, 2, 0, 0],\n    [0, 0, 1, 2]," in text
    assert "    [2, 1, 4, 3],\n    [4, 3, 2, 1]\n]\n```\nThis grid is a solution." in text
    play(env, "grid = [[1, 2, 3, 0], [0, 0, 1, 2], [0, 0, 0, 3], [4, 0, 0, 0]]")
    play(env, "")
    assert prompt(env).count("grid = [") == 2
    assert "The grid so far" in prompt(env)


@given(st.lists(st.text("1234.", min_size=4, max_size=4), min_size=4, max_size=4))
def test_numbering_is_read_back(rows: list[str]) -> None:
    env = alone()
    assert env.parse(env.show(" ".join(rows))) == " ".join(rows)


@settings(max_examples=100)
@given(st.lists(st.text("1234.", min_size=10, max_size=10), min_size=1, max_size=6), st.integers(0, 50))
def test_no_cycle_pays(fills: list[str], index: int) -> None:
    """Writing anything and taking it back costs a hundredth a cell each way: the potential telescopes."""
    env = SudokuNoTool(SudokuNoTool.tasks("test")[index], turns=20)
    team = local = 0.0
    for marks in [*fills, "." * 10]:
        rest = iter(marks)
        rows = ["".join(next(rest) if mark == "." else mark for mark in row) for row in env.puzzle]
        (reward,) = play(env, " ".join(rows))
        team, local = team + reward.team, local + reward.local["planner"]
        if env.success:
            return
    assert env.state == env.puzzle
    assert (team, local) == pytest.approx((0.0, -0.01 * env.spent))


def test_nine_by_nine() -> None:
    for task in Sudoku.tasks("test", size=9)[:3]:
        rows = task.data["grid"]
        assert "".join(rows).count(".") == 81 - 36
        env = SudokuNoTool(task, size=9)
        (reward,) = play(env, "Grid:\n" + "\n".join(env.solution))
        assert env.success
        assert (reward.team, reward.local["planner"]) == pytest.approx((1.0 + 0.5, -0.45 + 0.5))


def test_the_solution_decides_the_split() -> None:
    for split, expected in (("test", True), ("train", False)):
        for task in Sudoku.tasks(split)[:50]:  # type: ignore[arg-type]
            assert in_split("test", *solutions(task.data["grid"])[0]) is expected
    assert Sudoku.tasks("test")[3] == Sudoku.tasks("test")[3]


@pytest.mark.parametrize("rows", [["....", "....", "....", "...."], ["11..", "....", "....", "...."]])
def test_a_puzzle_without_exactly_one_solution_is_refused(rows: list[str]) -> None:
    with pytest.raises(ValueError, match="one solution"):
        alone(rows)


def test_clues_for_which_there_is_no_room_are_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than 16"):
        Sudoku.tasks("train", size=4, clues=16)
