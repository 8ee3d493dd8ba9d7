"""Environments served to clients of OpenEnv: episodes as plain values, and the app where the package is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools

import pytest

from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError
from cadre.types import Reward
from cadre_tasks.integrations import served_spec
from cadre_tasks.integrations.openenv_server import ServedEpisode, make_openenv_app

SPEC = EnvSpec("plan-path-no-tool", {"prompts": "compact"})
HAS_OPENENV = importlib.util.find_spec("openenv") is not None


def test_an_episode_is_served_as_plain_values():
    episode = ServedEpisode(SPEC, "test")

    async def play():
        episode.reset(3)
        first = await episode.observe(Reward(team=0.5, local={"planner": 1}, parts={"x": 2}))
        assert (first["reward"], first["local"], first["parts"]) == (0.5, {"planner": 1.0}, {"x": 2.0})
        assert (first["task"], first["done"], first["success"]) == (SPEC.tasks("test")[3].id, False, False)
        assert set(first["messages"]) == set(episode.env.observe())
        assert all(message["role"] and message["content"] for role in first["messages"].values() for message in role)
        following = first
        while not following["done"]:
            following = await episode.step(dict.fromkeys(following["messages"], "right"))
        assert episode.steps > 0
        for texts in ({"planner": "right"}, {}):
            with pytest.raises(ValueError, match="none, as the episode is over"):
                await episode.step(texts)

    asyncio.run(play())


def test_tasks_follow_the_seed_or_each_other():
    episode, names = ServedEpisode(SPEC, "test"), []
    for seed in (None, None, 0, 10_001):
        episode.reset(seed)
        names.append(episode.env.task.id)
    assert names == [SPEC.tasks("test")[number].id for number in (0, 1, 0, 1)]


def test_sessions_share_the_numbers_of_tasks_without_a_seed():
    """Mistake: clients that open a session an episode train on the first task alone."""
    numbers, names = itertools.count(), []
    for _ in range(3):
        episode = ServedEpisode(SPEC, "test", numbers)
        episode.reset()
        names.append(episode.env.task.id)
    assert len(set(names)) == 3


@pytest.mark.parametrize("reward", [Reward(team=float("nan")), Reward(local={"nobody": 1.0}), 1.0, None])
def test_a_reward_that_breaks_the_contract_is_not_served(reward, monkeypatch):
    episode = ServedEpisode(SPEC, "test")
    episode.reset()

    async def step(actions):
        return reward

    monkeypatch.setattr(episode.env, "step", step)
    with pytest.raises(ContractError, match=r"\.step: "):
        asyncio.run(episode.step(dict.fromkeys(episode.env.observe(), "right")))


@pytest.mark.parametrize("texts", [{}, {"nobody": "x"}, {"tool": "x", "nobody": "y"}])
def test_actions_of_other_roles_are_errors(texts):
    episode = ServedEpisode(SPEC, "test")
    with pytest.raises(ValueError, match="expected reset first"):
        asyncio.run(episode.step(texts))
    episode.reset()
    with pytest.raises(ValueError, match=r"action\.texts: got the roles .*; expected a text of each role that acts"):
        asyncio.run(episode.step(texts))
    assert episode.steps == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def __init__(self, task, size): super().__init__(task)", "settings.size: missing"),
        ("@classmethod\n    def tasks(cls, split): return []", "has none in its split test"),
        ("def look(self) -> str: return ''\n    tools = {'a': [look]}", "has tools, which are not served to OpenEnv"),
        ("def step(self, actions): return Reward()", "expected `async def step"),
    ],
)
def test_an_environment_that_cannot_be_played_is_refused_before_it_is_served(tmp_path, body, words):
    """Mistake: the server starts, and every reset of every client fails."""
    text = (
        "from cadre import Env, Message, Observation, Reward, Task\n"
        "class Toy(Env):\n    roles = ('a',)\n    success = False\n"
        "    @classmethod\n    def tasks(cls, split): return [Task(split, {})]\n"
        "    def observe(self): return {}\n    async def step(self, actions): return Reward()\n"
        f"    {body}\n"
    )
    (tmp_path / "toy.py").write_text(text)
    with pytest.raises((ConfigError, ContractError), match=words):
        served_spec(f"{tmp_path}/toy.py:Toy", {}, "test", "OpenEnv")


@pytest.mark.skipif(HAS_OPENENV, reason="openenv-core is installed")
def test_a_missing_package_is_an_error():
    with pytest.raises(ConfigError, match="openenv"):
        make_openenv_app("plan-path")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_OPENENV, reason="openenv-core is not installed")
def test_the_app_serves_a_client():
    from fastapi.testclient import TestClient

    with TestClient(make_openenv_app("plan-path-no-tool", {"prompts": "compact"}, "test")) as client:
        first = client.post("/reset", json={"seed": 3}).json()
        assert first["observation"]["task"] == SPEC.tasks("test")[3].id
        assert first["done"] is False
