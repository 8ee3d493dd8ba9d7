"""Household tasks of ALFWorld by the real package, in a household of five places written by hand."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.integrations.alfworld import AlfWorld, load_game

# A mug in a closed drawer belongs on the shelf.
PROBLEM = """(define (problem household) (:domain alfred)
(:objects agent1 - agent Mug_bar_1 - object Book_bar_1 - object Drawer_bar_1 - receptacle Shelf_bar_1 - receptacle
  Desk_bar_1 - receptacle loc_1 - location loc_2 - location loc_3 - location loc_4 - location
  MugType - otype BookType - otype DrawerType - rtype ShelfType - rtype DeskType - rtype)
(:init (= (total-cost) 0) (atLocation agent1 loc_4)
  (receptacleAtLocation Drawer_bar_1 loc_1) (receptacleAtLocation Shelf_bar_1 loc_2)
  (receptacleAtLocation Desk_bar_1 loc_3) (receptacleType Drawer_bar_1 DrawerType)
  (receptacleType Shelf_bar_1 ShelfType) (receptacleType Desk_bar_1 DeskType) (openable Drawer_bar_1)
  (objectType Mug_bar_1 MugType) (objectType Book_bar_1 BookType) (pickupable Mug_bar_1) (pickupable Book_bar_1)
  (inReceptacle Mug_bar_1 Drawer_bar_1) (objectAtLocation Mug_bar_1 loc_1)
  (inReceptacle Book_bar_1 Desk_bar_1) (objectAtLocation Book_bar_1 loc_3)
  (canContain DrawerType MugType) (canContain ShelfType MugType) (canContain DeskType MugType)
  (canContain DrawerType BookType) (canContain ShelfType BookType) (canContain DeskType BookType)
  DISTANCES)
(:goal (exists (?r - receptacle ?o - object) (and (inReceptacle ?o ?r) (objectType ?o MugType)
  (receptacleType ?r ShelfType))))
(:metric minimize (total-cost)))"""
PLACES = range(1, 5)
DISTANCES = " ".join(f"(= (distance loc_{a} loc_{b}) {1 + abs(a - b)})" for a in PLACES for b in PLACES)
TRIAL = "pick_and_place_simple-Mug-None-Shelf-1/trial_1/game.tw-pddl"
TASK = Task("t", {"game": f"train/{TRIAL}"})
PLAN = ("go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to shelf 1", "move mug 1 to shelf 1")


def write_game(folder: Path, trial: str = TRIAL, sentence: str = "put a mug in shelf.", **changes: object) -> None:
    for split in ("train", "valid_seen", "valid_unseen"):
        file = folder / split / trial
        file.parent.mkdir(parents=True, exist_ok=True)
        game = {"pddl_problem": PROBLEM.replace("DISTANCES", DISTANCES), "solvable": True}
        grammar = 'grammar :: """ {"task": [{"rhs": "Your task is to: ' + sentence + '"}]} """;'
        file.write_text(json.dumps(game | {"grammar": grammar, "pddl_domain": "not read"} | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("alfworld", reason="the extra alfworld is not installed")
    home = tmp_path_factory.mktemp("games")
    write_game(home)
    return str(home)


def play(env: AlfWorld, *texts: str) -> list[float]:
    async def episode() -> list[float]:
        return [(await env.step(dict.fromkeys(env.observe(), text))).team for text in texts]

    return asyncio.run(episode())


def test_a_plan_does_the_task_as_the_package_judges_it(folder: str) -> None:
    env = AlfWorld(TASK, folder)
    (observation,) = env.observe().values()
    assert "Your task is to: put a mug in shelf." in observation.messages[0].content
    assert play(env, *PLAN) == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert (env.success, env.observe()) == (True, {})
    assert [message.content.split("\n")[0] for message in env.seen["player"][2::2]] == [
        "You arrive at drawer 1. The drawer 1 is closed.",
        "You open the drawer 1. The drawer 1 is open. In it, you see a mug 1.",
        "You pick up the mug 1 from the drawer 1.",
        "You arrive at shelf 1. On the shelf 1, you see nothing.",
        "You move the mug 1 to the shelf 1.",
    ]


def test_a_command_is_the_last_line_and_others_do_nothing(folder: str) -> None:
    env = AlfWorld(TASK, folder)
    play(env, "The mug may be in the drawer.\n> Go to drawer 1", "open the drawer", "")
    replies = [message.content.split("\n")[0] for message in env.seen["player"][2::2]]
    assert replies == ["You arrive at drawer 1. The drawer 1 is closed.", "Nothing happens.", "Nothing happens."]


def test_possible_commands_are_listed_unless_left_out(folder: str) -> None:
    env, bare = AlfWorld(TASK, folder), AlfWorld(TASK, folder, listed=False)
    for each in (env, bare):
        play(each, PLAN[0])
    assert "go to shelf 1" in env.seen["player"][0].content
    assert "open drawer 1" in env.seen["player"][2].content
    assert "You can" not in str(bare.seen["player"])


def test_forks_go_on_alone_and_meet_the_state_that_they_left(folder: str) -> None:
    env = AlfWorld(TASK, folder)
    play(env, *PLAN[:2])
    fork = env.fork()
    assert play(fork, *PLAN[2:])[-1] == 1.0
    assert play(env, "go to desk 1", "take book 1 from desk 1") == [0.0, 0.0]
    assert env.seen["player"][-1].content.startswith("You pick up the book 1 from the desk 1.")
    assert (fork.success, env.success) == (True, False)


def test_interleaved_forks_reply_as_a_fresh_game_does(folder: str) -> None:
    draw = random.Random(0)
    forks: list[tuple[AlfWorld, list[str]]] = [(AlfWorld(TASK, folder), [])]
    for _ in range(60):
        env, commands = draw.choice(forks)
        if len(forks) < 6:
            env, commands = env.fork(), list(commands)
            forks.append((env, commands))
        if not env.over:
            commands.append(draw.choice(env.state.result["admissible_commands"]))
            play(env, commands[-1])
    for env, commands in forks:
        load_game.cache_clear()
        fresh = AlfWorld(TASK, folder)
        play(fresh, *commands)
        assert fresh.seen == env.seen


def test_a_guide_alone_knows_the_task(folder: str) -> None:
    env = AlfWorld(TASK, folder, guided=True)
    (guide,) = env.observe().values()
    assert (guide.role, "put a mug in shelf" in guide.messages[0].content) == ("guide", True)
    play(env, "Look into the drawer.")
    (player,) = env.observe().values()
    assert (player.role, "put a mug" in player.messages[0].content) == ("player", False)
    assert player.messages[-1].content.endswith("The guide: Look into the drawer.")


def test_the_walkthrough_is_a_plan_that_does_the_task(folder: str) -> None:
    env = AlfWorld(TASK, folder)
    plan = env.game.walkthrough
    assert plan[-1] == PLAN[-1]
    assert play(env, *plan)[-1] == 1.0


def test_wording_of_a_game_is_not_run(tmp_path: Path) -> None:
    pytest.importorskip("alfworld", reason="the extra alfworld is not installed")
    mark = tmp_path / "ran"
    hostile = f"put a mug in {{open('{mark}', 'w')}} shelf."
    write_game(tmp_path, sentence=hostile)
    env = AlfWorld(TASK, str(tmp_path))
    play(env, *PLAN)
    assert env.success
    assert not mark.exists()
    (first, *_) = env.seen["player"]
    assert "put a mug in" in first.content
    assert "open(" not in first.content


def test_games_that_the_package_leaves_out_are_no_tasks(tmp_path: Path) -> None:
    write_game(tmp_path)
    write_game(tmp_path, "look_at_obj_in_light-Mug-None-DeskLamp-1/trial_2/game.tw-pddl")
    write_game(tmp_path, "pick_two_obj_and_place-MugSliced-None-Shelf-1/trial_3/game.tw-pddl")
    write_game(tmp_path, "pick_and_place_simple-Cup-None-Shelf-1/trial_4/game.tw-pddl", solvable=False)
    games = [task.data["game"].split("/") for task in AlfWorld.tasks("test", str(tmp_path))]
    assert [(split, trial) for split, _, trial, _ in games] == [
        ("valid_unseen", "trial_2"),
        ("valid_unseen", "trial_1"),
    ]
    (kept,) = AlfWorld.tasks("train", str(tmp_path), kinds=["pick_and_place_simple"])
    assert kept.data == TASK.data
    (seen,) = AlfWorld.tasks("test", str(tmp_path), rooms="seen", kinds=["look_at_obj_in_light"])
    assert seen.data["game"].startswith("valid_seen/look_at")


def test_a_folder_without_games_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no games in .*valid_unseen"):
        AlfWorld.tasks("test", str(tmp_path))


@pytest.mark.parametrize("guided", [False, True])
def test_the_contract_holds(folder: str, guided: bool) -> None:
    settings = {"folder": folder, "guided": guided, "turns": 3}
    assert asyncio.run(check_env(EnvSpec("cadre_tasks.integrations.alfworld:AlfWorld", settings), episodes=1))
