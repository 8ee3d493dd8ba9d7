"""The exact figures of a small game of OpenSpiel under given policies: expected value, and exploitability.

A decision is an information state of a player; `decisions` lists them, and a policy is a probability for each of its
legal moves in that order. Games that are too large to be played through have no decisions and no figures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from cadre.integrations import package

# The states of a game that is played through; Leduc poker has 9,457.
MOST_STATES = 50_000
# What the best joint policy earns, where that is known.
OPTIMA = {"tiny_hanabi": 10.0, "matrix_coordination": 1.0}
# Moves by probability, for the state's own player.
Table = Mapping[str, Sequence[tuple[int, float]]]


def known_to(state: Any, player: int) -> str:
    """What the player knows, as the game writes it: its information state, or its observation where it has none."""
    if state.get_game().get_type().provides_information_state_string:
        return str(state.information_state_string(player))
    return str(state.observation_string(player))


def cooperative(game: Any) -> bool:
    """Whether all players always earn the same."""
    pyspiel = package("pyspiel", "openspiel")
    return bool(game.get_type().utility == pyspiel.GameType.Utility.IDENTICAL)


def decisions(game: Any) -> list[tuple[Any, int]]:
    """A state and its player for every information state, in the order in which play comes to them; none where the
    game is too large."""
    return _decisions(str(game))


@lru_cache
def _decisions(name: str) -> list[tuple[Any, int]]:
    game = package("pyspiel", "openspiel").load_game(name)
    found: dict[tuple[int, str], tuple[Any, int]] = {}
    for count, state in enumerate(_states(game.new_initial_state())):
        if count >= MOST_STATES:
            return []
        for player in _players(state):
            found.setdefault((player, known_to(state, player)), (state, player))
    return list(found.values())


def _states(state: Any) -> Iterator[Any]:
    """Every history in which somebody acts."""
    if state.is_terminal():
        return
    if not state.is_chance_node():
        yield state
    for _, following in _after(state, None):
        yield from _states(following)


def _players(state: Any) -> list[int]:
    if not state.is_simultaneous_node():
        return [state.current_player()]
    return [player for player in range(state.num_players()) if state.legal_actions(player)]


def _after(state: Any, policy: Table | None) -> Iterator[tuple[float, Any]]:
    """(probability, state) of what may follow; without a policy of players every probability of theirs is 1."""
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
    return policy[known_to(state, player)] if policy is not None and legal else [(move, 1.0) for move in legal]


def values(game: Any, policy: Table) -> list[float]:
    """The expected return of every player."""

    def value(state: Any) -> list[float]:
        if state.is_terminal():
            return list(state.returns())
        parts = [(weight, value(following)) for weight, following in _after(state, policy) if weight > 0.0]
        return [sum(weight * part[player] for weight, part in parts) for player in range(game.num_players())]

    return value(game.new_initial_state())


def figures(game: Any, probabilities: Sequence[Sequence[float]]) -> dict[str, float]:
    """The expected value, with the optimum where all earn the same and it is known; for two players of turns whose
    gains sum to a constant the exploitability, which OpenSpiel computes: what best responses gain on average, 0 in an
    equilibrium."""
    pyspiel = package("pyspiel", "openspiel")
    policy = {
        known_to(state, player): list(zip(state.legal_actions(player), chances, strict=True))
        for (state, player), chances in zip(decisions(game), probabilities, strict=True)
    }
    expected, kind = values(game, policy), game.get_type()
    if cooperative(game):
        known = {"optimum": OPTIMA[kind.short_name]} if kind.short_name in OPTIMA else {}
        return {"value": expected[0]} | known
    found = {f"value_player_{player}": value for player, value in enumerate(expected)}
    utility, turns = pyspiel.GameType.Utility, pyspiel.GameType.Dynamics.SEQUENTIAL
    zero_sum = kind.utility in (utility.ZERO_SUM, utility.CONSTANT_SUM)
    if zero_sum and kind.dynamics == turns and game.num_players() == 2 and kind.provides_information_state_string:
        found["exploitability"] = pyspiel.exploitability(game, policy)
    return found
