"""Environments of OpenEnv: against a fake client, and against the real package with a server of this machine."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.integrations import openenv
from cadre.integrations.openenv import OpenEnv
from cadre.types import Task

TASK = Task("t", {"seed": 7})


class FakeClient:
    """A session of a game in which the digit of the seed is guessed."""

    opened: list["FakeClient"] = []

    def __init__(self, url: str, message_timeout_s: float) -> None:
        assert message_timeout_s > 0
        self.url, self.open, self.steps = url, True, 0
        self.opened.append(self)

    def sync(self) -> "FakeClient":
        return self

    def connect(self) -> None:
        if "refused" in self.url:
            raise ConnectionError("refused")

    def close(self) -> None:
        self.open = False

    def reset(self, seed: int) -> Any:
        self.digit = str(seed % 10)
        return SimpleNamespace(observation={"text": "Guess."}, reward=None, done=False)

    def step(self, action: dict[str, Any]) -> Any:
        if "message" not in action:
            raise RuntimeError("Server error: no message")
        self.steps += 1
        right = action["message"] == self.digit
        return SimpleNamespace(observation={"text": f"{self.steps}"}, reward=float(right), done=right)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    openenv.pool_of.cache_clear()
    FakeClient.opened = []
    monkeypatch.setattr(openenv, "package", lambda module, extra: SimpleNamespace(GenericEnvClient=FakeClient))
    return FakeClient


def test_forks_are_replayed_and_the_server_has_no_more_sessions_than_it_can(client: type[FakeClient]) -> None:
    env = OpenEnv(TASK, url="http://here", observation="text")
    asyncio.run(env.step({"agent": "1"}))
    forks = [env.fork() for _ in range(3)]
    for fork, text in zip(forks, ("7", "2", "7"), strict=True):
        reward = asyncio.run(fork.step({"agent": text}))
        assert (reward.team, fork.success) == (float(text == "7"), text == "7")
        assert sum(session.open for session in client.opened) == 1
    assert [m.content for m in forks[1].observe()["agent"].messages] == ["Guess.", "1", "1", "2", "2"]
    shown = [(message.role, message.content) for message in env.observe()["agent"].messages]
    assert shown == [("user", "Guess."), ("assistant", "1"), ("user", "1")]


def test_an_answer_that_is_no_action_ends_the_episode(client: type[FakeClient]) -> None:
    for settings, text in (({"action": ""}, "no JSON"), ({"action": ""}, "[1]"), ({"action": "wrong"}, "7")):
        env = OpenEnv(TASK, url="http://here", **settings)
        reward = asyncio.run(env.step({"agent": text}))
        assert (reward.team, dict(reward.parts), env.observe(), env.success) == (0.0, {"valid": 0.0}, {}, False)


def test_settings_are_validated(client: type[FakeClient]) -> None:
    for settings, words in (
        ({}, "expected one of them"),
        ({"url": "http://refused"}, "no OpenEnv server answers"),
        ({"app": "cadre_no_such_module:app"}, "no installed module"),
        ({"url": "http://here", "observation": "txt"}, "expected a field of the observations: text"),
    ):
        with pytest.raises(ConfigError, match=words):
            OpenEnv(TASK, **settings)


@pytest.mark.slow
def test_the_contract_holds_with_a_server_of_the_real_package(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openenv.core", reason="the extra openenv is not installed")
    folder = str(Path(__file__).parent / "packages")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH")))))
    spec = EnvSpec(OpenEnv, {"app": "cadre_guess_env:app", "observation": "text", "sessions": 2})
    assert asyncio.run(check_env(spec, episodes=2))
    env = spec.make(TASK)
    asyncio.run(env.step({"agent": "1"}))
    fork = env.fork()
    assert asyncio.run(fork.step({"agent": "7"})).team == 1.0
    assert fork.success
    assert asyncio.run(env.step({"agent": "2"})).team == 0.0
    assert env.observe()["agent"].messages[-1].content == "Wrong, 2 of 3."
