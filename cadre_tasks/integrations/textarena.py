"""Games of TextArena (arXiv 2504.11442) as environments: those that are played without a server or a judge model."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from cadre import random_keys
from cadre.env import Env, GeneratedTasks, Split
from cadre.errors import ConfigError, nearest
from cadre.plugins import package
from cadre.types import Message, Observation, Reward, Task

# Games by name, with the players that they are played by here.
GAMES = {
    "TicTacToe-v0": 2,
    "ConnectFour-v0": 2,
    "KuhnPoker-v0": 2,
    "LiarsDice-v0": 2,
    "SimpleNegotiation-v0": 2,
    "IteratedPrisonersDilemma-v0": 2,
    "Taboo-v0": 4,
    "SecretMafia-v0": 6,
}

# The most letters of an answer; some games fail on a number of thousands of digits.
MOST_LETTERS = 2000


class TextArena(Env):
    """A game of `GAMES` between players who act in turns; the game rewards each of them at its end. The game's random
    draws follow from the task and from the number of turns."""

    rewards_absent = True  # the end rewards everybody
    plain_text = {"game": r"[\w-]+"}
    roles: ClassVar[tuple[str, ...]] = ("player_0", "player_1")

    def __init__(self, task: Task, game: str = "TicTacToe-v0") -> None:
        super().__init__(task)
        check(game)
        self.turns, self.paid = 0, dict.fromkeys(self.roles_of(game), 0.0)
        self.game = package("textarena", "textarena").make(game)
        with self._luck():
            self.game.reset(num_players=GAMES[game], seed=random_keys.key("textarena", task.data["deal"]) % 2**31)
        self.over, self.seen = False, self.game.get_observation()

    def observe(self) -> dict[str, Observation]:
        player, text = self.seen
        role = f"player_{player}"
        return {} if self.over else {role: Observation(role, (Message("user", str(text)),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        (answer,) = actions.values()
        self.turns += 1
        with self._luck():
            self.over, _ = self.game.step(answer[:MOST_LETTERS])
            if not self.over:
                self.seen = self.game.get_observation()
                return Reward()
            rewards, _ = self.game.close()
        self.paid = {role: float((rewards or {}).get(number, 0.0)) for number, role in enumerate(self.paid)}
        return Reward(local=self.paid)

    def fork(self) -> Self:
        return copy.deepcopy(self)

    @property
    def success(self) -> bool:
        """Return True if the first player gained."""
        return self.over and self.paid["player_0"] > 0.0

    @classmethod
    def roles_of(cls, game: str = "TicTacToe-v0", **settings: Any) -> tuple[str, ...]:
        return tuple(f"player_{number}" for number in range(GAMES.get(game, 2)))

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(1000, lambda index: {"deal": f"{split}-{index}"}, split)

    def _luck(self) -> Luck:
        return Luck(random_keys.key("textarena", self.task.data["deal"], self.turns))


class Luck:
    """Seeds Python's random numbers, which games draw from, within a block; afterwards they are as before."""

    def __init__(self, key: int) -> None:
        self.key, self.before = key, random.getstate()

    def __enter__(self) -> None:
        random.seed(self.key)

    def __exit__(self, *failure: object) -> None:
        random.setstate(self.before)


def check(game: str) -> None:
    """Raise ConfigError for a game that is not in `GAMES`."""
    if game not in GAMES:
        raise ConfigError(f"settings.game: got {game!r}; expected one of {', '.join(GAMES)}.{nearest(game, GAMES)}")
