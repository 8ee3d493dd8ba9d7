"""The kitchen's rules by hand, errands, plans as text, and the contract."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from cadre.envs.check import ACTIONS, check_env
from cadre.envs.spec import EnvSpec
from cadre.types import Task
from cadre_tasks.worlds.kitchen import KitchenSingleAgent, KitchenTeam
from cadre_tasks.worlds.kitchen_rules import LAYOUTS, Kitchen, Layout, Soup, next_move
from lab import kitchen as bench
from tests.helpers.playing import play, seen

TASK = Task("t", {"layout": "cramped_room", "starts": [(1, 2), (3, 1)]})
ROOM = Layout(LAYOUTS["cramped_room"])


def moved(kitchen: Kitchen, *pairs: tuple[str, str]) -> list[tuple[list[int], list[int]]]:
    """Return served points and points for work of each step."""
    return [(points.served, points.work) for points in map(kitchen.step, pairs)]


def test_a_soup_by_hand() -> None:
    """Three onions (3 points each), a dish (3), 20 steps, the soup (5), and 20 points where it is served."""
    kitchen = Kitchen(ROOM, auto=True)
    assert [cook.cell for cook in kitchen.cooks] == [(1, 2), (3, 1)]
    # The second cook stands beside the onions at (4, 1); from (2, 1) it faces the pot at (2, 0).
    for number in (1, 2, 3):
        work = moved(kitchen, *(("stay", move) for move in ("right", "interact", "left", "up", "interact")))
        assert work[-1] == ([0, 0], [0, 3]), number
        assert kitchen.pots[2, 0].onions == number
        moved(kitchen, ("stay", "right"))  # back to (3, 1)
    assert kitchen.pots[2, 0].tick == 2  # it started by itself, and has cooked in that step and the next
    # The first cook takes a dish from (1, 3), which is below it, and waits beside the pot.
    assert moved(kitchen, ("down", "stay"), ("interact", "stay"))[-1] == ([0, 0], [3, 0])
    moved(kitchen, ("up", "stay"), ("right", "stay"), ("up", "stay"))
    assert kitchen.cooks[0].cell == (2, 1)
    while not kitchen.pots[2, 0].is_ready:
        assert moved(kitchen, ("interact", "stay"))[-1] == ([0, 0], [0, 0])
    assert kitchen.time == 18 + 18
    assert moved(kitchen, ("interact", "stay"))[-1] == ([0, 0], [5, 0])
    assert kitchen.cooks[0].held == Soup(3, 20)
    assert kitchen.pots[2, 0] == Soup()
    served = moved(kitchen, ("down", "stay"), ("right", "stay"), ("down", "stay"), ("interact", "stay"))
    assert served[-1] == ([20, 0], [0, 0])
    assert kitchen.cooks[0].held is None


def test_cooks_neither_share_a_cell_nor_change_places() -> None:
    kitchen = Kitchen(ROOM, starts=[(1, 1), (2, 1)])
    moved(kitchen, ("right", "left"))
    assert [(cook.cell, cook.facing) for cook in kitchen.cooks] == [((1, 1), "right"), ((2, 1), "left")]
    moved(kitchen, ("right", "stay"))
    assert kitchen.cooks[0].cell == (1, 1)
    moved(kitchen, ("right", "right"))  # one follows the other
    assert [cook.cell for cook in kitchen.cooks] == [(2, 1), (3, 1)]
    kitchen = Kitchen(ROOM, starts=[(1, 1), (3, 1)])
    moved(kitchen, ("right", "left"))  # both want (2, 1)
    assert [cook.cell for cook in kitchen.cooks] == [(1, 1), (3, 1)]


def test_counters_hold_one_thing_and_a_soup_of_two_onions_earns_nothing() -> None:
    kitchen = Kitchen(ROOM)
    kitchen.cooks[0].held, kitchen.cooks[0].facing = "onion", "left"
    moved(kitchen, ("interact", "stay"))
    assert (kitchen.counters, kitchen.cooks[0].held) == ({(0, 2): "onion"}, None)
    kitchen.cooks[0].held = "dish"
    moved(kitchen, ("interact", "stay"))
    assert kitchen.counters == {(0, 2): "onion"}
    kitchen.cooks[0].cell, kitchen.cooks[0].facing, kitchen.cooks[0].held = (3, 2), "down", Soup(2, 20)
    assert moved(kitchen, ("interact", "stay")) == [([0, 0], [0, 0])]
    assert kitchen.cooks[0].held is None


def test_a_pot_is_started_by_hand_where_it_does_not_start_itself() -> None:
    kitchen = Kitchen(ROOM, starts=[(2, 1), (3, 1)])
    kitchen.pots[2, 0].onions = 3
    moved(kitchen, ("stay", "stay"))
    assert kitchen.pots[2, 0].tick == -1
    moved(kitchen, ("interact", "stay"))
    assert kitchen.pots[2, 0].tick == 1


def test_an_errand_walks_around_the_other_cook_and_does_it() -> None:
    kitchen = Kitchen(Layout(LAYOUTS["coordination_ring"]), starts=[(1, 3), (2, 3)])
    moves = []
    while kitchen.cooks[1].held is None:
        move, reason = next_move(kitchen, 1, "dish")
        assert reason == ""
        moves.append(move)
        moved(kitchen, ("stay", move))
    # The dishes at (0, 2) are reached from (1, 2) alone: the short way is through the other cook.
    assert moves == ["right", "up", "up", "left", "left", "down", "left", "interact"]
    assert next_move(kitchen, 1, "onion") == ("", "the hands hold dish")


def test_both_plans_are_executed_side_by_side() -> None:
    wide = Task("wide", {"layout": "asymmetric_advantages", "starts": [(6, 2), (1, 3)]})
    env = KitchenTeam(wide)
    (reward,) = play(env, {"cook_1": "I will fetch one.\nPlan: onion, pot", "cook_2": "**Plan:** onion, pot"})
    assert reward.parts == {"points": 0.0, "work": 6.0, "readable": 1.0}
    assert (reward.team, reward.local) == (0.3, {})
    assert env.outcomes == ["done", "done"]
    assert sum(pot.onions for pot in env.kitchen.pots.values()) == 2
    (reward,) = play(env, {"cook_1": "serve", "cook_2": "fly"})
    assert reward.local == {"cook_2": -0.1}
    assert "Your last plan: serve was not possible, as the hands hold no soup." in seen(env, "cook_1")
    assert "Your last plan: could not be read." in seen(env, "cook_2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Plan: onion, pot", ["onion", "pot"]),
        ("plan : ONION; pot", ["onion", "pot"]),
        ("Plan: pot\nPlan: dish", ["dish"]),
        ("`Plan: wait`", ["wait"]),
        ("**Plan:** onion, pot.", ["onion", "pot"]),
        ("Plan: **onion, pot.**\nThat is all.", ["onion", "pot"]),
        ("The plan:\n```\nonion, pot\n```\nDone.", ["onion", "pot"]),
        ("I think. " * 1000 + "Plan: onion", ["onion"]),  # the end of a long answer counts
        ("onion", ["onion"]),
        ("", None),
        ("Plan:", None),
        ("Plan: onion, fly", None),
        ("Plan: onion, pot, onion, pot", None),  # more than `plan`
        ("Plan: " + "onion, " * 2000, None),
    ],
)
def test_plans_as_text(text: str, words: list[str] | None) -> None:
    assert KitchenTeam(TASK).read_plan(text) == words


@pytest.mark.parametrize("language", ["errands", "moves"])
def test_an_absent_cook_stands_still_and_costs_nothing(language: str) -> None:
    env = KitchenTeam(TASK, language=language)
    initial_signature, action = env.signature(), env.default_action("cook_2")
    (reward,) = play(env, {"cook_1": "onion" if language == "errands" else "up", "cook_2": action})
    assert (reward.local, reward.parts["readable"]) == ({}, 1.0)
    assert env.kitchen.cooks[1].cell == (3, 1)
    assert env.signature() != initial_signature


def test_one_agent_directs_both() -> None:
    env = KitchenSingleAgent(TASK)
    (reward,) = play(env, "cook 1: onion, pot\ncook 2: dish")
    assert (reward.parts["work"], reward.parts["readable"], reward.local) == (3.0, 1.0, {})
    (reward,) = play(env, "cook 1: wait")
    assert (reward.parts["readable"], reward.local) == (0.5, {"agent": -0.1})
    (reward,) = play(env, env.default_action("agent"))
    assert (reward.parts["readable"], reward.local) == (1.0, {})
    (reward,) = play(env, "I think. " * 1000 + "\n**cook 1:** wait\n**Cook 2**: wait")
    assert (reward.parts["readable"], reward.local) == (1.0, {})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_are_disjoint_and_the_published_start_is_a_test_task(layout: str) -> None:
    splits = {split: KitchenTeam.tasks(split, layout=layout) for split in ("train", "test")}  # type: ignore[arg-type]
    starts = {split: {repr(task.data["starts"]) for task in tasks} for split, tasks in splits.items()}
    assert not starts["train"] & starts["test"]
    assert min(map(len, splits.values())) >= 2
    assert splits["test"][0].data["starts"] == list(Layout(LAYOUTS[layout]).starts)


@pytest.mark.parametrize("name", ["kitchen", "kitchen-single-agent"])
@pytest.mark.parametrize("language", ["errands", "moves"])
def test_the_contract(name: str, language: str) -> None:
    texts = ["onion", "Plan: onion, pot", "up, interact", "cook 1: dish\ncook 2: left, interact", *ACTIONS]
    checked = asyncio.run(check_env(EnvSpec(name, {"language": language, "horizon": 60}), 2, texts))
    assert len(checked) == 6


def test_a_script_earns_more_than_errands_at_random_and_these_more_than_moves() -> None:
    earned = {
        policy: sum(bench.play("coordination_ring", policy, seed, auto=True) for seed in (0, 1))
        for policy in (bench.script, bench.random_errands, bench.random_moves)
    }
    assert earned[bench.script] > 200 > 100 > earned[bench.random_errands] >= earned[bench.random_moves] == 0


def test_exploits_earn_nothing_or_what_the_work_is_worth() -> None:
    exploits = [bench.EXPLOITS[name] for name in ("wait", "an onion up and down", "a dish up and down")]
    assert [bench.play_env("cramped_room", *exploit, 0) for exploit in exploits] == [(0.0, 0)] * 3
    total, points = bench.play_env("cramped_room", *bench.EXPLOITS["claim"], 0)
    assert total < points == 0


def test_examples_are_possible_errands(tmp_path: Path) -> None:
    bench.write_examples(tmp_path / "examples.jsonl", "forced_coordination", 50)
    lines = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    assert len(lines) == 50
    # The second cook has neither onions nor dishes on its side at the start.
    assert {line["answer"] for line in lines[:2] if line["role"] == "cook_2"} <= {"wait", "take", "dish", "onion"}
    assert all(line["prompt"].endswith("take wait") for line in lines)


def test_random_plans_never_break_the_kitchen() -> None:
    draw = random.Random(0)
    letters = "onion dish pot serve put take wait plan: , ; \n ` * \u200b 9 \x00"
    env = KitchenTeam(TASK, horizon=200)
    while env.observe():
        texts = {role: "".join(draw.choice(letters.split(" ")) + " " for _ in range(6)) for role in env.roles}
        initial = env.kitchen.time
        asyncio.run(env.step(texts))
        assert initial < env.kitchen.time <= 200
