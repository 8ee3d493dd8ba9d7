"""Environments of OpenEnv: against a fake client, and against the real package with a server of this machine."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ReplayDiverged
from cadre.rollout.failures import failure_of
from cadre.types import Message, Task
from cadre_tasks.integrations import openenv
from cadre_tasks.integrations.openenv import OpenEnv

TASK = Task("t", {"seed": 7})


class FakeClient:
    """A session of a game in which the digit of the seed is guessed."""

    opened: list["FakeClient"] = []
    # Errors of the next calls of any session, first the next one's.
    errors: list[Exception | None] = []

    def __init__(self, url: str, connect_timeout_s: float, message_timeout_s: float) -> None:
        assert min(connect_timeout_s, message_timeout_s) > 0
        self.url, self.open, self.steps = url, True, 0
        self.opened.append(self)

    def sync(self) -> "FakeClient":
        return self

    def connect(self) -> None:
        if "refused" in self.url:
            raise ConnectionError("refused")
        self.fail()

    def fail(self) -> None:
        assert self.open
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def close(self) -> None:
        self.open = False

    def reset(self, seed: int) -> Any:
        self.fail()
        self.digit = str(seed % 10)
        return SimpleNamespace(observation={"text": "Guess."}, reward=None, done=False)

    def step(self, action: dict[str, Any]) -> Any:
        self.fail()
        if "message" not in action:
            raise RuntimeError("Server error: no message (code: VALIDATION_ERROR)")
        self.steps += 1
        right = action["message"] == self.digit
        return SimpleNamespace(observation={"text": f"{self.steps}"}, reward=float(right), done=right)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    openenv.pool_of.cache_clear()
    FakeClient.opened, FakeClient.errors = [], []
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


def test_a_replay_that_leads_elsewhere_is_a_failure_of_the_machine(client: type[FakeClient]) -> None:
    """Mistake: a server that ignores the seed leaves a fork in a state that its conversation does not describe."""
    env = OpenEnv(TASK, url="http://here", observation="text")
    asyncio.run(env.step({"agent": "1"}))
    rewarded, shown = env.fork(), env.fork()
    rewarded.total = 1.0
    shown.messages = (*shown.messages[:-1], Message("user", "elsewhere"))
    for fork in (rewarded, shown):
        with pytest.raises(ReplayDiverged, match="expected the same state again") as caught:
            asyncio.run(fork.step({"agent": "7"}))
        failure = failure_of(caught.value)
        assert (failure.reason, failure.rewarded) == ("diverged", False)


def test_an_answer_that_is_no_action_ends_the_episode(client: type[FakeClient]) -> None:
    for settings, text in (({"action": ""}, "no JSON"), ({"action": ""}, "[1]"), ({"action": "wrong"}, "7")):
        env = OpenEnv(TASK, url="http://here", **settings)
        reward = asyncio.run(env.step({"agent": text}))
        assert (reward.team, dict(reward.parts), env.observe(), env.success) == (0.0, {"valid": 0.0}, {}, False)


class ConnectionClosedError(Exception):
    """An exception like that of the package websockets: no OSError."""


CRASH = RuntimeError("Server error: disk full (code: EXECUTION_ERROR)")


@pytest.mark.parametrize("error", [CRASH, ConnectionClosedError("no close frame"), TimeoutError(), OSError("reset")])
def test_a_server_that_fails_is_asked_again_in_a_new_session(client: type[FakeClient], error: Exception) -> None:
    env = OpenEnv(TASK, url="http://here", observation="text", sessions=2)
    asyncio.run(env.step({"agent": "1"}))
    client.errors = [error]
    assert asyncio.run(env.step({"agent": "7"})).team == 1.0
    first, second = client.opened
    # A late answer of the first session must not be taken for that of the next call.
    assert (first.open, second.open, second.steps) == (False, True, 2)


@pytest.mark.parametrize("error", [CRASH, ConnectionClosedError("no close frame"), TimeoutError(), OSError("reset")])
def test_a_server_that_fails_twice_is_a_failure_of_the_machine(client: type[FakeClient], error: Exception) -> None:
    env = OpenEnv(TASK, url="http://here")
    client.errors = [error, None, None, error]  # the step; a new connection, its reset and its step
    with pytest.raises(openenv.ServerFailed, match="http://here failed at step") as raised:
        asyncio.run(env.step({"agent": "7"}))
    failure = failure_of(raised.value)
    assert (failure.reason, failure.rewarded, env.observe() != {}) == ("raised", False, True)
    assert not any(session.open for session in client.opened)


def test_a_server_that_goes_away_is_a_failure_and_no_setting(client: type[FakeClient]) -> None:
    env = OpenEnv(TASK, url="http://here")
    client.errors = [TimeoutError(), OSError("gone")]
    with pytest.raises(openenv.ServerFailed, match="does not answer any more"):
        asyncio.run(env.step({"agent": "7"}))


def test_a_server_without_room_for_the_sessions_is_told_of(client: type[FakeClient]) -> None:
    full = RuntimeError("Server error: Server at capacity (code: CAPACITY_REACHED)")
    client.errors = [None, full, None, full]
    with pytest.raises(openenv.ServerFailed, match=r"fewer sessions at once than settings\.sessions, 3: lower that"):
        OpenEnv(TASK, url="http://here", sessions=3)


def test_exceptions_in_a_step_are_the_agents_where_the_recipe_says_so(client: type[FakeClient]) -> None:
    env = OpenEnv(TASK, url="http://here", exceptions="invalid")
    client.errors = [CRASH, None, None, CRASH]
    reward = asyncio.run(env.step({"agent": "9"}))
    assert (reward.team, dict(reward.parts), env.observe()) == (0.0, {"valid": 0.0}, {})
    other_open_env = OpenEnv(TASK, url="http://here", exceptions="invalid")
    client.errors = [TimeoutError(), None, None, TimeoutError()]
    with pytest.raises(openenv.ServerFailed):
        asyncio.run(other_open_env.step({"agent": "9"}))


def test_arguments_of_reset_that_the_server_does_not_accept_are_a_setting(client: type[FakeClient]) -> None:
    client.errors = [None, RuntimeError("Server error: Invalid message (code: VALIDATION_ERROR)")]
    with pytest.raises(ConfigError, match=r"settings\.reset: got \{\}"):
        OpenEnv(TASK, url="http://here")


def test_settings_are_validated(client: type[FakeClient]) -> None:
    for settings, words in (
        ({}, "expected one of them"),
        ({"url": "http://refused"}, "no OpenEnv server answers"),
        ({"app": "cadre_no_such_module:app"}, "in no installed module"),
        ({"url": "http://here", "observation": "txt"}, "expected an entry of the observations: text"),
    ):
        with pytest.raises(ConfigError, match=words):
            OpenEnv(TASK, **settings)


@pytest.mark.parametrize(
    ("code", "settings", "words"),
    [
        ("raise SystemExit(3)", {}, r"ended with status 3; its messages are above"),
        ("import time; time.sleep(60)", {"start_timeout_s": 0.2}, r"within 0\.2 s\. Raise settings\.start_timeout_s"),
    ],
)
def test_a_server_that_does_not_start(
    code: str,
    settings: dict,
    words: str,
    client: type[FakeClient],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    name = f"cadre_server_{len(code)}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        OpenEnv(TASK, app=f"{name}:app", **settings)


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
