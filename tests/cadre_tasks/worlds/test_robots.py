"""The robots' table with physics: the reference solves it, others do not, and nothing breaks it."""

from __future__ import annotations

import asyncio
import copy
import math
import random
from pathlib import Path
from typing import Any

import pytest

from cadre.envs import check
from cadre.envs.check import ACTIONS, check_env
from cadre.envs.spec import EnvSpec
from cadre_tasks.worlds.robots import Robots, RobotsSingleAgent
from cadre_tasks.worlds.robots_physics import Physics
from cadre_tasks.worlds.robots_table import WAIT, Action, Layout
from lab import robots as bench
from tests.helpers.extras import skip_without
from tests.helpers.playing import play, seen
from tests.helpers.slow import few_of

skip_without("mujoco")

EXPLOITS = ("random", "forth and back", "hold and never place")
CASES = [(kind, hard) for hard in (False, True) for kind in bench.KINDS]
BASES = ((55.0, 60.0), (145.0, 60.0))
BAR = Layout("carry", BASES, 65.0, {"a": (70.0, 40.0), "b": (120.0, 40.0)}, {"a": (70.0, 70.0), "b": (120.0, 70.0)})


def first(kind: str, env: type[Robots] = Robots, **settings: Any) -> Robots:
    dials = {name: value for name, value in settings.items() if name not in ("plan", "order", "prompts", "reward")}
    task = env.tasks("test", kind=kind, **dials)[0]  # type: ignore[arg-type]
    return env(task, **{name: value for name, value in settings.items() if name not in dials})


@pytest.mark.parametrize(("kind", "hard"), few_of(CASES, CASES[:4]))
def test_the_reference_solves_a_task_and_gets_one(kind: str, hard: bool) -> None:
    env = first(kind, **(bench.HARD[kind] if hard else {}))
    assert bench.play(env, bench.reference, random.Random(0)) == pytest.approx(1.0)
    assert env.success
    assert env.observe() == {}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "hard"), CASES)
def test_the_reference_solves_tasks_and_others_do_not(kind: str, hard: bool) -> None:
    assert bench.solved(kind, 20, bench.reference, "reference", **(bench.HARD[kind] if hard else {})) == 1
    assert bench.solved(kind, 20, bench.random_plans, "random") == 0
    assert bench.solved(kind, 20, bench.greedy_plans, "greedy") <= 0.1


@pytest.mark.parametrize(
    ("kind", "policy"),
    few_of(
        [(kind, name) for kind in bench.KINDS for name in EXPLOITS],
        [("handover", "forth and back"), ("carry", "hold and never place"), ("sort", "random")],
    ),
)
def test_rewards_of_an_episode_sum_to_the_value_of_its_end(kind: str, policy: str) -> None:
    env, draw, team = first(kind), random.Random(1), 0.0
    while env.observe():
        reward = asyncio.run(env.step(bench.EXPLOITS[policy](env, draw)))
        team += reward.team
        assert max(reward.local.values(), default=0.0) <= 0
    assert team == pytest.approx(0.8 * env.scene.progress(env.layout))
    assert not env.success


def test_a_fork_goes_on_alike_and_alone() -> None:
    env = first("handover")
    texts = bench.reference(env, random.Random(0))
    fork = env.fork()
    assert fork.physics.model is env.physics.model
    initial_signature = env.signature()
    rewards = play(fork, texts)
    assert env.signature() == initial_signature != fork.signature()
    assert play(env, texts) == rewards
    assert env.physics.data.qpos.tolist() == fork.physics.data.qpos.tolist()


def test_outcomes_are_told_in_words() -> None:
    env = first("handover")
    far = next(robot for robot in (0, 1) if not env.layout.can_reach(robot, env.layout.items["red"])) + 1
    name, second = f"robot_{far}", f"robot_{3 - far}"
    (reward,) = play(env, {name: "Plan: wait; pick red", second: "Plan: dance"})
    assert reward.local == {name: -0.05, second: -0.1}
    assert f"Last plan of robot {far}: it ended at step 2, as robot {far} cannot reach" in seen(env, name)
    words = "it could not be read, as step 1 is none of pick, place, move, wait in its form"
    assert f"Last plan of robot {3 - far}: {words}." in seen(env, second)


def test_in_turn_the_second_robot_sees_the_plan_of_the_first() -> None:
    env = first("handover", order="in_turn")
    assert list(env.observe()) == ["robot_1"]
    (reward,) = play(env, "I go home.\nPlan: move 55 60")
    assert (reward.team, reward.local, env.turn) == (0.0, {}, 0)
    assert list(env.observe()) == ["robot_2"]
    assert "Robot 1 plans: move 55 60" in seen(env, "robot_2")
    play(env, "Plan: wait")
    assert (env.turn, list(env.observe())) == (1, ["robot_1"])


def test_plans_on_several_lines_count_in_turn_too() -> None:
    env = first("handover", order="in_turn")
    play(env, "Plan:\nmove 60 60\nmove 50 60")
    assert "Robot 1 plans: move 60 60; move 50 60" in seen(env, "robot_2")
    (reward,) = play(env, "Plan: wait")
    assert reward.parts["readable"] == 1
    assert env.scene.grippers[0] == pytest.approx((50, 60), abs=0.1)


def test_a_gripper_beside_a_pillar_can_leave() -> None:
    env = first("handover")
    env.layout = Layout("handover", BASES, 65.0, {"red": (60.0, 80.0)}, {"red": (150.0, 40.0)}, ((40.0, 100.0),))
    env.physics = Physics(env.layout)
    env.scene = env.physics.scene()
    for plan in ("Plan: move 49.5 100", "Plan: wait; move 55 60"):
        (reward,) = play(env, {"robot_1": plan, "robot_2": "Plan: wait"})
        assert reward.local == {}


def test_one_agent_plans_for_all() -> None:
    env = first("carry", RobotsSingleAgent)
    assert bench.play(env, bench.reference, random.Random(0)) == pytest.approx(1.0)
    env = first("carry", RobotsSingleAgent)
    (reward,) = play(env, "robot 1: wait")
    assert reward.local == {"agent": -0.05}
    (reward,) = play(env, env.default_action("agent"))
    assert (reward.team, reward.local) == (0.0, {})


def test_compact_prompts_and_plans() -> None:
    env = first("handover", prompts="compact")
    lines = seen(env, "robot_2").split("\n")
    assert lines[0] == "robot 2 handover"
    assert len(lines) == 1 + 2 + 2 + 1
    assert lines[1:3] == ["5.5 6 -", "14.5 6 -"]
    assert bench.play(env, bench.reference, random.Random(0)) == pytest.approx(1.0)


def test_the_table_as_a_picture() -> None:
    pytest.importorskip("PIL")
    env = first("sort", view="picture")
    (message,) = env.observe()["robot_1"].messages
    (picture,) = message.images
    assert (picture.width, picture.height) == (400, 240)
    assert "red cube" not in message.content
    assert first("sort", view="picture").picture() == picture != first("handover", view="picture").picture()


# ---- Physics


def test_one_robot_cannot_lift_the_bar_and_two_can() -> None:
    physics = Physics(BAR)
    assert physics.run([Action("pick", "a"), WAIT])
    assert physics.scene().held == ["a", ""]
    assert physics.scene().heights["a"] < 1
    assert physics.run([WAIT, Action("pick", "b")])
    assert physics.scene().heights["a"] > 15
    step = [Action("place", points=((70.0, 70.0),)), Action("place", points=((120.0, 70.0),))]
    assert physics.run(step)
    scene = physics.scene()
    assert scene.held == ["", ""]
    assert all(scene.is_settled(BAR, name) for name in "ab")


def test_a_bar_that_is_pulled_apart_is_lost() -> None:
    physics = Physics(BAR)
    physics.run([Action("pick", "a"), Action("pick", "b")])
    physics.run([Action("move", points=((40.0, 40.0),)), Action("move", points=((150.0, 40.0),))])
    assert "" in physics.scene().held


def test_a_broom_pushes_balls_and_a_wall_stops_them() -> None:
    layout = Layout("sweep", BASES, 65.0, {"red": (60.0, 60.0)}, {"red": (20.0, 60.0)})
    physics = Physics(layout)
    assert physics.run([Action("sweep", points=((70.0, 60.0), (40.0, 60.0))), WAIT])
    x, y = physics.scene().items["red"]
    assert (x, y) == pytest.approx((36, 60), abs=0.5)
    # From the side the ball meets the wall of the bin.
    layout = Layout("sweep", BASES, 65.0, {"red": (30.0, 90.0)}, {"red": (20.0, 60.0)})
    physics = Physics(layout)
    assert physics.run([Action("sweep", points=((30.0, 100.0), (30.0, 64.0))), WAIT])
    assert not physics.scene().is_settled(layout, "red")


def test_numbers_that_diverge_are_undone_and_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = first("handover")
    simulate = Physics._simulate

    def diverge(self: Physics, actions: list[Action]) -> None:
        self.data.qvel[:] = 1e200
        simulate(self, actions)

    monkeypatch.setattr(Physics, "_simulate", diverge)
    initial = copy.deepcopy(env.scene)
    (reward,) = play(env, {"robot_1": "Plan: move 60 60", "robot_2": "Plan: wait"})
    assert env.scene == initial
    assert math.isfinite(reward.team)
    assert "the simulation of it diverged" in seen(env, "robot_1")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    play(env, {"robot_1": "Plan: move 60 60", "robot_2": "Plan: wait"})
    assert env.scene.grippers[0] == pytest.approx((60, 60), abs=0.1)
    assert list(tmp_path.iterdir()) == []


def test_hostile_plans() -> None:
    draw = random.Random(3)
    for kind in bench.KINDS:
        env = first(kind)
        for _ in range(10):
            assert asyncio.run(bench.attack(env.fork(), bench.hostile_text(draw), "")) == ""


@pytest.mark.parametrize(
    ("name", "settings"),
    few_of(
        [(name, {"kind": kind}) for kind in bench.KINDS for name in ("robots", "robots-single-agent")],
        [("robots", {"kind": "handover"}), ("robots-single-agent", {"kind": "carry"})],
    ),
)
def test_the_contract(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SPLIT_SAMPLE", 5)
    texts = ["Plan: wait", "pick red; place 60 60", "robot 1: pick a\nrobot 2: pick b", *ACTIONS[::3]]
    checked = asyncio.run(check_env(EnvSpec(name, {"turns": 2, **settings}), 1, texts))
    assert len(checked) == 6


def test_the_contract_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SPLIT_SAMPLE", 5)
    checked = asyncio.run(
        check_env(EnvSpec("robots", {"turns": 2, "order": "in_turn", "robots": 3}), 1, ["Plan: wait", ""])
    )
    assert len(checked) == 6
