"""The picture tasks: the games' own tasks and rewards, with the board in the picture and nowhere in the text."""

import asyncio

import pytest

from cadre.envs.images import pixels
from cadre.envs.spec import EnvSpec
from cadre.types import Task
from cadre_tasks.games.boards import BROWN, GREEN, WALL
from cadre_tasks.games.pictured import PlanPathPicture, SokobanPicture
from cadre_tasks.games.plan_path import PlanPath

GRID = {"grid": ["S.#", "..#", ".#G"]}


@pytest.mark.parametrize("prompts", ["compact", "full"])
@pytest.mark.parametrize("name", ["plan-path-picture", "sokoban-picture"])
def test_the_board_is_in_the_picture_alone(name, prompts):
    spec = EnvSpec(name, {"prompts": prompts, "cell": 8})
    env = spec.make(spec.tasks("train")[3])
    ((role, recorded),) = env.observe().items()
    (message,) = recorded.messages
    (picture,) = message.images
    assert role == "planner"
    assert not any(row in message.content for row in env.draw().split("\n"))
    rows = env.draw().split("\n")
    assert (picture.width, picture.height) == (8 * len(rows[0]), 8 * len(rows))
    for r, row in enumerate(rows):
        for c, mark in enumerate(row):
            assert (tuple(pixels(picture)[8 * r, 8 * c]) == WALL) == (mark == "#")


def test_the_tasks_are_those_of_the_game():
    assert PlanPathPicture.tasks("test")[5] == PlanPath.tasks("test")[5]


def test_the_picture_moves_with_the_walker():
    env = PlanPathPicture(Task("t", {"grid": ["S.", ".G"]}), cell=10)
    initial_observe = env.observe()["planner"].messages[0].images
    reward = asyncio.run(env.step({"planner": "Moves: R"}))
    final_observe = env.observe()["planner"].messages[0].images
    assert initial_observe != final_observe
    assert reward.parts["moves"] == -0.01
    assert tuple(pixels(final_observe[0])[15, 15]) == GREEN
    asyncio.run(env.step({"planner": "Moves: D"}))
    assert env.success
    assert env.observe() == {}


def test_a_box_on_its_goal_shows_both():
    env = SokobanPicture(Task("t", {"grid": ["#####", "#S*.#", "#.GB#", "#...#", "#####"]}), cell=20)
    samples = pixels(env.observe()["planner"].messages[0].images[0])
    assert tuple(samples[30, 50]) == BROWN
    assert tuple(samples[30, 44]) == GREEN
