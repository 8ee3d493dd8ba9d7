"""Environments of Gymnasium, against the real package."""

import asyncio
from types import SimpleNamespace

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ReplayDiverged
from cadre.types import Message, Task
from cadre_tasks.integrations.gymnasium import Gymnasium

gymnasium = pytest.importorskip("gymnasium", reason="the extra gymnasium is not installed")
TASK = Task("t", {"seed": 7})


class GuessGame(gymnasium.Env):
    """A digit is guessed; a wrong guess is told whether it is too low."""

    observation_space = gymnasium.spaces.Text(20)
    action_space = gymnasium.spaces.Text(3, charset="0123456789")

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.digit = str(seed % 10)
        return "Guess.", {}

    def step(self, action):
        right = action == self.digit
        return "Right." if right else "Too low." if action < self.digit else "Too high.", float(right), right, False, {}


gymnasium.register("cadre/Guess-v0", GuessGame)


@pytest.mark.parametrize("fork", ["copy", "replay"])
def test_a_text_game_is_played_and_forked(fork: str) -> None:
    env = Gymnasium(TASK, "cadre/Guess-v0", fork=fork)
    assert asyncio.run(env.step({"agent": "1"})).team == 0.0
    twin = env.fork()
    assert asyncio.run(twin.step({"agent": "7"})).team == 1.0
    assert twin.success
    assert twin.observe() == {}
    asyncio.run(env.step({"agent": "9"}))
    assert [m.content for m in env.observe()["agent"].messages] == ["Guess.", "1", "Too low.", "9", "Too high."]


def test_a_replay_that_leads_elsewhere_is_a_failure_of_the_machine() -> None:
    env = Gymnasium(TASK, "cadre/Guess-v0", fork="replay")
    asyncio.run(env.step({"agent": "1"}))
    twin = env.fork()
    twin.messages = (*twin.messages[:-1], Message("user", "elsewhere"))
    with pytest.raises(ReplayDiverged, match=r"Too low.*in place of 'elsewhere'"):
        asyncio.run(twin.step({"agent": "7"}))


def test_a_text_that_is_no_action_ends_the_episode() -> None:
    env = Gymnasium(TASK, "cadre/Guess-v0", invalid=-0.5)
    reward = asyncio.run(env.step({"agent": "seven"}))
    assert (reward.team, dict(reward.parts), env.observe(), env.success) == (-0.5, {"valid": 0.0}, {}, False)


def test_a_discrete_action_is_the_last_number_of_an_answer() -> None:
    env = Gymnasium(TASK, "FrozenLake-v1", args={"is_slippery": False})
    asyncio.run(env.step({"agent": "Not 0 but 2."}))
    assert env.actions == (2,)
    assert env.observe()["agent"].messages[-1].content == "1"


@pytest.mark.parametrize(
    ("text", "action"),
    [("(2)", 2), ("Not 0 but `2`.", 2), ("**2**", 2), ("1, then 3!", 3), ("2.5", None), ("1.0", None), ("a2", None)]
    + [("-1", None), ("9" * 5000, None), ("²", None)],
)
def test_a_number_is_read_with_the_marks_around_it(text: str, action: int | None) -> None:
    """Mistake: "Not 0 but (2)" is the action 0, and "2.5" the action 5."""
    env = object.__new__(Gymnasium)
    env.game = SimpleNamespace(action_space=gymnasium.spaces.Discrete(6))
    assert env._action_of(text) == action


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"id": "NoSuch-v0"}, "cannot make"),
        ({"id": "no_such_module:X-v0"}, "cannot make"),
        ({"id": "Pendulum-v1"}, "expected a Text or Discrete space"),
        ({"id": "cadre/Guess-v0", "observation": "board"}, "they have none"),
    ],
)
def test_environments_that_do_not_fit_are_errors(settings: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Gymnasium(TASK, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("fork", ["copy", "replay"])
def test_the_contract_holds(fork: str) -> None:
    assert asyncio.run(check_env(EnvSpec(Gymnasium, {"id": "cadre/Guess-v0", "turns": 4, "fork": fork}), episodes=2))
