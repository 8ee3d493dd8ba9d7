"""Plan-Path: the generator, the reward and the exploits that must not pay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadre import noise
from cadre.envs.plan_path import (
    Grid,
    PlanPath,
    PlanPathAlone,
    PlanPathSolo,
    PlanPathTool,
    parse_grid,
    reachable,
    shortest,
)
from cadre.envs.tool_planner import MOVES, extract_program, numbered, parse_moves
from cadre.models.programs.plan_path import CORNER, SEARCH, SEARCH_MISTAKES
from cadre.types import Task
from tests.playing import play, solved_by

ROWS = ["S..", ".#.", "..G"]


def alone(rows: list[str] = ROWS, **options) -> PlanPathAlone:
    return PlanPathAlone(Task("t", {"grid": rows}), **options)


def test_the_reward_of_an_optimal_path_by_hand() -> None:
    env = alone()
    (reward,) = play(env, "RRDD")
    # 4 moves at -0.01, 4 cells of progress at 0.1, goal 1, optimal 0.5
    assert reward.team == pytest.approx(-0.04 + 0.4 + 1.0 + 0.5)
    assert reward.parts["optimal"] == 0.5
    assert env.success
    assert env.observe() == {}


def test_critics_are_shown_a_way_from_where_the_team_stands() -> None:
    env = alone()
    assert env.privileged() == "solution 1D 2D 3R 4R"
    play(env, "R")
    assert env.privileged() == "solution 1R 2D 3D"
    assert env.outcome(parse_moves(env.privileged().removeprefix("solution ")) or "").solved


def test_an_invalid_move_stays_and_costs() -> None:
    env = alone()
    (reward,) = play(env, "RD")  # the centre is blocked
    assert reward.team == pytest.approx(-0.02 - 0.10 + 0.1)
    assert env.cell == (0, 1)


def test_the_goal_by_a_detour_is_success_without_the_bonus() -> None:
    env = alone()
    (reward,) = play(env, "RLRRDD")
    assert env.success
    assert reward.team == pytest.approx(-0.06 + 0.4 + 1.0)


def test_the_prompt_shows_where_the_walker_is_now() -> None:
    env = alone(prompts="compact")
    play(env, "RR")
    assert env.observe()["planner"].messages[0].content == "moves\n..S\n.#.\n..G"


def test_what_the_planner_sees_of_the_tool() -> None:
    env = PlanPath(Task("t", {"grid": ROWS}), prompts="compact")
    (reward,) = play(env, SEARCH)
    assert reward.team == 0.0
    assert reward.local["tool"] == pytest.approx(0.1 - 0.04 + 0.4 + 1.0 + 0.5)
    (observation,) = env.observe().values()
    assert observation.role == "planner"
    assert observation.messages[0].content.endswith("tool goal 1D 2D 3R 4R")
    full = PlanPath(Task("t", {"grid": ROWS}), prompts="full")
    play(full, f"Here:\n```python\n{SEARCH}```")
    shown = full.observe()["planner"].messages[0].content
    assert SEARCH.strip() in shown
    assert "printed DDRR. These moves would reach the goal" in shown


def test_what_a_lone_tool_answers_is_executed() -> None:
    env = PlanPathTool(Task("t", {"grid": ROWS}), turns=2)
    (reward,) = play(env, "print('R')")
    assert (reward.team, reward.local) == (pytest.approx(-0.01 + 0.1), {})
    assert env.cell == (0, 1)
    (reward,) = play(env, "print(")
    assert reward.local == {"tool": -0.2}
    assert env.observe() == {}
    solver = PlanPathTool(Task("t", {"grid": ROWS}))
    (reward,) = play(solver, SEARCH)
    assert reward.team == pytest.approx(-0.04 + 0.4 + 1.0 + 0.5)
    assert solver.success


def test_by_outcome_only_the_goal_pays() -> None:
    env = PlanPath(Task("t", {"grid": ROWS}), reward="outcome")
    wrong, idle, right, away, last, goal = play(env, "print('R')", "", SEARCH, "RR", SEARCH, "DD")
    assert [one.local.get("tool") for one in (wrong, right, last)] == [0.0, 1.0, 0.0]
    assert [one.team for one in (idle, away, goal)] == [0.0, 0.0, 1.0]
    assert idle.local == {"planner": 0.0}
    assert env.success


def test_a_program_that_fails_is_reported_and_the_state_stays() -> None:
    env = PlanPath(Task("t", {"grid": ROWS}), prompts="compact")
    (reward,) = play(env, "print(")
    assert reward.local == {"tool": -0.2}
    assert env.cell == (0, 0)
    assert env.observe()["planner"].messages[0].content.endswith("tool error")


def test_the_solo_agent_goes_on_in_one_conversation() -> None:
    env = PlanPathSolo(Task("t", {"grid": ROWS}), prompts="compact")
    first = env.observe()["agent"].messages
    play(env, SEARCH)
    second = env.observe()["agent"].messages
    assert second[: len(first)] == first
    assert [message.role for message in second] == ["user", "assistant", "user"]
    assert second[1].content == SEARCH


def test_running_out_of_turns_is_a_failure() -> None:
    env = alone(turns=2)
    play(env, "R", "R")
    assert env.observe() == {}
    assert not env.success


@settings(max_examples=100, deadline=None)
@given(st.text("UDLR", min_size=1, max_size=40), st.integers(0, 50))
def test_no_cycle_pays(moves: str, index: int) -> None:
    """Coming back to where one was costs at least a hundredth a move: the potential telescopes."""
    env = PlanPathAlone(PlanPathAlone.tasks("test")[index])
    cell = env.cell
    for move in moves:
        cell = env.grid.step(cell, move)
        if cell == env.grid.goal:
            return
    if cell == env.cell:
        (reward,) = play(env, moves)
        assert reward.team <= -0.01 * len(moves) + 1e-9


@given(st.integers(0, 10**9), st.floats(0.1, 0.6))
def test_flooding_agrees_with_the_search(seed: int, blocked: float) -> None:
    generator = noise.generator(seed)
    free = [(r, c) for r in range(7) for c in range(7) if generator.random() >= blocked]
    start, goal = generator.sample(free, 2)
    found = shortest(Grid(7, frozenset(free), goal), start)
    assert reachable(7, free, start, goal) is (found is not None)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9_999))
def test_generated_tasks_are_solvable_with_distinct_ends(index: int) -> None:
    rows = PlanPath.tasks("test")[index].data["grid"]
    grid, start = parse_grid(rows)
    assert start != grid.goal
    path = shortest(grid, start)
    assert path is not None
    cell = start
    for move in path:
        assert grid.step(cell, move) != cell
        cell = grid.step(cell, move)
    assert cell == grid.goal
    assert len(rows) == 10


def test_no_test_grid_is_a_training_grid_and_splits_are_stable() -> None:
    for split, wanted in (("test", True), ("train", False)):
        for task in PlanPath.tasks(split)[:50]:  # type: ignore[arg-type]
            assert (noise.key("split", *task.data["grid"]) % 10 == 0) is wanted
    assert PlanPath.tasks("test")[3] == PlanPath.tasks("test")[3]


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("RRD", "RRD"),
        ("1R 2R 3D", "RRD"),
        ("R, R, D\n", "RRD"),
        ("I go right.\nMoves: R R D", "RRD"),
        ("moves: U\nno, wait. Moves: RRD", "RRD"),
        ("", None),
        ("right", None),
        ("RRD!", None),
        ("Moves:", None),
    ],
)
def test_answers(text: str, moves: str | None) -> None:
    assert parse_moves(text) == moves


@given(st.text("UDLR", min_size=1, max_size=40))
def test_numbering_is_read_back(moves: str) -> None:
    assert parse_moves(numbered(moves)) == moves


def test_programs_in_fences() -> None:
    assert extract_program("```python\nprint(1)\n```\nor\n```py\nprint(2)\n```") == "print(2)\n"
    assert extract_program("print(3)") == "print(3)"


def test_the_right_program_solves_every_task_and_the_mistaken_ones_rarely() -> None:
    tasks = PlanPath.tasks("test")[:4]
    assert solved_by(PlanPath, SEARCH, tasks) == 4
    assert solved_by(PlanPath, CORNER, tasks) < 4
    wrong = [SEARCH.replace(old, new) for old, new in SEARCH_MISTAKES[:6]]
    assert sum(solved_by(PlanPath, program, tasks) for program in wrong) <= 6
    assert set(MOVES) == set("UDLR")
