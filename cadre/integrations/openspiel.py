"""Any game of OpenSpiel (arXiv 1908.09453) as an environment: turns or several at once, chance, hidden information.

A role is `player_0`, `player_1` and so on. It sees its information state as the game writes it, and the moves that it
has; it answers with one of them. Where chance plays, the task and how often chance played before decide, so that equal
actions lead to equal states and the siblings of a decision meet the same luck.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Self

from cadre import random_keys
from cadre.env import Env, GeneratedTasks, Split
from cadre.errors import ConfigError, nearest
from cadre.integrations import openspiel_exact, package
from cadre.types import Choice, Message, Observation, Reward, Task

PREFIX = "player_"


@lru_cache
def load_game(name: str) -> Any:
    """The game of that name, which may carry parameters: `kuhn_poker(players=3)`. Raises ConfigError."""
    pyspiel = package("pyspiel", "openspiel")
    short, known = name.partition("(")[0], {kind.short_name: kind for kind in pyspiel.registered_games()}
    if short not in known:
        raise ConfigError(
            f"settings.game: got {name!r}, which OpenSpiel does not have; expected one of its {len(known)} games, such "
            f"as kuhn_poker or tiny_hanabi. Fix the name.{nearest(short, known)}"
        )
    try:
        game = pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"settings.game: OpenSpiel refuses {name!r}: {reason}; expected a game with parameters that it takes, as "
            "in kuhn_poker(players=3). Fix them."
        ) from None
    if reason := unplayable(game):
        raise ConfigError(
            f"settings.game: {name} {reason}; expected a game whose players see text and choose among moves, and whose "
            "chance moves can be counted. Take another."
        )
    return game


def unplayable(game: Any) -> str:
    """Why a game of OpenSpiel can be no environment, or nothing."""
    pyspiel, kind = package("pyspiel", "openspiel"), game.get_type()
    strings = kind.provides_information_state_string or kind.provides_observation_string
    if not strings or kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        return "has no players who see text"
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        return "draws its chance moves inside itself, so that siblings would not meet the same luck"
    state, luck = game.new_initial_state(), random_keys.generator("openspiel", "unplayable")
    while state.is_chance_node():
        state.apply_action(luck.choice(state.chance_outcomes())[0])
    try:
        state.legal_actions()
    except pyspiel.SpielError:
        return "does not list its players' moves"
    return ""


class OpenSpiel(Env):
    """A game of OpenSpiel; `penalty` is what an answer costs that is no legal move, in whose place a random one is
    played."""

    pays_absent = True  # a move may end the game and pay everybody
    roles: ClassVar[tuple[str, ...]] = (f"{PREFIX}0", f"{PREFIX}1")

    def __init__(self, task: Task, game: str = "kuhn_poker", penalty: float = 1.0) -> None:
        super().__init__(task)
        self.game, self.penalty, self.luck = load_game(game), penalty, 0
        self.state = self.game.new_initial_state()
        self.owed = dict.fromkeys(self.roles_of(game), 0.0)
        self._play_chance()

    def observe(self) -> dict[str, Observation]:
        return {} if self.state.is_terminal() else {role(p): seen(self.state, p) for p in acting(self.state)}

    async def step(self, actions: dict[str, str]) -> Reward:
        players, before = acting(self.state), self.state.returns()
        played = [self._move(player, actions[role(player)]) for player in players]
        moves = [move for move, _ in played]
        if self.state.is_simultaneous_node():
            self.state.apply_actions(_of_everybody(self.state, players, moves))
        else:
            self.state.apply_action(moves[0])
        self._play_chance()
        gains = [now - then for now, then in zip(self.state.returns(), before, strict=True)]
        illegal = {role(player): self.penalty for player, (_, legal) in zip(players, played, strict=True) if not legal}
        return self._paid(gains, illegal, [role(player) for player in players])

    def fork(self) -> Self:
        other = copy.copy(self)
        other.state, other.owed = self.state.clone(), dict(self.owed)
        return other

    @property
    def success(self) -> bool:
        """A cooperative game ends with the best that it can pay, another with a gain of the first player."""
        if not self.state.is_terminal():
            return False
        best = self.game.max_utility() if openspiel_exact.cooperative(self.game) else 0.0
        first = self.state.returns()[0]
        return bool(first >= best if openspiel_exact.cooperative(self.game) else first > best)

    @classmethod
    def roles_of(cls, game: str = "kuhn_poker", **settings: Any) -> tuple[str, ...]:
        return tuple(map(role, range(load_game(game).num_players())))

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        """A thousand deals; a task is nothing but the luck that its chance moves have."""
        return GeneratedTasks(1000, lambda index: {"deal": f"{split}-{index}"}, split)

    @classmethod
    def choices(cls, game: str = "kuhn_poker", **settings: Any) -> Sequence[Choice]:
        return [
            Choice(seen(state, player), answers(state, player))
            for state, player in openspiel_exact.decisions(load_game(game))
        ]

    @classmethod
    def figures(
        cls, probabilities: Sequence[Sequence[float]], game: str = "kuhn_poker", **settings: Any
    ) -> dict[str, float]:
        return openspiel_exact.figures(load_game(game), probabilities)

    def _play_chance(self) -> None:
        """Every move of chance until somebody acts, each from a draw of its own number."""
        while self.state.is_chance_node():
            outcomes, weights = zip(*self.state.chance_outcomes(), strict=True)
            generator = random_keys.generator("openspiel", self.task.data["deal"], self.luck)
            self.state.apply_action(generator.choices(outcomes, weights)[0])
            self.luck += 1

    def _move(self, player: int, answer: str) -> tuple[int, bool]:
        """The move that an answer names and whether it is legal; if not, one by a draw that the state decides."""
        legal = self.state.legal_actions(player)
        words = answers(self.state, player)
        if answer.strip() in words:
            return legal[words.index(answer.strip())], True
        history = ",".join(map(str, self.state.history()))
        return random_keys.generator("openspiel", self.task.data["deal"], history, player).choice(legal), False

    def _paid(self, gains: Sequence[float], illegal: Mapping[str, float], acted: Sequence[str]) -> Reward:
        """The team's reward where all have one utility; else what each has gained since it acted last, and at the end
        what everybody has."""
        parts = {"legal": 1.0 - len(illegal) / len(acted)}
        if openspiel_exact.cooperative(self.game):
            return Reward(gains[0], {name: -cost for name, cost in illegal.items()}, parts)
        self.owed = {name: self.owed[name] + gain for name, gain in zip(self.owed, gains, strict=True)}
        paid = list(self.owed) if self.state.is_terminal() else acted
        local = {name: self.owed[name] - illegal.get(name, 0.0) for name in paid}
        self.owed = {name: 0.0 if name in paid else owed for name, owed in self.owed.items()}
        return Reward(local=local, parts=parts)


def role(player: int) -> str:
    return f"{PREFIX}{player}"


def acting(state: Any) -> list[int]:
    """The players who act: one in its turn, or all who have a move."""
    if not state.is_simultaneous_node():
        return [state.current_player()]
    return [player for player in range(state.num_players()) if state.legal_actions(player)]


def answers(state: Any, player: int) -> tuple[str, ...]:
    """The player's legal moves in words, in the order of `legal_actions`."""
    words = [state.action_to_string(player, action).strip() for action in state.legal_actions(player)]
    return tuple(words if len(set(words)) == len(words) else map(str, state.legal_actions(player)))


def seen(state: Any, player: int) -> Observation:
    """What the player knows, and its moves."""
    text = f"{state.get_game().get_type().short_name}\n{openspiel_exact.known_to(state, player)}\n"
    moves = " ".join(answers(state, player))
    return Observation(role(player), (Message("user", f"{text}moves: {moves}"),))


def _of_everybody(state: Any, players: Sequence[int], moves: Sequence[int]) -> list[int]:
    """A move for every player; OpenSpiel takes 0 for those who have none."""
    chosen = dict(zip(players, moves, strict=True))
    return [chosen.get(player, 0) for player in range(state.num_players())]
