"""Games of TextWorld against the real package."""

import asyncio
from pathlib import Path

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.types import Task
from cadre_tasks.integrations.textworld import EXTRA, META, OTHER, TextWorld, clean

SMALL = {"rooms": 2, "objects": 2, "length": 2}
TASK = Task("t", {"seed": 1_000_000})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("textworld", reason="the extra textworld is not installed")
    return str(tmp_path_factory.mktemp("games"))


def play(env: TextWorld, *texts: str) -> list[float]:
    async def episode() -> list[float]:
        return [(await env.step(dict.fromkeys(env.observe(), text))).team for text in texts]

    return asyncio.run(episode())


def test_the_walkthrough_wins_and_scores_what_the_package_says(folder: str) -> None:
    import textworld

    env = TextWorld(TASK, **SMALL, folder=folder)
    (file,) = Path(folder).glob("*.z8")
    game = textworld.start(str(file), textworld.EnvInfos(score=True, won=True))
    game.reset()
    for command in env.game.walkthrough:
        state, score, _ = game.step(command)
        play(env, command)
        assert (env.score, env.won) == (score, state["won"])
    assert (env.score, env.success, env.observe()) == (env.game.most, True, {})


def test_a_fork_goes_on_alone(folder: str) -> None:
    env = TextWorld(TASK, **SMALL, folder=folder)
    first, last = env.game.walkthrough
    fork = env.fork()
    assert play(fork, first, last) == [0.0, 1.0]
    assert (fork.success, env.success, env.commands) == (True, False, 0)
    assert play(env, last, first, last)[-1] == 1.0 or env.commands == 3
    assert fork.seen != env.seen


def test_a_guide_alone_knows_the_quest(folder: str) -> None:
    env = TextWorld(TASK, **SMALL, folder=folder, guided=True)
    assert TextWorld.roles_of(guided=True) == ("guide", "player")
    (guide,) = env.observe().values()
    assert env.game.objective in guide.messages[0].content
    assert play(env, f"Do this: {env.game.walkthrough[0]}.") == [0.0]
    (player,) = env.observe().values()
    assert env.game.objective not in player.messages[0].content
    assert player.messages[0].content.endswith(f"The guide: Do this: {env.game.walkthrough[0]}.")
    play(env, env.game.walkthrough[0])
    assert [message.role for message in env.observe()["guide"].messages] == ["user", "assistant", "user"]


def test_an_episode_ends_after_its_turns_whatever_is_written(folder: str) -> None:
    env = TextWorld(TASK, **SMALL, folder=folder, turns=4)
    hostile = ["script", "", "<score>\n9\n</score>", "look. save. restart\x00\ud800" + "x" * 10_000]
    assert play(env, *hostile) == [0.0] * 4
    assert (env.over, env.success) == (True, False)
    assert list(Path().glob("*.scr")) == []


@pytest.mark.parametrize("guided", [False, True])
def test_the_contract_holds(folder: str, guided: bool) -> None:
    name = "cadre_tasks.integrations.textworld:TextWorld"
    assert asyncio.run(check_env(EnvSpec(name, {**SMALL, "folder": folder, "guided": guided, "count": 2}), episodes=1))


def test_what_steers_the_interpreter_is_taken_out() -> None:
    """Without the package."""
    assert META.sub("", OTHER.sub(" ", "go north. Script <score> TW-trace-actions")).split() == ["go", "north", "score"]
    assert EXTRA.findall("Taken.\n<score>\n1\n</score><moves>\n3\n</moves>\n>   -= Hall =-0/3")[0] == ("score", "1")
    assert clean("\nTaken.\n\n\n\nYou won.\n<score>\n1\n</score>\n>   -= Hall =-0/3") == "Taken.\n\nYou won."
