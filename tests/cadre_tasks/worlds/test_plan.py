"""Plans: problems and verdicts by hand, and two robots that act at once."""

import pytest

from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.worlds.plan import Plan, PlanJoint, PlanSingleAgent, disturb, parse_plan
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
# Two trucks; both packages are wanted at c1.
TRUCKS = Task(
    "trucks",
    {
        "domain": "logistics",
        "objects": {"truck": ["t1", "t2"], "package": ["p1", "p2"], "place": ["c1", "c2"]},
        "init": [
            *(["road", "c1", "c2"], ["road", "c2", "c1"], ["at", "t1", "c2"], ["at", "t2", "c2"]),
            *(["lies", "p1", "c2"], ["lies", "p2", "c2"]),
        ],
        "goal": [["lies", "p1", "c1"], ["lies", "p2", "c1"]],
        "optimum": 6,
    },
)


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
    ("text", "worth", "expected"),
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
def test_what_a_plan_is_worth(text: str, worth: float, expected: str) -> None:
    env = Plan(TURN)
    (reward,) = play(env, text)
    assert reward.team == pytest.approx(0.5 * worth)
    assert expected in seen(env, "critic")


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


def test_two_robots_at_once() -> None:
    env = PlanJoint(TRUCKS)
    loads = {"robot_1": "Plan: (load t1 p1 c2)", "robot_2": "(load t2 p2 c2)"}
    drives = {"robot_1": "(drive t1 c2 c1)", "robot_2": "(drive t2 c2 c1)"}
    unloads = {"robot_1": "(unload t1 p1 c1)", "robot_2": "(wait)"}
    rewards = play(env, loads, drives, unloads)
    assert [reward.team for reward in rewards] == pytest.approx([0, 0, 0.4])
    assert rewards[2].local == {"robot_1": -0.02, "robot_2": 0.0}
    (last,) = play(env, {"robot_1": "what?", "robot_2": "(unload t2 p2 c1)"})
    assert last.team == pytest.approx(0.4 + 0.2)
    assert last.local == {"robot_1": -0.1, "robot_2": -0.02}
    assert env.success
    assert env.observe() == {}


def test_an_absent_robot_waits_and_states_are_told_apart_by_facts_and_rounds() -> None:
    env, other_plan_joint = PlanJoint(TRUCKS), PlanJoint(TRUCKS)
    (reward,) = play(env, {role: env.default_action(role) for role in env.roles})
    assert reward.local == {"robot_1": 0.0, "robot_2": 0.0}
    assert env.signature() != other_plan_joint.signature()
    play(other_plan_joint, {"robot_1": "what?", "robot_2": "(wait)"})
    assert env.signature() == other_plan_joint.signature()


@pytest.mark.parametrize(("goals", "rounds"), [(1, 12), (2, 12), (3, 18), (8, 48)])
def test_more_to_do_gives_more_rounds(goals: int, rounds: int) -> None:
    goal = [["lies", f"p{number}", "c1"] for number in range(1, goals + 1)]
    objects = TRUCKS.data["objects"] | {"package": [f"p{number}" for number in range(1, 9)]}
    task = Task("more", {**TRUCKS.data, "objects": objects, "goal": goal})
    assert PlanJoint(task).rounds == rounds
    assert PlanJoint(task, rounds=3).rounds == 3


def test_robots_of_a_domain_without_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"settings.robots: got 2 with domain blocks.*logistics, rovers"):
        Plan.tasks("train", robots=2)
    assert len(Plan.tasks("train", domain="rovers", robots=2)[0].data["objects"]["rover"]) == 2


def test_actions_that_disturb_each_other_do_not_happen() -> None:
    env = PlanJoint(TRUCKS)
    (reward,) = play(env, {"robot_1": "(load t1 p1 c2)", "robot_2": "(load t2 p1 c2)"})
    assert reward.local == {"robot_1": -0.1, "robot_2": -0.1}
    assert env.state == env.world.start
    actions = env.world.actions
    assert not disturb(actions["(load t1 p1 c2)"], actions["(load t2 p2 c2)"])
    (other_trained_run,) = play(env, {"robot_1": "(drive t2 c2 c1)", "robot_2": "(wait)"})
    assert other_trained_run.local == {"robot_1": -0.1, "robot_2": 0.0}
