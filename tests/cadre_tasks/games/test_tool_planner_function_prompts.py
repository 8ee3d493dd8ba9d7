"""`prompts: function`: the program is a function that the sandbox calls, in every form of the games."""

import asyncio

import pytest

from cadre.types import Reward, Sample, Task
from cadre_tasks.games.plan_path import PlanPath, PlanPathNoTool, PlanPathSingleAgent, PlanPathTool
from cadre_tasks.games.sokoban import Sokoban, SokobanSingleAgent, SokobanTool
from cadre_tasks.games.sudoku import Sudoku, SudokuSingleAgent, SudokuTool
from cadre_tasks.games.tool_planner import ToolPlanner, extract_program
from tests.helpers.playing import play, prompt

GRID = ["S.#", ".#.", "..G"]
LEVEL = ["#####", "#S..#", "#.BG#", "#...#", "#####"]
PUZZLE = ["12..", "..12", "...3", "4..."]

SEARCH = """\
def shortest_path(grid, start, goal):
    queue, seen = deque([[start]]), {start}
    while queue:
        path = queue.popleft()
        row, column = path[-1]
        if path[-1] == goal:
            return path
        for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= cell[0] < len(grid) and 0 <= cell[1] < len(grid[0])
            if inside and grid[cell[0]][cell[1]] != "#" and cell not in seen:
                seen.add(cell)
                queue.append(path + [cell])
"""
PUSH = """\
def find_moves(start, step, is_solved):
    queue, seen = deque([(start, "")]), {start}
    while queue:
        state, path = queue.popleft()
        if is_solved(state):
            return path
        for move in "UDLR":
            target = step(state, move)
            if target not in seen:
                seen.add(target)
                queue.append((target, path + move))
"""
FILL = """\
def solve_sudoku(grid, is_allowed):
    for r in range(4):
        for c in range(4):
            if grid[r][c] == 0:
                for v in range(1, 5):
                    if is_allowed(grid, r, c, v):
                        grid[r][c] = v
                        if solve_sudoku(grid, is_allowed):
                            return grid
                        grid[r][c] = 0
                return None
    return grid
"""
SOLVERS = [(PlanPath, GRID, SEARCH), (Sokoban, LEVEL, PUSH), (Sudoku, PUZZLE, FILL)]


def make(kind: type[ToolPlanner], rows: list[str], **settings) -> ToolPlanner:
    return kind(Task("t", {"grid": rows}), prompts="function", **settings)


def sampled(env: ToolPlanner, text: str, finish: str, tokens: int) -> Reward:
    (role,) = env.observe()
    sample = Sample(role, "policy", text, (), (1,) * tokens, (0.0,) * tokens, finish, 0)
    return asyncio.run(env.step_samples({role: sample}))


@pytest.mark.parametrize(("kind", "rows", "program"), SOLVERS)
def test_a_function_solves_the_game(kind: type[ToolPlanner], rows: list[str], program: str) -> None:
    env = make(kind, rows)
    reward = play(env, f"Here it is:\n```python\n{program}```\nIt searches.")[0]
    assert (reward.parts["tool/ran"], reward.parts["tool/goal"]) == (1.0, 1.0)
    assert "It returned" in prompt(env)
    assert env.run.answer is not None


@pytest.mark.parametrize(("kind", "rows", "program"), SOLVERS)
def test_the_function_has_the_reward_of_a_script_with_the_same_answer(
    kind: type[ToolPlanner], rows: list[str], program: str
) -> None:
    env = make(kind, rows)
    (reward,) = play(env, program)
    script = kind(Task("t", {"grid": rows}))
    assert env.run is not None
    (printed,) = play(script, f"print({env.run.answer!r})")
    assert (reward.team, reward.local, reward.parts) == (printed.team, printed.local, printed.parts)


@pytest.mark.parametrize(
    "kind", [PlanPathTool, SokobanTool, SudokuTool, PlanPathSingleAgent, SokobanSingleAgent, SudokuSingleAgent]
)
def test_single_agents_get_the_same_prompt(kind: type[ToolPlanner]) -> None:
    rows = {"P": GRID, "S": LEVEL}[kind.__name__[0]] if "Sudoku" not in kind.__name__ else PUZZLE
    team = next(base for base in kind.__mro__ if base in (PlanPath, Sokoban, Sudoku))
    assert prompt(make(kind, rows)) == prompt(make(team, rows))


def test_the_prompt_of_plan_path() -> None:
    text = prompt(make(PlanPath, GRID))
    assert "\n\ndef shortest_path(grid, start, goal):\n    # " in text
    assert "\n\nS.#\n.#.\n..G\n\n" in text
    assert text.endswith(".")
    for name in ("`free`", "`moves`", "defined before"):
        assert name not in text


def test_the_size_of_a_sudoku_is_in_its_prompt() -> None:
    nine = make(Sudoku, next(iter(Sudoku.tasks("train", size=9))).data["grid"])
    assert "boxes of 3x3" in prompt(nine)
    assert "9 lists of 9 int" in prompt(nine)


def test_a_planner_alone_is_prompted_as_before() -> None:
    single, full = make(PlanPathNoTool, GRID), PlanPathNoTool(Task("t", {"grid": GRID}))
    assert prompt(single) == prompt(full)


def test_the_next_turn_starts_where_the_walker_is() -> None:
    env = make(PlanPath, GRID, turns=3)
    play(env, SEARCH, "Moves: D")
    assert "\n\n..#\nS#.\n..G\n\n" in prompt(env)
    play(env, SEARCH)
    assert env.run is not None
    assert env.run.answer == "DRR"


@pytest.mark.parametrize(
    ("body", "feedback"),
    [
        ("return [start, goal]", "`shortest_path` returned [[0, 0], [2, 2]]: (0, 0) and (2, 2) follow each other"),
        ("return", "`shortest_path` returned None: this is nothing."),
        ("return []", "`shortest_path` returned []: the list is empty."),
        ("yield start", "`shortest_path` returned an object of type generator; expected numbers and texts in lists."),
        ("raise SystemExit", "The program ended before `shortest_path` returned."),
        ("return path", 'File "<program>", line 2, in shortest_path'),
        ("while True: pass", "in the loop that begins in line 2"),
    ],
)
def test_the_feedback_says_what_came_of_the_call(body: str, feedback: str) -> None:
    env = make(PlanPath, GRID)
    (reward,) = play(env, f"```python\n\ndef shortest_path(grid, start, goal):\n    {body}\n```")
    assert reward.local["tool"] == -0.2
    assert feedback in prompt(env)
    assert "It did not give an answer (status " in prompt(env)


@pytest.mark.parametrize("prompts", ["full", "function"])
def test_a_completion_that_was_cut_off_is_read_and_reported(prompts: str) -> None:
    program = SEARCH if prompts == "function" else "print('DDRR')"
    env = PlanPath(Task("t", {"grid": GRID}), prompts=prompts)
    reward = sampled(env, f"```python\n{program}", "length", 1200)
    assert reward.parts["tool/goal"] == 1.0
    assert "```\nIt was cut off at 1,200 tokens. It " in prompt(env)


def test_what_ended_by_itself_is_not_reported_as_cut() -> None:
    env = make(PlanPath, GRID)
    sampled(env, SEARCH[:30], "stop", 12)
    assert "cut off" not in prompt(env)
    assert "SyntaxError" in prompt(env)


def test_syntax_errors_count_from_the_first_line_that_is_shown() -> None:
    env = make(PlanPath, GRID)
    play(env, "```python\n\n  \ndef shortest_path(grid, start, goal):\n    return (1\n```")
    assert "wrote this program:\n```python\ndef shortest_path(" in prompt(env)
    assert 'File "<program>", line 2\n' in prompt(env)
    script = PlanPath(Task("t", {"grid": GRID}))
    play(script, "```python\nx = 1\nprint(x\n```")
    assert 'File "<program>", line 2\n' in prompt(script)


def test_the_program_keeps_its_indentation() -> None:
    assert extract_program("```python\n\n  x = 1\n  y = 2\n\n```") == "  x = 1\n  y = 2\n\n"


# A program that tampers with its arguments is as good as what it returns: moves are tried on the true state.
CHEATS = {
    "a solved function that is always true": PUSH.replace(
        "    queue, seen", "    is_solved = lambda s: True\n    queue, seen"
    ),
    "states of its own": "def find_moves(start, step, is_solved):\n    return 'R' * 5\n",
    "a printed answer": "print('DRUURD')\ndef find_moves(start, step, is_solved):\n    print('DRUURD')\n",
    "goals that are moved": PUSH.replace(
        "    queue, seen", "    is_solved.__globals__['goals'] = start[1]\n    queue, seen"
    ),
    "a text that equals everything": (
        "class Moves(str):\n    def __eq__(self, other): return True\n    def __iter__(self): return iter('DRUURD')\n"
        "    __hash__ = str.__hash__\ndef find_moves(start, step, is_solved):\n    return Moves('RR')\n"
    ),
    "a list of texts that change": (
        "class L(list):\n    def __getitem__(self, i): return 'D'\n"
        "def find_moves(start, step, is_solved):\n    return L([is_solved])\n"
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_tampering_program_solves_nothing(name: str) -> None:
    env = make(Sokoban, LEVEL)
    (reward,) = play(env, CHEATS[name])
    assert reward.parts["tool/goal"] == 0.0
    assert not env.success


def test_a_solver_that_fills_nothing_has_no_answer() -> None:
    for body in ("pass", "return True", "return None"):
        env = make(Sudoku, PUZZLE)
        (reward,) = play(env, f"def solve_sudoku(grid, is_allowed):\n    {body}\n")
        assert reward.local["tool"] == -0.2
        assert env.run is not None
        assert env.run.answer is None


def test_a_solver_may_fill_the_grid_in_place() -> None:
    for value in ("True", "None"):
        env = make(Sudoku, PUZZLE)
        program = FILL.replace("return grid", "return True")
        outer = f"def solve_sudoku(grid, is_allowed):\n    fill(grid, is_allowed)\n    return {value}\n"
        inner = program.replace("solve_sudoku(", "fill(")
        assert play(env, inner + outer)[0].parts["tool/goal"] == 1.0


def test_a_clue_that_is_overwritten_in_place_fails() -> None:
    env = make(Sudoku, PUZZLE)
    full = [[2, 1, 3, 4], [3, 4, 1, 2], [1, 2, 4, 3], [4, 3, 2, 1]]
    (reward,) = play(env, f"def solve_sudoku(grid, is_allowed):\n    grid[:] = {full}\n    return True\n")
    assert reward.parts["tool/goal"] == 0.0
    assert "contradicts a digit of the puzzle" in prompt(env)
