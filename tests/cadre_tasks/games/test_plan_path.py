"""Plan-Path: the generator, the reward and the exploits that must not pay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadre import random_keys
from cadre.types import Task
from cadre_tasks.answers import MOVES, parse_moves
from cadre_tasks.games.plan_path import (
    Grid,
    PlanPath,
    PlanPathNoTool,
    PlanPathSingleAgent,
    PlanPathTool,
    parse_grid,
    reachable,
    shortest,
)
from cadre_tasks.models.programs.plan_path import CORNER, SEARCH, SEARCH_MISTAKES
from tests.helpers.playing import play, seen, solved_by

ROWS = ["S..", ".#.", "..G"]


def alone(rows: list[str] = ROWS, **options) -> PlanPathNoTool:
    return PlanPathNoTool(Task("t", {"grid": rows}), **options)


def test_the_reward_of_an_optimal_path_by_hand() -> None:
    env = alone()
    (reward,) = play(env, "RRDD")
    # 4 cells of progress at 0.1 and half of the goal's 1; 4 moves at -0.01, the fewest for 0.5, the other half
    assert reward.team == pytest.approx(0.4 + 0.5)
    assert reward.local == {"planner": pytest.approx(-0.04 + 0.5 + 0.5)}
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
    assert reward.team == pytest.approx(0.1)
    assert reward.local == {"planner": pytest.approx(-0.02 - 0.10)}
    assert env.cell == (0, 1)


def test_the_goal_by_a_detour_is_success_without_the_bonus() -> None:
    env = alone()
    (reward,) = play(env, "RLRRDD")
    assert env.success
    assert reward.team == pytest.approx(0.4 + 0.5)
    assert reward.local == {"planner": pytest.approx(-0.06 + 0.5)}


def test_the_prompt_shows_where_the_walker_is_now() -> None:
    env = alone(prompts="compact")
    play(env, "RR")
    assert env.observe()["planner"].messages[0].content == "moves\n..S\n.#.\n..G"


def test_what_the_planner_sees_of_the_tool() -> None:
    env = PlanPath(Task("t", {"grid": ROWS}), prompts="compact")
    (reward,) = play(env, SEARCH)
    assert reward.team == pytest.approx(0.4 + 0.5)  # shaping, until the planner has moved
    assert reward.local == {"tool": pytest.approx(0.1 - 0.04 + 0.5 + 0.5)}
    (observation,) = env.observe().values()
    assert observation.role == "planner"
    assert observation.messages[0].content.endswith("tool goal 1D 2D 3R 4R")
    full = PlanPath(Task("t", {"grid": ROWS}), prompts="full")
    play(full, f"Here:\n```python\n{SEARCH}```")
    shown = full.observe()["planner"].messages[0].content
    assert SEARCH.strip() in shown
    assert "printed DDRR. These moves would reach the goal" in shown


def test_programs_with_one_answer_lead_to_one_state() -> None:
    """The text of a program is no part of the state, nor is the way to a cell; the moves spent on it are."""

    def signature_after(env: PlanPath, text: str) -> str:
        play(env, text)
        return env.signature()

    programs = ("print('RRD')", "print('R' * 2 + 'D')", "print('DDR')", "print(")
    signatures = [signature_after(PlanPath(Task("t", {"grid": ROWS})), program) for program in programs]
    assert [signatures.index(signature) for signature in signatures] == [0, 0, 2, 3]
    # The middle cell is blocked, so the second and the third way end in the same cell after three moves.
    signatures = [signature_after(alone(), moves) for moves in ("DUR", "DRL", "DUD", "DUDR", "D")]
    assert [signatures.index(signature) for signature in signatures] == [0, 1, 1, 3, 4]


def test_what_a_lone_tool_answers_is_executed() -> None:
    env = PlanPathTool(Task("t", {"grid": ROWS}), turns=2)
    (reward,) = play(env, "print('R')")
    assert (reward.team, reward.local) == (pytest.approx(0.1), {"tool": pytest.approx(-0.01)})
    assert env.cell == (0, 1)
    (reward,) = play(env, "print(")
    assert reward.local == {"tool": -0.2}
    assert env.observe() == {}
    solver = PlanPathTool(Task("t", {"grid": ROWS}))
    (reward,) = play(solver, SEARCH)
    assert (reward.team, reward.local["tool"]) == pytest.approx((0.4 + 0.5, -0.04 + 0.5 + 0.5))
    assert solver.success


def test_what_a_program_s_answer_would_gain_is_shaping_until_the_turn_ends() -> None:
    env = PlanPath(Task("t", {"grid": ROWS}))
    promised, wasted, again, used = play(env, SEARCH, "R", SEARCH, "RDD")
    assert [promised.team, wasted.team] == pytest.approx([0.9, 0.1 - 0.9])
    assert wasted.parts["shaping"] == pytest.approx(-0.9)
    assert [again.team, used.team] == pytest.approx([0.3 + 0.5, 0.0])  # what is executed is what the shaping gave
    assert promised.local == {"tool": pytest.approx(0.1 - 0.04 + 0.5 + 0.5)}
    assert again.local == {"tool": pytest.approx(0.01)}  # as right as the last one, and a move shorter
    assert wasted.local == {"planner": pytest.approx(-0.01)}
    assert used.local == {"planner": pytest.approx(-0.03 + 0.5 + 0.5)}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text("UDLR", min_size=0, max_size=6), min_size=8, max_size=8), st.integers(0, 50))
def test_the_team_earns_what_was_executed_whatever_programs_promised(moves: list[str], index: int) -> None:
    task = PlanPath.tasks("test")[index]
    team, single, rewards, plain = PlanPath(task), PlanPathNoTool(task), [], []
    for printed, moved in zip(moves[::2], moves[1::2], strict=True):
        if team.observe():
            rewards += play(team, f"print('{printed}')", moved)
            plain += play(single, moved)
    assert sum(reward.team for reward in rewards) == pytest.approx(sum(reward.team for reward in plain))
    assert [r.local for r in rewards[1::2]] == [r.local for r in plain]


def test_by_outcome_only_the_goal_pays() -> None:
    env = PlanPath(Task("t", {"grid": ROWS}), reward="outcome")
    wrong, idle, right, away, last, goal = play(env, "print('R')", "", SEARCH, "RR", SEARCH, "DD")
    assert [reward.local["tool"] for reward in (wrong, right, last)] == [0.0, 0.5, 0.0]
    assert [reward.team for reward in (wrong, right, last)] == [0.0, 0.5, 0.5]  # shaping
    assert [reward.team for reward in (idle, away, goal)] == [0.0, -0.5, 0.0]  # what was executed less the shaping
    assert [reward.local["planner"] for reward in (idle, away, goal)] == [0.0, 0.0, 0.5]
    assert env.success


def test_a_program_that_fails_is_reported_and_the_state_stays() -> None:
    env = PlanPath(Task("t", {"grid": ROWS}), prompts="compact")
    (reward,) = play(env, "print(")
    assert reward.local == {"tool": -0.2}
    assert env.cell == (0, 0)
    assert env.observe()["planner"].messages[0].content.endswith("tool error")


def test_a_fence_that_is_never_closed_is_read_in_one_pass() -> None:
    """An expression that tried every way to read the empty lines took a minute, with a program in it or without."""
    env = PlanPath(Task("t", {"grid": ROWS}))
    (reward,) = play(env, "```" + "\n" * 65_536)
    # The program is empty: it ends without an error, and prints nothing.
    assert reward.parts["tool/ran"] == 1.0
    assert reward.local == {"tool": -0.2}


def test_the_solo_agent_goes_on_in_one_conversation() -> None:
    env = PlanPathSingleAgent(Task("t", {"grid": ROWS}), prompts="compact")
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
    env = PlanPathNoTool(PlanPathNoTool.tasks("test")[index])
    cell = env.cell
    for move in moves:
        cell = env.grid.step(cell, move)
        if cell == env.grid.goal:
            return
    if cell == env.cell:
        (reward,) = play(env, moves)
        assert reward.team == pytest.approx(0.0)
        assert reward.local["planner"] <= -0.01 * len(moves) + 1e-9


@given(st.integers(0, 10**9), st.floats(0.1, 0.6))
def test_flooding_agrees_with_the_search(seed: int, blocked: float) -> None:
    generator = random_keys.generator(seed)
    free = [(r, c) for r in range(7) for c in range(7) if generator.random() >= blocked]
    start, goal = generator.sample(free, 2)
    result = shortest(Grid(7, frozenset(free), goal), start)
    assert reachable(7, free, start, goal) is (result is not None)


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
    for split, expected in (("test", True), ("train", False)):
        for task in PlanPath.tasks(split)[:50]:  # type: ignore[arg-type]
            assert (random_keys.key("split", *task.data["grid"]) % 10 == 0) is expected
    assert PlanPath.tasks("test")[3] == PlanPath.tasks("test")[3]


def test_the_right_program_solves_every_task_and_the_mistaken_ones_rarely() -> None:
    tasks = PlanPath.tasks("test")[:4]
    assert solved_by(PlanPath, SEARCH, tasks) == 4
    assert solved_by(PlanPath, CORNER, tasks) < 4
    wrong = [SEARCH.replace(old, new) for old, new in SEARCH_MISTAKES[:6]]
    assert sum(solved_by(PlanPath, program, tasks) for program in wrong) <= 6
    assert set(MOVES) == set("UDLR")


def test_what_each_form_is_told_becomes_of_its_program() -> None:
    task = Task("t", {"grid": ROWS})
    for env, words in (
        (PlanPath(task), "block. A team mate reads its output and decides on the moves."),
        (PlanPathTool(task), "block. What it prints is your answer."),
        (PlanPathSingleAgent(task), "block. You see its output then, and decide on the moves."),
    ):
        assert seen(env, env.roles[0]).endswith(words)
    team, solo = PlanPath(task), PlanPathSingleAgent(task)
    play(team, "print('RR')")
    play(solo, "print('RR')")
    assert "A team mate wrote this program:\n```python\nprint('RR')\n```\nIt printed RR." in seen(team, "planner")
    assert "What came of your program:\nIt printed RR." in seen(solo, "agent")


def test_a_program_that_ignores_walls_is_judged_on_other_grids_too() -> None:
    straight = (
        'print(("D" if goal[0] > start[0] else "U") * abs(goal[0] - start[0])'
        ' + ("R" if goal[1] > start[1] else "L") * abs(goal[1] - start[1]))'
    )
    task = Task("t", {"grid": ["S..", "...", "..G"]})
    (alone,) = play(PlanPath(task, reward="outcome"), straight)
    assert (alone.team, alone.local["tool"]) == (0.5, 0.5)
    env = PlanPath(task, reward="outcome", judged_on=5)
    (reward,) = play(env, straight)
    solved = [game.outcome(game.parse(run_straight(game)) or "").solved for game in env.alike()]
    assert not all(solved)
    # The team is paid for the task's own grid, the author for the share of all five.
    assert (reward.team, reward.local["tool"]) == (0.5, pytest.approx(0.5 * (1 + sum(solved)) / 5))
    assert reward.parts["tool/goal"] == pytest.approx((1 + sum(solved)) / 5)
    (right,) = play(PlanPath(task, reward="outcome", judged_on=5), SEARCH)
    assert (right.team, right.local["tool"]) == (0.5, 0.5)


def run_straight(game: PlanPath) -> str:
    """The moves of a walk that ignores walls."""
    (row, column), (goal_row, goal_column) = game.cell, game.grid.goal
    vertical = ("D" if goal_row > row else "U") * abs(goal_row - row)
    return vertical + ("R" if goal_column > column else "L") * abs(goal_column - column)


def test_grids_that_programs_are_judged_on_are_of_the_same_kind_and_of_training() -> None:
    env = PlanPath(Task("t", {"grid": ROWS}), judged_on=3, size=5)
    games = env.alike()
    assert [game.grid.size for game in games] == [5, 5]
    assert [game.draw() for game in games] == [game.draw() for game in env.alike()]
    assert env.draw() == "\n".join(ROWS)
