"""Plans: problems and verdicts by hand."""

import pytest

from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.worlds.plan import Plan, PlanSingleAgent, parse_plan
from cadre_tasks.worlds.plan_domains import pddl
from tests.helpers.playing import play, seen, total

pytest.importorskip("pyperplan")
# b1 lies on b2; wanted is b2 on b1: lift, drop, take, stack.
TURN = Task(
    "turn",
    {
        "domain": "blocks",
        "objects": {"block": ["b1", "b2"]},
        "init": [["clear", "b1"], ["hand"], ["on", "b1", "b2"], ["table", "b2"]],
        "goal": [["on", "b2", "b1"]],
        "optimum": 4,
    },
)
PLAN = "(lift b1 b2)\n(drop b1)\n(take b2)\n(stack b2 b1)"


def test_a_problem_in_pddl() -> None:
    assert pddl(TURN.data) == (
        "(define (problem p) (:domain blocks) (:objects b1 b2 - block) "
        "(:init (clear b1) (hand) (on b1 b2) (table b2)) (:goal (and (on b2 b1))))"
    )
    assert len(Plan(TURN).world.shortest() or ()) == 4


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("Plan: (take b1)\n(stack b1 b2)", ["(take b1)", "(stack b1 b2)"]),
        ("take b1; stack b1 b2", ["(take b1)", "(stack b1 b2)"]),
        ("(TAKE B1) (stack  b1 b2)", ["(take b1)", "(stack b1 b2)"]),
        ("`Plan: (take b1)`", ["(take b1)"]),
        ("Plan: take b1; stack b1 b2.", ["(take b1)", "(stack b1 b2)"]),
        ("**Plan:**\n(take b1)", ["(take b1)"]),
        ("I take b1, then stack.", None),
        ("", None),
        ("((take b1))", None),
        ("(take b1)\n" * 201, None),
        ("(take ?x)", None),
    ],
)
def test_how_plans_are_read(text: str, plan: list[str] | None) -> None:
    assert parse_plan(text) == plan


@pytest.mark.parametrize(
    ("text", "worth", "told"),
    [
        (PLAN, 1.0, "All 4 actions can be executed and reach the goal."),
        (f"{PLAN}\n(lift b2 b1)\n(stack b2 b1)", 0.75 + 0.25 * 4 / 6, "All 6 actions can be executed"),
        ("(lift b1 b2)\n(stack b1 b2)", 0.0, "All can be executed; (on b2 b1) does not hold then."),
        ("(take b2)", 0.0, "0 of 1 actions can be executed; (take b2) needs (clear b2)."),
        (f"{PLAN}\n(fly b1)", 0.5, "4 of 5 actions can be executed; (fly b1) is no action here."),
        ("nothing", 0.0, "0 of 1 actions can be executed; (nothing) is no action here."),
        ("No plan!", 0.0, "It could not be read as a plan."),
    ],
)
def test_what_a_plan_is_worth(text: str, worth: float, told: str) -> None:
    env = Plan(TURN)
    (reward,) = play(env, text)
    assert reward.team == pytest.approx(0.5 * worth)
    assert told in seen(env, "critic")


def test_success_needs_the_goal_and_not_the_optimum() -> None:
    env = Plan(TURN)
    rewards = play(env, "(take b2)", f"{PLAN}\n(lift b2 b1)\n(stack b2 b1)")
    assert env.success
    assert total(rewards, "critic") == pytest.approx(0.1 + 0.9 * (0.75 + 0.25 * 4 / 6))


def test_compact_prompts() -> None:
    env = PlanSingleAgent(TURN, prompts="compact")
    assert seen(env, "agent") == "plan draft\nclear b1; hand; on b1 b2; table b2\non b2 b1"
    play(env, "lift b1 b2; drop b1")
    assert seen(env, "agent").endswith("on b2 b1\nlift b1 b2; drop b1\nshort 2")


def test_robots_of_a_domain_without_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"settings.robots: got 2 with domain blocks.*logistics, rovers"):
        Plan.tasks("train", robots=2)
    assert len(Plan.tasks("train", domain="rovers", robots=2)[0].data["objects"]["rover"]) == 2
