"""Sokoban: the rules, the reward by hand, the generator, and levels from a folder."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadre.envs.splits import in_split
from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.games.sokoban import Sokoban, SokobanNoTool, SokobanSingleAgent, parse_level, solve
from tests.helpers.playing import play, prompt

ROWS = ["######", "#S...#", "#.B.G#", "#....#", "#....#", "######"]
# Down, then two pushes to the right.
ANSWER = "DRR"


def alone(rows: list[str] = ROWS, **options) -> SokobanNoTool:
    return SokobanNoTool(Task("t", {"grid": rows}), **options)


def test_the_reward_of_a_solution_by_hand() -> None:
    env = alone()
    (reward,) = play(env, ANSWER)
    # 2 cells of distance at 0.1, one box on its goal, half of the win's 10; 3 moves at -0.01, the other half
    assert reward.team == pytest.approx(0.2 + 1.0 + 5.0)
    assert reward.local == {"planner": pytest.approx(-0.03 + 5.0)}
    assert reward.parts == {"moves": -0.03, "progress": 0.2, "boxes": 1.0, "win": 10.0, "format": 1.0}
    assert env.success
    assert env.observe() == {}


def test_moves_behind_the_win_do_not_count() -> None:
    longer = alone()
    (reward,) = play(longer, ANSWER + "LLLUU")
    assert reward == play(alone(), ANSWER)[0]
    assert longer.success


@pytest.mark.parametrize(
    ("rows", "moves", "final"),
    [
        (["#####", "#S..#", "#####"], "R", ["#####", "#.S.#", "#####"]),
        (["#####", "#S..#", "#####"], "U", ["#####", "#S..#", "#####"]),
        (["#####", "#SB.#", "#####"], "R", ["#####", "#.SB#", "#####"]),
        (["#####", "#.SB#", "#####"], "R", ["#####", "#.SB#", "#####"]),
        (["######", "#SBB.#", "######"], "R", ["######", "#SBB.#", "######"]),
        (["#####", "#BS.#", "#####"], "R", ["#####", "#B.S#", "#####"]),
        (["#####", "#SBG#", "#####"], "R", ["#####", "#.S*#", "#####"]),
        (["######", "#S*.G#", "######"], "RR", ["######", "#.GS*#", "######"]),
    ],
)
def test_the_rules(rows: list[str], moves: str, final: list[str]) -> None:
    """Walls stop, a box moves with free floor behind it, two in a row do not, nothing is pulled, goals stay."""
    level, state = parse_level(rows)
    for move in moves:
        state = level.step(state, move)
    assert level.draw(state).split("\n") == final


def test_a_box_pushed_off_its_goal_costs_what_it_earned() -> None:
    rows = ["#######", "#S.B.G#", "#.....#", "#.GB..#", "#.....#", "#######"]
    env = alone(rows)
    (on,) = play(env, "RRR")
    assert env.level.placed(env.state) == 1
    assert on.parts["boxes"] == 1.0
    assert on.parts["progress"] == pytest.approx(0.2)
    (off,) = play(alone(["#######", "#.....#", "#S*.G.#", "#.B...#", "#######"]), "R")
    assert off.parts["boxes"] == -1.0
    assert off.parts["progress"] == pytest.approx(-0.1)


def test_running_out_of_moves_or_turns_is_a_failure() -> None:
    env = alone(max_moves=4)
    rewards = play(env, "LL", "LLLL")  # four of the six are executed
    assert [reward.parts["moves"] for reward in rewards] == [-0.02, -0.02]
    assert env.observe() == {}
    assert not env.success
    turns = alone(turns=2)
    play(turns, "L", "L")
    assert turns.observe() == {}
    assert not turns.success


def test_two_boxes_need_two_goals() -> None:
    env = alone(["######", "#S...#", "#.BG.#", "#.BG.#", "#....#", "######"])
    (reward,) = play(env, "DR")
    assert not env.success
    assert reward.parts["win"] == 0.0
    (reward,) = play(env, "LDR")
    assert env.success
    assert reward.parts["win"] == 10.0


def test_what_the_roles_see() -> None:
    env = Sokoban(Task("t", {"grid": ROWS}), prompts="compact")
    assert prompt(env) == "sokoban program\n" + "\n".join(ROWS)
    (reward,) = play(env, f"print('{ANSWER}')")
    assert reward.team == pytest.approx(0.2 + 1.0 + 5.0)
    assert reward.local["tool"] == pytest.approx(0.1 - 0.03 + 5.0)
    assert prompt(env) == "sokoban moves\n" + "\n".join(ROWS) + "\ntool goal 1D 2R 3R"
    play(env, "D")
    assert prompt(env).endswith("#....#\n######")
    assert "#SB.G#" in prompt(env)
    full = Sokoban(Task("t", {"grid": ROWS}), prompts="full")
    assert "40 moves are left" in prompt(full)
    play(full, "```python\nprint('DR')\n```")
    assert "print('DR')" in prompt(full)
    assert "not solve it but lead to\n######\n#....#\n#.SBG#" in prompt(full)
    play(full, "Moves: DR")
    assert "38 moves are left" in prompt(full)


def test_the_solo_agent_goes_on_in_one_conversation() -> None:
    env = SokobanSingleAgent(Task("t", {"grid": ROWS}), prompts="compact")
    play(env, "print('DRR')")
    messages = env.observe()["agent"].messages
    assert [message.role for message in messages] == ["user", "assistant", "user"]
    assert messages[1].content == "print('DRR')"


@settings(max_examples=150, deadline=None)
@given(st.text("UDLR", min_size=1, max_size=40), st.integers(0, 50))
def test_no_cycle_pays(moves: str, index: int) -> None:
    """Coming back to a state, boxes and all, costs at least a hundredth a move: the potential telescopes."""
    env = SokobanNoTool(SokobanNoTool.tasks("test")[index])
    states, state = [env.state], env.state
    for move in moves:
        state = env.level.step(state, move)
        states.append(state)
        if env.level.solved(state):
            return
    last = max(at for at, state in enumerate(states) if state == env.state)
    if last:
        (reward,) = play(env, moves[:last])
        assert (reward.team, reward.local["planner"]) == pytest.approx((0.0, -0.01 * last))


def test_walls_and_goals_decide_the_split() -> None:
    for split, expected in (("test", True), ("train", False)):
        for task in Sokoban.tasks(split)[:50]:  # type: ignore[arg-type]
            room = [row.translate(str.maketrans("BS+", "..G")) for row in task.data["grid"]]
            assert in_split("test", *room) is expected
    assert Sokoban.tasks("test")[3] == Sokoban.tasks("test")[3]


def test_an_unsolvable_level_has_no_solution() -> None:
    assert solve(*parse_level(["#####", "#BS.#", "#..G#", "#####"])) is None


def test_too_many_boxes_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 2"):
        Sokoban.tasks("train", size=6, boxes=3)
