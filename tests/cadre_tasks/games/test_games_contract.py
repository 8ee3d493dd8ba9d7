"""The contract check on every game of a tool and a planner, under random action strings."""

import asyncio
import itertools
import os

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec, env_class
from cadre.plugins import environments
from cadre_tasks.games.tool_planner import ToolPlanner
from tests.helpers.playing import play
from tests.helpers.slow import few_of

# How many random strings each environment is played with; CADRE_CONTRACT_STRINGS=1000 takes minutes.
STRINGS = int(os.environ.get("CADRE_CONTRACT_STRINGS", "10"))
BATCH = min(STRINGS, 50)

words = st.sampled_from(
    ["1", "U", "DR", "2:1234", "1234", "....", "Moves:", "Grid:", "print(", "'RRD'", ")", "\n", " "]
)
actions = st.one_of(
    st.text(max_size=30),
    st.text("UDLR ,\n", max_size=60),
    st.text("1234.: \n", max_size=40),
    st.lists(words, max_size=12).map("".join),
    st.integers(1, 300).map(lambda count: "RD" * count),
)


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of small levels, enough for both splits."""
    from cadre_tasks.games.sokoban import Sokoban

    folder = tmp_path_factory.mktemp("levels")
    tasks = [*Sokoban.tasks("train")[:40], *Sokoban.tasks("test")[:40]]
    usual = str.maketrans(".GBS", " .$@")
    samples = (f"; {number}\n" + "\n".join(task.data["grid"]).translate(usual) for number, task in enumerate(tasks))
    (folder / "levels.txt").write_text("\n\n".join(samples))
    return str(folder)


# The others need data, and are held to the contract with invented rows in tests/cadre/envs.
GAMES = [name for name in environments() if issubclass(env_class(name), ToolPlanner)]


@pytest.mark.parametrize("name", few_of(GAMES, ["plan-path", "sokoban", "sudoku"]))
def test_the_contract_holds_under_random_actions(name: str, levels: str) -> None:
    """Every string is an action that an episode may draw; the check covers forks, determinism, rewards and ends."""
    given_settings = {"levels": levels} if name.startswith("boxoban") else {}
    game = EnvSpec(name, {**given_settings, "turns": 2})
    counter = itertools.count()

    @seed(0)
    @settings(max_examples=STRINGS // BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(actions, min_size=BATCH, max_size=BATCH))
    def check(strings: list[str]) -> None:
        checked = asyncio.run(check_env(game, episodes=BATCH // 2, actions=strings, seed=next(counter)))
        assert len(checked) == 6

    check()
    assert next(counter) * BATCH >= STRINGS


WORLDS = ["search-single-agent"]


@pytest.mark.parametrize("name", [*(name for name in GAMES if name.endswith(("-single-agent", "-tool"))), *WORLDS])
def test_one_agent_is_told_of_no_team_mate(name: str, levels: str) -> None:
    game = EnvSpec(name, {"levels": levels} if name.startswith("boxoban") else {})
    env = game.make(game.tasks("train")[0])
    (role,) = env.roles
    for text in ("print('RRD')", "x"):
        messages = "".join(message.content for message in env.observe()[role].messages)
        assert "team mate" not in messages
        play(env, text)
