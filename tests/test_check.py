"""The contract check passes sound environments and names what is broken in unsound ones."""

import asyncio
import itertools

import pytest

from cadre.assemble import Game
from cadre.check import check_env
from cadre.env import Env
from cadre.errors import ContractError
from cadre.types import Reward, Task
from tests.games import Digit, Pair, Relay


def game_of(env: type[Env]) -> Game:
    game = Game("plan-path", {})
    game.env_class, game.settings = env, {}
    return game


@pytest.mark.parametrize("env", [Digit, Relay, Pair])
def test_sound_environments_pass(env: type[Env]) -> None:
    assert len(asyncio.run(check_env(game_of(env)))) == 6


@pytest.mark.parametrize(
    "name", ["plan-path", "plan-path-alone", "plan-path-tool", "plan-path-solo", "examples/taboo.py:Taboo"]
)
def test_what_is_bundled_passes(name: str) -> None:
    assert len(asyncio.run(check_env(Game(name, {}), episodes=3))) == 6


class ObserveMoves(Digit):
    def observe(self):
        self.count = getattr(self, "count", 0) + 1
        seen = super().observe()
        return seen if self.count % 2 else {}


class SharedState(Relay):
    def fork(self):
        return self


class Unseeded(Digit):
    counter = itertools.count()

    async def step(self, actions):
        await super().step(actions)
        return Reward(team=float(next(self.counter)))


class NotFinite(Digit):
    async def step(self, actions):
        await super().step(actions)
        return Reward(team=float("nan"))


class PaysStrangers(Relay):
    async def step(self, actions):
        await super().step(actions)
        return Reward(local={"scout": 1.0, "runner": 1.0})


class Leaky(Digit):
    @classmethod
    def tasks(cls, split, **settings):
        return [Task(f"{split}-{i}", {"digit": i}) for i in range(3)]


class Endless(Digit):
    def observe(self):
        return Digit(self.task).observe()


class Forgetful(Digit):
    def privileged(self):
        self.count = getattr(self, "count", 0) + 1
        return f"asked {self.count} times"


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (Forgetful, "privileged changes"),
        (ObserveMoves, "observe changes"),
        (SharedState, r"\.fork"),
        (Unseeded, "fork: two forks paid"),
        (NotFinite, "fork|not finite"),
        (PaysStrangers, "did not act"),
        (Leaky, "also a training task"),
        (Endless, "not over after"),
    ],
)
def test_broken_environments_are_named(env: type[Env], complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        asyncio.run(check_env(game_of(env)))
