"""Any game of OpenSpiel (arXiv 1908.09453) as an environment: turns or several at once, chance, hidden information.

A role is `player_0`, `player_1` and so on. It sees its information state as the game writes it, and the moves that it
has; it answers with one of them. Where chance plays, the task and how often chance played before decide, so that equal
actions lead to equal states and the completions of a decision meet the same luck.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Self

from cadre import random_keys
from cadre.env import Env, GeneratedTasks, Split
from cadre.errors import ConfigError, nearest
from cadre.plugins import package
from cadre.types import Choice, Message, Observation, Reward, Task

PREFIX = "player_"


@lru_cache
def load_game(name: str) -> Any:
    """Return the game of a name, with parameters or without: `kuhn_poker(players=3)`. Raises ConfigError."""
    pyspiel = package("pyspiel", "openspiel")
    short, games = name.partition("(")[0], {kind.short_name: kind for kind in pyspiel.registered_games()}
    if short not in games:
        raise ConfigError(
            f"settings.game: OpenSpiel has no {name!r}; expected one of its {len(games)} games.{nearest(short, games)}"
        )
    try:
        game = pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"settings.game: OpenSpiel refuses {name!r}: {reason}; expected as in kuhn_poker(players=3)."
        ) from None
    if reason := unplayable(game):
        raise ConfigError(f"settings.game: {name} {reason}. Take another.")
    return game


def unplayable(game: Any) -> str:
    """Return why a game of OpenSpiel can be no environment, or an empty text."""
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
    """A game of OpenSpiel. An answer that is no legal move costs `penalty`, and a random move is played instead."""

    rewards_absent = True  # a move may end the game and reward everybody
    # Parameters of games are numbers: a text may be the name of a file, as in efg_game(filename=...).
    plain_text = {"game": r"\w+(\((\w+=(-?[\d.]+|[Tt]rue|[Ff]alse),?)*\))?"}
    roles: ClassVar[tuple[str, ...]] = (f"{PREFIX}0", f"{PREFIX}1")

    def __init__(self, task: Task, game: str = "kuhn_poker", penalty: float = 1.0) -> None:
        super().__init__(task)
        self.game, self.penalty, self.luck = load_game(game), penalty, 0
        self.state = self.game.new_initial_state()
        self.gains_since = dict.fromkeys(self.roles_of(game), 0.0)
        self._play_chance()

    def observe(self) -> dict[str, Observation]:
        return {} if self.state.is_terminal() else {role(p): seen(self.state, p) for p in acting(self.state)}

    async def step(self, actions: dict[str, str]) -> Reward:
        players, before = acting(self.state), self.state.returns()
        played = [self._move(player, actions[role(player)]) for player in players]
        moves = [move for move, _ in played]
        if self.state.is_simultaneous_node():
            # OpenSpiel takes 0 for those who have no move.
            chosen = dict(zip(players, moves, strict=True))
            self.state.apply_actions([chosen.get(player, 0) for player in range(self.state.num_players())])
        else:
            self.state.apply_action(moves[0])
        self._play_chance()
        gains = [now - then for now, then in zip(self.state.returns(), before, strict=True)]
        illegal = {role(player): self.penalty for player, (_, legal) in zip(players, played, strict=True) if not legal}
        return self._reward(gains, illegal, [role(player) for player in players])

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin.state, twin.gains_since = self.state.clone(), dict(self.gains_since)
        return twin

    def default_action(self, role: str) -> str:
        """Return the first legal move, which costs no penalty and is not drawn at random."""
        return answers(self.state, int(role.removeprefix(PREFIX)))[0]

    @property
    def success(self) -> bool:
        """Return True if a cooperative game ended with its best reward, another with a gain of the first player."""
        if not self.state.is_terminal():
            return False
        best = self.game.max_utility() if is_cooperative(self.game) else 0.0
        first = self.state.returns()[0]
        return bool(first >= best if is_cooperative(self.game) else first > best)

    @classmethod
    def roles_of(cls, game: str = "kuhn_poker", **settings: Any) -> tuple[str, ...]:
        return tuple(map(role, range(load_game(game).num_players())))

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        """Return a thousand deals; a task has nothing but the seed of its chance moves."""
        return GeneratedTasks(1000, lambda index: {"deal": f"{split}-{index}"}, split)

    @classmethod
    def choices(cls, game: str = "kuhn_poker", **settings: Any) -> Sequence[Choice]:
        return [
            Choice(seen(state, player), answers(state, player)) for state, player in list_decisions(load_game(game))
        ]

    @classmethod
    def figures(
        cls, probabilities: Sequence[Sequence[float]], game: str = "kuhn_poker", **settings: Any
    ) -> dict[str, float]:
        return exact_figures(load_game(game), probabilities)

    def _play_chance(self) -> None:
        """Make every move of chance until somebody acts, each keyed by its number."""
        while self.state.is_chance_node():
            outcomes, weights = zip(*self.state.chance_outcomes(), strict=True)
            generator = random_keys.generator("openspiel", self.task.data["deal"], self.luck)
            self.state.apply_action(generator.choices(outcomes, weights)[0])
            self.luck += 1

    def _move(self, player: int, answer: str) -> tuple[int, bool]:
        """Return an answer's move, and True if it is legal; if not, a move drawn by the state."""
        legal = self.state.legal_actions(player)
        words = answers(self.state, player)
        if answer.strip() in words:
            return legal[words.index(answer.strip())], True
        history = ",".join(map(str, self.state.history()))
        return random_keys.generator("openspiel", self.task.data["deal"], history, player).choice(legal), False

    def _reward(self, gains: Sequence[float], illegal: Mapping[str, float], acted: Sequence[str]) -> Reward:
        """Return the team's reward if all have one utility; otherwise each role's gain since it acted last. At the end
        of the game everybody is rewarded."""
        parts = {"legal": 1.0 - len(illegal) / len(acted)}
        if is_cooperative(self.game):
            return Reward(gains[0], {name: -cost for name, cost in illegal.items()}, parts)
        self.gains_since = {
            name: self.gains_since[name] + gain for name, gain in zip(self.gains_since, gains, strict=True)
        }
        rewarded = list(self.gains_since) if self.state.is_terminal() else acted
        local = {name: self.gains_since[name] - illegal.get(name, 0.0) for name in rewarded}
        self.gains_since = {name: 0.0 if name in rewarded else gain for name, gain in self.gains_since.items()}
        return Reward(local=local, parts=parts)


def role(player: int) -> str:
    return f"{PREFIX}{player}"


def acting(state: Any) -> list[int]:
    """Return the players who act: one in its turn, or all who have a move."""
    if not state.is_simultaneous_node():
        return [state.current_player()]
    return [player for player in range(state.num_players()) if state.legal_actions(player)]


def answers(state: Any, player: int) -> tuple[str, ...]:
    """Return the player's legal moves as texts, in the order of `legal_actions`."""
    words = [state.action_to_string(player, action).strip() for action in state.legal_actions(player)]
    return tuple(words if len(set(words)) == len(words) else map(str, state.legal_actions(player)))


def seen(state: Any, player: int) -> Observation:
    """Return the player's observation: its information and its moves."""
    text = f"{state.get_game().get_type().short_name}\n{information_of(state, player)}\n"
    moves = " ".join(answers(state, player))
    return Observation(role(player), (Message("user", f"{text}moves: {moves}"),))


# Exact figures of small games: expected value and exploitability. A decision is an information state of a player, and a
# policy is a probability for each of its legal moves. Games that are too large have no decisions and no figures.

# The states of a game that is played through; Leduc poker has 9,457.
MOST_STATES = 50_000
# What the best joint policy earns, where that is known.
OPTIMA = {"tiny_hanabi": 10.0, "matrix_coordination": 1.0}
# Moves by probability, for the state's own player.
Table = Mapping[str, Sequence[tuple[int, float]]]


def information_of(state: Any, player: int) -> str:
    """Return the player's information state as the game writes it, or its observation if it has none."""
    if state.get_game().get_type().provides_information_state_string:
        return str(state.information_state_string(player))
    return str(state.observation_string(player))


def is_cooperative(game: Any) -> bool:
    """Return True if all players always earn the same."""
    pyspiel = package("pyspiel", "openspiel")
    return bool(game.get_type().utility == pyspiel.GameType.Utility.IDENTICAL)


def list_decisions(game: Any) -> list[tuple[Any, int]]:
    """Return a state and player for every information state, in the order of play; none if the game is too large."""
    return _decisions(str(game))


@lru_cache
def _decisions(name: str) -> list[tuple[Any, int]]:
    game = package("pyspiel", "openspiel").load_game(name)
    decisions: dict[tuple[int, str], tuple[Any, int]] = {}
    for count, state in enumerate(_states(game.new_initial_state())):
        if count >= MOST_STATES:
            return []
        for player in acting(state):
            decisions.setdefault((player, information_of(state, player)), (state, player))
    return list(decisions.values())


def _states(state: Any) -> Iterator[Any]:
    """Yield every history in which somebody acts."""
    if state.is_terminal():
        return
    if not state.is_chance_node():
        yield state
    for _, following in _after(state, None):
        yield from _states(following)


def _after(state: Any, policy: Table | None) -> Iterator[tuple[float, Any]]:
    """Yield (probability, state) of what may follow; without a policy every probability of a player's move is 1."""
    if state.is_chance_node():
        yield from ((weight, state.child(action)) for action, weight in state.chance_outcomes())
    elif not state.is_simultaneous_node():
        yield from ((weight, state.child(move)) for move, weight in _moves(state, state.current_player(), policy))
    else:
        everybody = [_moves(state, player, policy) or [(0, 1.0)] for player in range(state.num_players())]
        for joint in itertools.product(*everybody):
            following = state.clone()
            following.apply_actions([move for move, _ in joint])
            yield prod(weight for _, weight in joint), following


def _moves(state: Any, player: int, policy: Table | None) -> Sequence[tuple[int, float]]:
    legal = state.legal_actions(player)
    return policy[information_of(state, player)] if policy is not None and legal else [(move, 1.0) for move in legal]


def values(game: Any, policy: Table) -> list[float]:
    """Return the expected return of every player."""

    def value(state: Any) -> list[float]:
        if state.is_terminal():
            return list(state.returns())
        parts = [(weight, value(following)) for weight, following in _after(state, policy) if weight > 0.0]
        return [sum(weight * part[player] for weight, part in parts) for player in range(game.num_players())]

    return value(game.new_initial_state())


def exact_figures(game: Any, probabilities: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the expected value, with the optimum of a cooperative game if it is known.

    For two players who take turns and whose gains sum to a constant, there is the exploitability as well, computed by
    OpenSpiel: the average gain of best responses, 0 in an equilibrium.
    """
    pyspiel = package("pyspiel", "openspiel")
    policy = {
        information_of(state, player): list(zip(state.legal_actions(player), chances, strict=True))
        for (state, player), chances in zip(list_decisions(game), probabilities, strict=True)
    }
    expected, kind = values(game, policy), game.get_type()
    if is_cooperative(game):
        optimum = {"optimum": OPTIMA[kind.short_name]} if kind.short_name in OPTIMA else {}
        return {"value": expected[0]} | optimum
    result = {f"value_player_{player}": value for player, value in enumerate(expected)}
    utility, turns = pyspiel.GameType.Utility, pyspiel.GameType.Dynamics.SEQUENTIAL
    zero_sum = kind.utility in (utility.ZERO_SUM, utility.CONSTANT_SUM)
    if zero_sum and kind.dynamics == turns and game.num_players() == 2 and kind.provides_information_state_string:
        result["exploitability"] = pyspiel.exploitability(game, policy)
    return result
