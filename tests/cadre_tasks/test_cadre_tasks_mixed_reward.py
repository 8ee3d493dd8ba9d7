"""`alpha * team + local` in every bundled environment: a step in which alpha changes what a role is paid, and, where
that can be, which sibling is carried on. All numbers are worked out by hand.

Where one role acts alone and being right needs the form that is paid for too, a sibling that earns the team more earns
its author no less: alpha then changes by how much siblings differ and not which is best.
"""

import asyncio
from collections.abc import Mapping

import pytest

from cadre.advantages.returns import role_reward
from cadre.env import Env
from cadre.rollout.grow import score
from cadre.types import Branch, Reward, Task
from cadre_tasks.code.code import Code, CodeSingleAgent
from cadre_tasks.code.pairs import Pairs
from cadre_tasks.data import load
from cadre_tasks.data.records import CodingProblem
from cadre_tasks.games.plan_path import PlanPath, PlanPathNoTool
from cadre_tasks.games.sokoban import Sokoban, SokobanNoTool
from cadre_tasks.games.sudoku import Sudoku, SudokuNoTool
from cadre_tasks.maths.maths import Maths, MathsSingleAgent, MathsVote
from cadre_tasks.patterns import Debate, Gather, Lead, Refine, Review
from tests.helpers.code_pairs import AUX, MAIN
from tests.helpers.code_pairs import TASK as TWICE
from tests.helpers.playing import play, source

GRID = Task("t", {"grid": ["S...", "....", "....", "...G"]})
LEVEL = Task("t", {"grid": ["######", "#S...#", "#.B.G#", "#....#", "#....#", "######"]})
CLUES = Task("t", {"grid": ["12..", "..12", "...3", "4..."]})
SUM = Task("t", {"id": "t", "question": "What is 6 times 7?", "answer": "42", "tolerance": 0.0})
BOX = {number: f"It is \\boxed{{{number}}}." for number in range(38, 43)}
RIGHT, WRONG = BOX[42], BOX[41]


def contest() -> Task:
    program = load("code-contests", "test", source())[0]
    assert isinstance(program, CodingProblem)
    return Task(program.id, dict(vars(program)))


def tried(env: Env, text: str | Mapping[str, str]) -> Reward:
    """Return the reward of an action on a copy. One text is the only role's."""
    actions = text if isinstance(text, Mapping) else dict.fromkeys(env.observe(), text)
    return asyncio.run(env.fork().step(dict(actions)))


def roles(name: str, *texts: str) -> dict[str, str]:
    return {f"{name}{position}": text for position, text in enumerate(texts, 1)}


def flips(env: Env, first: str | Mapping[str, str], second: str | Mapping[str, str], low: float, high: float) -> None:
    """The first sibling is selected at the higher alpha, the second at the lower one."""
    rewards = [tried(env, text) for text in (first, second)]
    for alpha, best in ((low, 1), (high, 0)):
        scores = [score(reward, alpha) for reward in rewards]
        assert scores[best] > scores[1 - best] + 1e-6, (alpha, rewards)


def test_a_plan_that_comes_nearer_by_bumping_into_walls() -> None:
    env = PlanPathNoTool(GRID)
    reward = tried(env, "LLRR")  # two invalid moves, then two cells won
    assert (reward.team, reward.local["planner"]) == pytest.approx((0.2, -0.04 - 0.2))
    assert [role_reward(branch(reward), "planner", alpha) for alpha in (0.25, 1, 4)] == pytest.approx(
        [0.05 - 0.24, 0.2 - 0.24, 0.8 - 0.24]
    )
    flips(env, "LLRR", "L", 0.25, 1.0)  # L costs 0.11: -0.19 against -0.11 at 0.25, -0.04 against -0.11 at 1


def test_programs_that_print_such_plans() -> None:
    env = PlanPath(GRID)
    reward = tried(env, "print('LLRR')")
    assert (reward.team, reward.local["tool"]) == pytest.approx((0.2, 0.1 - 0.24))
    flips(env, "print('LLRR')", "print('L')", 0.25, 1.0)  # -0.09 against -0.01, 0.06 against -0.01
    play(env, "print('LLRR')")
    flips(env, "LLRR", "L", 0.25, 1.0)  # the shaping of 0.2 is subtracted in both


def test_a_push_by_a_detour() -> None:
    env = SokobanNoTool(LEVEL)
    reward = tried(env, "RLRLRLRLDR")
    assert (reward.team, reward.local["planner"]) == pytest.approx((0.1, -0.1))
    flips(env, "RLRLRLRLDR", "L", 0.25, 1.0)  # L costs 0.01: -0.075 against -0.01, 0 against -0.01
    team = Sokoban(LEVEL)
    flips(team, "print('RLRLRLRLDR')", "print('L')", 0.25, 1.0)
    assert tried(team, "print('L')").local["tool"] == pytest.approx(0.1 - 0.01)


def test_a_grid_that_is_mostly_guessed() -> None:
    """Ten cells are empty: six are filled rightly and four wrongly, or one rightly and the others not."""
    env = SudokuNoTool(CLUES)
    guessed, item = "1234 3412 2213 4111", "123. ..12 ...3 4..."
    reward = tried(env, guessed)
    assert (reward.team, reward.local["planner"]) == pytest.approx((0.2, -0.1))
    flips(env, guessed, item, 0.25, 1.0)  # -0.05 against 0.015, 0.1 against 0.09
    flips(Sudoku(CLUES), *(f"print('''{rows}''')" for rows in (guessed, item)), 0.25, 1.0)


def test_a_right_reasoner_beside_a_broken_tool() -> None:
    env = Maths(SUM)
    first, second = {"reasoner": RIGHT, "tool": "print("}, {"reasoner": WRONG, "tool": "print(42)"}
    reward = tried(env, first)
    assert (reward.team, dict(reward.local)) == (pytest.approx(0.4), pytest.approx({"reasoner": 0.6, "tool": 0.0}))
    assert role_reward(branch(reward), "tool", 0.25) == pytest.approx(0.1)
    flips(env, first, second, 0.25, 1.0)  # 0.7 against 0.8, 1.0 against 0.8


def test_a_vote_that_overturns_a_right_majority() -> None:
    env = MathsVote(SUM, turns=3)
    play(env, RIGHT, WRONG)  # the first of equal camps counts
    assert (tried(env, WRONG).team, tried(env, WRONG).local["voter"]) == pytest.approx((-0.4, 0.2))
    flips(env, "no box", WRONG, 0.25, 1.0)  # 0 against 0.1, 0 against -0.2


def test_a_program_before_the_answer() -> None:
    right, wrong = (tried(MathsSingleAgent(SUM), text) for text in ("print(42)", "print(41)"))
    for alpha in (0.25, 1.0, 4.0):
        assert role_reward(branch(right), "agent", alpha) == pytest.approx(0.2 + 0.4 * alpha)
        assert role_reward(branch(wrong), "agent", alpha) == pytest.approx(0.2)


def test_a_program_that_passes_some_tests_or_tests_that_are_tests() -> None:
    env = Code(contest())
    passing = {"coder": "input(); print(4)", "tester": ""}
    testing = {"coder": "print(0)", "tester": "```input\n4 4\n```\n```output\n9\n```"}
    reward = tried(env, passing)
    assert (reward.team, dict(reward.local)) == (
        pytest.approx(0.4 / 3),
        pytest.approx({"coder": 0.2 + 0.4 / 3, "tester": 0}),
    )
    flips(env, passing, testing, 0.25, 1.0)  # 0.367 against 0.4, 0.467 against 0.4


def test_a_draft_of_one_agent() -> None:
    reward = tried(CodeSingleAgent(contest()), "input(); print(4)")
    for alpha in (0.25, 1.0, 4.0):
        assert role_reward(branch(reward), "agent", alpha) == pytest.approx(0.2 + 0.4 / 3 * (1 + alpha))


def test_a_pair_paid_by_level() -> None:
    env = Pairs(TWICE, reward="mixed")
    single = {"aux": "aux = 3", "main": "def twice(n):\n    return n + n"}
    helped = {"aux": AUX, "main": "def twice(n):\n    return 6 * aux(1)"}
    first, second = tried(env, single), tried(env, helped)
    assert (first.team, dict(first.local)) == (pytest.approx(0.5 + 1.0), {"aux": 0.0, "main": 0.6})
    assert (second.team, dict(second.local)) == (
        pytest.approx(0.5 + 1 / 3),
        pytest.approx({"aux": 0.4, "main": 0.6 + 0.5 + 1.0}),
    )
    flips(env, single, helped, 1.0, 4.0)  # 2.1 against 3.33, 6.6 against 5.83
    joint = tried(Pairs(TWICE), {"aux": AUX, "main": MAIN})
    mixed = tried(env, {"aux": AUX, "main": MAIN})
    assert joint.team == pytest.approx(score(mixed, 1.0)) == pytest.approx(4.0)
    assert dict(joint.local) == {}


def test_a_debate_with_few_right_answers_or_a_right_majority() -> None:
    env = Debate(SUM, agents=5)
    scattered = roles("debater", *(BOX[number] for number in (42, 41, 40, 39, 38)))  # of equal camps the first counts
    divided = roles("debater", WRONG, WRONG, WRONG, RIGHT, RIGHT)
    reward = tried(env, scattered)
    assert (reward.team, sum(reward.local.values())) == pytest.approx((0.5, 0.5 + 4 * 0.1))
    assert role_reward(branch(reward), "debater1", 4.0) == pytest.approx(2.0 + 0.5)
    flips(env, scattered, divided, 0.25, 1.0)  # 1.025 against 1.3, 1.4 against 1.3


def test_an_answer_that_overturns_what_was_gathered() -> None:
    env = Gather(SUM)
    play(env, RIGHT, WRONG)
    reward = tried(env, WRONG)
    assert (reward.team, reward.local["solver"]) == pytest.approx((-0.5, 0.1 / 4))
    flips(env, "no box", WRONG, 0.01, 1.0)  # 0 against 0.02, 0 against -0.475


def test_two_authors_of_whom_the_first_decides() -> None:
    env = Review(SUM)
    reward = tried(env, roles("author", RIGHT, "no box"))
    assert (reward.team, dict(reward.local)) == (0.5, {"author1": 0.5, "author2": 0.0})
    flips(env, roles("author", RIGHT, "no box"), roles("author", WRONG, RIGHT), 0.1, 1.0)  # 0.55 to 0.6, 1.0 to 0.6


def test_a_verdict_that_sends_a_right_answer_back() -> None:
    env = Refine(SUM)
    (answer,) = play(env, RIGHT)
    assert role_reward(branch(answer), "generator", 4.0) == pytest.approx(2.0 + 0.5)
    right, wrong = tried(env, "Verdict: right"), tried(env, "Verdict: wrong")
    for alpha in (0.25, 1.0, 4.0):
        assert role_reward(branch(right), "verifier", alpha) == pytest.approx(0.5)
        assert role_reward(branch(wrong), "verifier", alpha) == pytest.approx(-0.5 * alpha - 0.5 / 3)


def test_a_leader_s_answer() -> None:
    env = Lead(SUM)
    assert play(env, "1. Multiply.", "It is 42.") == [Reward(parts={"jobs": 1.0}), Reward()]  # nobody is paid
    for alpha in (0.25, 1.0, 4.0):
        assert role_reward(branch(tried(env, RIGHT)), "leader", alpha) == pytest.approx(0.5 + 0.5 * alpha)
        assert role_reward(branch(tried(env, WRONG)), "leader", alpha) == pytest.approx(0.1)


def branch(reward: Reward) -> Branch:
    return Branch({}, reward, False, False)
