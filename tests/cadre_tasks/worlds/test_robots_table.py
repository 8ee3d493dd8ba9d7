"""The robots' table without physics: plans as text, the checker of reach, collision and timing, tasks, prompts."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from cadre_tasks.worlds.robots import Robots, table_rows
from cadre_tasks.worlds.robots_table import (
    BAR,
    POSES,
    WAIT,
    Action,
    Kind,
    Layout,
    Scene,
    closest,
    find_faults,
    make_layout,
    owners,
    read_plan,
)

BOTH, MEET = dict.fromkeys((0, 1), "collision"), dict.fromkeys((0, 1), "timing")
KINDS: tuple[Kind, ...] = ("handover", "sort", "sweep", "carry")
BASES = ((55.0, 60.0), (145.0, 60.0))
CUBES = Layout(
    "handover",
    BASES,
    65.0,
    {"red": (20.0, 50.0), "green": (180.0, 70.0)},
    {"red": (180.0, 40.0), "green": (20.0, 80.0)},
    ((100.0, 20.0),),
)
BALLS = Layout("sweep", BASES, 65.0, {"red": (120.0, 50.0)}, {"red": (20.0, 60.0)})
BAR_LAYOUT = Layout(
    "carry", BASES, 65.0, {"a": (70.0, 40.0), "b": (120.0, 40.0)}, {"a": (80.0, 70.0), "b": (120.0, 100.0)}
)


def scene_of(layout: Layout, **changes: object) -> Scene:
    scene = Scene(list(layout.bases), [""] * len(layout.bases), dict(layout.items), dict.fromkeys(layout.items, 0.0))
    for name, value in changes.items():
        setattr(scene, name, value)
    return scene


def at(verb: str, *numbers: float) -> Action:
    return Action(verb, points=tuple(zip(numbers[::2], numbers[1::2], strict=True)))


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("Plan: pick red; place 100 60", [Action("pick", "red"), at("place", 100, 60)]),
        ("I think.\n**Plan:** `pick red`", [Action("pick", "red")]),
        ("Plan: wait\nPlan: pick the g; move to (55, 60)", [Action("pick", "green"), at("move", 55, 60)]),
        ("wait", [WAIT]),
        ("MOVE 1.5 2.25", [at("move", 1.5, 2.25)]),
        ("Plan:\nwait\nmove 1 2", [WAIT, at("move", 1, 2)]),
        ("move -5 2", [at("move", -5, 2)]),
    ],
)
def test_plans_are_read(text: str, plan: list[Action]) -> None:
    assert read_plan(text, CUBES, 4) == (plan, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no step"),
        ("Plan:", "it has no step"),
        ("wait; wait; wait; wait; wait", "it has 5 steps and at most 4 are allowed"),
        ("wait; fly 1 2", "step 2 is none of pick, place, move, wait in its form"),
        ("pick violet", "step 1 names no object of the table"),
        ("move 1", "step 1 is none of"),
        ("move 1 2 3", "step 1 is none of"),
        ("move nan inf", "step 1 is none of"),
        ("move 1e9 2", "step 1 is none of"),
        ("move 99999 2", "step 1 is none of"),
        ("move ٣ 2", "step 1 is none of"),
        ("sweep 1 2 to 3 4", "step 1 is none of"),  # there is no broom on this table
        ("__import__('os').system('id')", "step 1 is none of"),
        ("move " * 3000, "step 1 is none of"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, reason: str) -> None:
    plan, message = read_plan(text, CUBES, 4)
    assert plan == []
    assert message.startswith(reason)


def test_compact_plans_count_in_steps_of_the_lattice() -> None:
    assert read_plan("sweep 12 5 to 3.5 6", BALLS, 1, 10) == ([at("sweep", 120, 50, 35, 60)], "")


@pytest.mark.parametrize(
    ("layout", "changes", "step", "words"),
    [
        (CUBES, {}, [Action("pick", "red"), Action("pick", "green")], {}),
        (CUBES, {}, [Action("pick", "green"), WAIT], {0: "reach"}),
        (CUBES, {}, [at("move", -5, 60), at("move", 145, 125)], {0: "reach", 1: "reach"}),
        (CUBES, {}, [at("place", 60, 60), WAIT], {0: "hands"}),
        (CUBES, {"held": ["red", ""]}, [Action("pick", "red"), WAIT], {0: "hands"}),
        (CUBES, {"held": ["red", ""]}, [at("place", 100, 60), Action("pick", "red")], {1: "timing"}),
        (CUBES, {"items": {"red": (100.0, 60.0)}}, [Action("pick", "red"), Action("pick", "red")], MEET),
        (CUBES, {}, [at("move", 100, 60), at("move", 105, 60)], BOTH),
        # Two that change places meet on the way, although both ends are free.
        (CUBES, {"grippers": [(85.0, 60.0), (115.0, 60.0)]}, [at("move", 115, 60), at("move", 85, 60)], BOTH),
        (CUBES, {"grippers": [(90.0, 60.0), (102.0, 60.0)]}, [WAIT, at("move", 145, 60)], {}),  # they part
        (CUBES, {"grippers": [(85.0, 20.0), (145.0, 60.0)]}, [at("move", 95, 25), WAIT], {0: "collision"}),  # a pillar
        (CUBES, {"held": ["green", ""]}, [at("place", 22, 50), WAIT], {0: "collision"}),  # on the other cube
        # The other cube hangs in a gripper that leaves.
        (
            CUBES,
            {"held": ["red", "green"], "grippers": [(60.0, 60.0), (100.0, 60.0)], "items": {"green": (100.0, 60.0)}},
            [at("place", 100, 60), at("move", 180, 60)],
            {},
        ),
        # Who stands too near to a pillar, as physics may leave it, can stay and part, but not come nearer.
        (CUBES, {"grippers": [(90.6, 20.0), (145.0, 60.0)]}, [WAIT, WAIT], {}),
        (CUBES, {"grippers": [(90.6, 20.0), (145.0, 60.0)]}, [at("move", 55, 60), WAIT], {}),
        (CUBES, {"grippers": [(90.6, 20.0), (145.0, 60.0)]}, [at("move", 95, 20), WAIT], {0: "collision"}),
        (BALLS, {}, [WAIT, at("sweep", 130, 50, 90, 50)], {}),
        (BALLS, {}, [WAIT, at("sweep", 130, 50, 130, 50)], {1: "form"}),
        (BALLS, {}, [at("move", 80, 60), at("sweep", 130, 60, 90, 60)], BOTH),
        (BAR_LAYOUT, {}, [Action("pick", "a"), Action("pick", "b")], {}),
    ],
)
def test_the_checker(layout: Layout, changes: dict, step: list[Action], words: dict[int, str]) -> None:
    if "items" in changes:
        changes = {**changes, "items": {**layout.items, **changes["items"]}}
    faults = find_faults(layout, scene_of(layout, **changes), step)
    assert {robot: fault.word for robot, fault in faults.items()} == words


def test_the_checker_says_what_is_out_of_reach_and_by_how_much() -> None:
    (fault,) = find_faults(CUBES, scene_of(CUBES), [Action("pick", "green"), WAIT]).values()
    assert fault.sentence == "robot 1 cannot reach 180 70, 125 cm from its base, with a reach of 65 cm"


def test_the_bar_is_carried_by_two_and_keeps_its_length() -> None:
    def words(held_items: list[str], *step: Action) -> set[str]:
        scene = scene_of(BAR_LAYOUT, held=held_items, grippers=[(70.0, 40.0), (120.0, 40.0)])
        return {fault.word for fault in find_faults(BAR_LAYOUT, scene, step).values()}

    assert words(["a", ""], at("move", 70, 50), WAIT) == {"heavy"}
    assert words(["a", ""], at("place", 70, 40), WAIT) == set()  # it may be let go where it lies
    assert words(["a", "b"], at("move", 70, 50), at("move", 120, 50)) == set()
    assert words(["a", "b"], at("move", 70, 50), at("move", 120, 90)) == {"length"}
    assert words(["a", "b"], at("place", 70, 50), at("move", 120, 50)) == {"timing"}
    assert words(["a", "b"], at("place", 80, 40), at("place", 120, 70)) == set()  # the next pose
    # Both ends are 50 cm apart before and after a half turn, and meet on the way.
    assert closest((70, 40), (120, 40), (120, 40), (70, 40)) == 0


def test_poses_are_as_long_as_the_bar_and_neighbours_can_be_reached_in_a_straight_line() -> None:
    for first, second in pairwise([*POSES, POSES[0]]):
        assert first[0] ** 2 + first[1] ** 2 == BAR**2
        assert closest((0, 0), (0, 0), first, second) > BAR - 4


def test_progress_and_settled_objects() -> None:
    scene = scene_of(CUBES)
    assert scene.progress(CUBES) == 0
    scene.items["red"] = (178.0, 42.0)
    assert scene.is_settled(CUBES, "red")
    assert scene.progress(CUBES) == 0.5
    scene.held[1] = "red"  # above its pad, and still held
    assert not scene.is_settled(CUBES, "red")
    assert scene.progress(CUBES) == pytest.approx(0.25, abs=0.01)
    scene.held[1], scene.heights["red"] = "", 5.0  # on another cube
    assert not scene.is_settled(CUBES, "red")
    balls = scene_of(BALLS, items={"red": (34.0, 46.0)})
    assert balls.is_settled(BALLS, "red")
    balls.items["red"] = (36.0, 60.0)
    assert not balls.is_settled(BALLS, "red")


@pytest.mark.parametrize(
    ("kind", "robots"), [(kind, robots) for kind in KINDS for robots in (2, 3) if (kind, robots) != ("carry", 3)]
)
def test_generated_layouts(kind: Kind, robots: int) -> None:
    draw, created = random.Random(0), []
    while len(created) < 10:
        data = make_layout(draw, kind, 2, robots, 65, 0 if kind == "sweep" else 1, 2)
        if data:
            created.append(data)
    for data in created:
        layout = Layout.of(data)
        reached = [
            owners(point, layout.bases, layout.reach) for point in (*layout.items.values(), *layout.goals.values())
        ]
        assert all(reached) or kind == "sweep"
        ways = zip(layout.items.values(), layout.goals.values(), strict=True)
        reach = [[set(owners(point, layout.bases, layout.reach)) for point in way] for way in ways]
        separate = [not initial & final for initial, final in reach]
        assert {"handover": all(separate), "sort": any(separate), "sweep": True, "carry": not any(separate)}[kind]
        assert scene_of(layout).progress(layout) == 0
        assert len(table_rows(layout, scene_of(layout))) == 13


@pytest.mark.parametrize("turn", [0, 3])
def test_a_bar_is_found_in_few_draws_however_far_it_turns(turn: int) -> None:
    layout = [make_layout(random.Random(seed), "carry", 1, 2, 56, 2, turn) is not None for seed in range(30)]
    # A task of the test split is one draw in ten, of 4,000.
    assert sum(layout) >= 3


def test_without_mujoco_a_task_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from cadre.errors import ConfigError

    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ConfigError, match=r"robots needs the package mujoco.*\[robots\]"):
        Robots.tasks("train")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"kind": "carry", "robots": 3}, "robots: got 3"), ({"kind": "sweep", "pillars": 1}, "pillars: got 1")],
)
def test_settings_that_exclude_each_other(settings: dict, words: str) -> None:
    from cadre.errors import ConfigError

    with pytest.raises(ConfigError, match=words):
        Robots.tasks("train", **settings)
