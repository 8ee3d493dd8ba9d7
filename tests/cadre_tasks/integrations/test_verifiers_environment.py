"""Environments of Cadre as environments of verifiers: with fake agents, and back again through the real package."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError
from cadre.types import Message, Observation, Reward, Task, Tool
from cadre_tasks.integrations import plain_messages
from cadre_tasks.integrations.verifiers import Verifiers
from cadre_tasks.integrations.verifiers_environment import Episode, make_verifiers_environment
from tests.cadre_tasks.integrations.signals import Signals

PACKAGES = Path(__file__).parent / "packages"


@dataclass
class FakeTrace:
    system: str | None
    turns: list[list[dict[str, str]]] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    closed: bool = False

    def record_reward(self, name: str, value: float) -> None:
        assert self.closed, "verifiers scores a trace when its interaction is closed"
        self.rewards[name] = value

    def record_metric(self, name: str, value: float) -> None:
        self.metrics[name] = value


class FakeAgent:
    """Answers the turns of all interactions from a list; after its last text a turn is terminated."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    @asynccontextmanager
    async def interaction(self, task: Any) -> Any:
        trace = FakeTrace(task["system_prompt"])

        async def turn(messages: list[dict[str, str]]) -> Any:
            trace.turns.append(messages)
            if not self.texts:
                return SimpleNamespace(terminated=True, last_reply="")
            return SimpleNamespace(terminated=False, last_reply=self.texts.pop(0))

        try:
            yield SimpleNamespace(trace=trace, turn=turn)
        finally:
            trace.closed = True


def play(remaining: list[str], right: list[str]) -> list[tuple[str, FakeTrace]]:
    agents = SimpleNamespace(left=FakeAgent(remaining), right=FakeAgent(right))
    task = SimpleNamespace(with_data=lambda **data: data)
    episode = Episode(Signals(Task("t", {"number": 2})), Signals.roles, task, agents)
    asyncio.run(episode.play())
    return episode.traces


def test_a_prompt_that_goes_on_is_a_turn_and_another_one_a_new_trace() -> None:
    (first, remaining), (second, right), (third, anew) = play(["a", "bb", "yes"], ["a", "c"])
    assert (first, second, third) == ("left", "right", "left")
    assert remaining.turns == [
        [{"role": "user", "content": "Turn 0 of 2."}],
        [{"role": "user", "content": "Turn 1."}],
    ]
    assert (remaining.system, anew.system, anew.turns) == ("Signal.", None, [[{"role": "user", "content": "And now?"}]])
    assert remaining.rewards == anew.rewards == {"team": 2.0, "local": 6.0}
    assert right.rewards == {"team": 2.0, "local": 2.0}
    assert right.metrics == {"turns": 3.0, "success": 1.0, "over": 1.0}


def test_a_turn_that_a_limit_of_verifiers_ends_ends_the_episode() -> None:
    traces = play(["a"], ["a", "c"])
    assert [role for role, _ in traces] == ["left", "right"]
    assert traces[0][1].rewards == {"team": 1.0, "local": 1.0}
    assert traces[0][1].metrics == {"turns": 1.0, "success": 0.0, "over": 0.0}


def test_what_is_no_text_is_refused() -> None:
    message = Message("user", "x")
    for observation in (
        Observation("left", (message,), (Tool("add"),)),
        Observation("left", (message, Message("tool", "4", tool_call_id="call_0"))),
    ):
        with pytest.raises(ContractError, match="left: its observation has tools, calls of tools, images or sounds"):
            plain_messages(observation, "verifiers")


def test_tools_and_a_missing_package_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers.v1", SimpleNamespace())
    with pytest.raises(ConfigError, match="Almanac has tools, which are not served to verifiers"):
        make_verifiers_environment("almanac")
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(ConfigError, match="verifiers needs the package verifiers"):
        make_verifiers_environment("plan-path")


@pytest.mark.slow
def test_an_environment_comes_back_through_the_real_package(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verifiers.v1", reason="the extra verifiers is not installed")
    monkeypatch.syspath_prepend(str(PACKAGES))
    spec = EnvSpec(Verifiers, {"id": "cadre-signals-v1"})
    assert spec.roles == ("left", "right")
    env = spec.make(spec.tasks("train")[1])
    reward = Reward()
    for role, text in (("left", "a"), ("right", "a"), ("left", "bb"), ("right", "c"), ("left", "yes")):
        assert list(env.observe()) == [role]
        reward = asyncio.run(env.step({role: text}))
    assert env.observe() == {}
    assert dict(reward.local) == {"left": 8.0, "right": 4.0}
    assert reward.parts["right/turns"] == 3.0
    assert reward.parts["left/success"] == 2.0 / 2
