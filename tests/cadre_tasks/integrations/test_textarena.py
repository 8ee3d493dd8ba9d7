"""Games of TextArena against the real package."""

import asyncio
import random

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.types import Task
from cadre_tasks.integrations.textarena import GAMES, TextArena

pytest.importorskip("textarena", reason="the extra textarena is not installed")
TASK = Task("t", {"deal": "test-0"})


def play(env: TextArena, *texts: str) -> list[dict[str, float]]:
    async def episode() -> list[dict[str, float]]:
        return [dict((await env.step(dict.fromkeys(env.observe(), text))).local) for text in texts]

    return asyncio.run(episode())


def test_a_won_game_pays_both_at_its_end() -> None:
    env = TextArena(TASK)
    *initial_play, last = play(env, "[4]", "[0]", "[3]", "[1]", "[5]")
    assert initial_play == [{}] * 4
    assert last == {"player_0": 1.0, "player_1": -1.0}
    assert env.success
    assert env.observe() == {}


def test_a_fork_goes_on_alone_and_luck_follows_from_the_state() -> None:
    env, again = TextArena(TASK, "KuhnPoker-v0"), TextArena(TASK, "KuhnPoker-v0")
    random.seed(5)
    fork = env.fork()
    assert play(fork, "[check]", "[check]") == play(again, "[check]", "[check]")
    assert fork.observe() == again.observe() != env.observe()
    other_text_arena = TextArena(Task("t", {"deal": "test-3"}), "KuhnPoker-v0")
    assert {
        str(item.observe()) for item in (env, other_text_arena, TextArena(Task("t", {"deal": "x"}), "KuhnPoker-v0"))
    } != {str(env.observe())}


@pytest.mark.parametrize("game", ["TicTacToe-v0", "KuhnPoker-v0", "LiarsDice-v0", "IteratedPrisonersDilemma-v0"])
def test_the_contract_holds(game: str) -> None:
    assert asyncio.run(check_env(EnvSpec("textarena", {"game": game}), episodes=2))


def test_games_that_need_more_are_refused() -> None:
    assert len(GAMES) == 8
    with pytest.raises(ConfigError, match="no server, no download and no judge model"):
        TextArena(TASK, "Wordle-v0")
