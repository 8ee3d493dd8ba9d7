"""Tasksets and environments of verifiers, against the real package."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cadre.env import Env
from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError, DeadlineError
from cadre.rollout.deadlines import TimedEnv
from cadre.settings.run import EpisodesConfig
from cadre.types import Message, Sample, ToolCall
from cadre_tasks.integrations import verifiers
from cadre_tasks.integrations.verifiers import Verifiers, settings_text


def answer(role: str, text: str, *calls: ToolCall) -> dict[str, Sample]:
    return {role: Sample(role, "", text, (), (), (), "stop", 0, Message("assistant", text, calls))}


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.setitem(sys.modules, "verifiers.v1.utils.loaders", None)
    verifiers.load_environment.cache_clear()
    with pytest.raises(ConfigError, match="env: verifiers needs the package verifiers"):
        EnvSpec(Verifiers, {"id": "cadre-sums-v1"}).tasks("train")


def test_equal_settings_are_one_environment() -> None:
    assert settings_text("a", {"y": 1, "x": 2}, "", None) == settings_text("a", {"x": 2, "y": 1}, "", {})
    assert settings_text("a", None, "", None) != settings_text("a", None, "best-of-n", None)


@pytest.fixture
def _package(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verifiers.v1", reason="the extra verifiers is not installed")
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "packages"))


@pytest.mark.slow
@pytest.mark.usefixtures("_package")
@pytest.mark.parametrize("mode", ["block", "loop", "exit", "interrupt"])
def test_a_reward_that_never_returns_is_a_failure_of_its_episode_alone(mode: str) -> None:
    def timed(id: str, **settings: object) -> TimedEnv:
        spec = EnvSpec(Verifiers, {"id": id, **settings})
        return TimedEnv.made(spec.make, spec.tasks("train")[0], ("agent",), EpisodesConfig(step_seconds=1.0))

    async def play() -> None:
        other_timed, hostile = timed("cadre-sums-v1"), timed("cadre-hostile-v1", args={"mode": mode})
        for env in (other_timed, hostile):
            await env.until_ready()
            assert env.observe()["agent"].messages
        with pytest.raises(ContractError if mode in ("exit", "interrupt") else DeadlineError):
            await hostile.step_samples(answer("agent", "It is 4"))
        assert (await other_timed.step_samples(answer("agent", "It is 1"))).parts["right"] == 2.0
        assert other_timed.observe() == {}

    asyncio.run(play())


def make(**settings: object) -> Env:
    spec = EnvSpec(Verifiers, {"id": "cadre-sums-v1", **settings})
    return spec.make(spec.tasks("train")[3])


@pytest.mark.slow
@pytest.mark.usefixtures("_package")
def test_a_single_turn_task_is_rewarded_with_its_parts() -> None:
    env = make()
    shown = env.observe()["agent"]
    assert shown.messages == (Message("system", "Be brief."), Message("user", "Add 3 and 1."))
    fork = env.fork()
    sample = replace(answer("agent", "It is 4")["agent"], prompt_ids=(1, 2, 3), token_ids=(4, 5))
    reward = asyncio.run(env.step_samples({"agent": sample}))
    # As verifiers' own agents have it: the tokens of the completions, and why a conversation without a user ended.
    parts = {"right": 2.0, "length": 7.0, "tokens": 2.0, "completed": 1.0}
    assert (reward.team, dict(reward.parts)) == (2.0, parts)
    assert env.success
    assert env.observe() == {}
    trace, cut = env.episode.traces[0], replace(sample, finish="length")
    assert (trace.num_input_tokens, trace.is_truncated) == (3, False)
    assert asyncio.run(fork.step_samples({"agent": replace(cut, text="5", message=None)})).team == 0.0
    assert fork.episode.traces[0].is_truncated
    assert not fork.success


@pytest.mark.slow
@pytest.mark.usefixtures("_package")
def test_tools_run_and_their_results_are_observed_by_forks_too() -> None:
    env = make(args={"task": {"tools": True}})
    (offered,) = env.observe()["agent"].tools
    assert offered.name == "calculator_add"
    call = ToolCall("x", "calculator_add", '{"a": 3, "b": 1}')
    assert asyncio.run(env.step_samples(answer("agent", "", call))).team == 0.0
    assert env.observe()["agent"].messages[-1] == Message("tool", "4", tool_call_id="call_0")
    fork = env.fork()
    assert fork.observe() == env.observe()
    assert asyncio.run(fork.step_samples(answer("agent", "4"))).team == 2.0
    assert asyncio.run(env.step_samples(answer("agent", "7"))).team == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("_package")
def test_agents_of_an_environment_are_roles_in_its_own_order() -> None:
    env = make(env="cadre-review-v1")
    assert env.roles_of(id="cadre-sums-v1", env="cadre-review-v1") == ("solver", "critic")
    for role, text in (("solver", "5"), ("critic", "Too much, it is 4")):
        assert list(env.observe()) == [role]
        assert asyncio.run(env.step({role: text})).local == {}
    shown = env.fork().observe()["solver"]
    assert [m.content for m in shown.messages[1:]] == ["Add 3 and 1.", "5", "Too much, it is 4"]
    reward = asyncio.run(env.step({"solver": "4"}))
    assert dict(reward.local) == {"solver": 2.0, "critic": 2.0}
    assert reward.parts["critic/traces"] == 2.0


@pytest.mark.slow
@pytest.mark.usefixtures("_package")
@pytest.mark.parametrize("settings", [{}, {"env": "cadre-review-v1"}, {"env": "best-of-n", "env_args": {"n": 2}}])
def test_the_contract_holds(settings: dict) -> None:
    assert asyncio.run(check_env(EnvSpec(Verifiers, {"id": "cadre-sums-v1", **settings}), episodes=2))


@pytest.mark.slow
@pytest.mark.usefixtures("_package")
def test_unknown_tasksets_and_arguments_are_errors() -> None:
    for settings in ({"id": "cadre-no-such-taskset"}, {"id": "cadre-sums-v1", "args": {"cuont": 3}}):
        with pytest.raises(ConfigError, match="cannot load"):
            EnvSpec(Verifiers, settings).tasks("train")
