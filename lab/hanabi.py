"""Scores of fixed policies in two-player Hanabi: random legal moves, a simple convention, and exploits.

    python -m lab.hanabi [scores exploits] [--games 1000] [--write]

scores    the mean score of random legal moves and of the convention, for both players
exploits  rewards of players who exploit the reward, as a share of the convention's

The convention, without memory beyond the last moves that the prompt has too: a hint says that the newest card it points
out can be played. A player plays a card that it knows to fit or that the last hint pointed out; hints so, if the
partner has a card that fits; else discards a card that it knows to be useless, or the oldest one of which no hint told
anything. `--write` appends `worlds.hanabi.*` to results/worlds.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean, stdev

from bench.common import record
from cadre_tasks.games.hanabi import COLORS, COPIES, Card, Hanabi, Size, Table

Policy = Callable[[Hanabi, random.Random], str]


def random_move(env: Hanabi, draw: random.Random) -> str:
    return draw.choice(list(env.words()))


def by_convention(env: Hanabi, draw: random.Random) -> str:
    """Return the move of the convention, from what the player's prompt says."""
    player = env.state.current_player()
    table, words = env.table(player), env.words()
    visible = [*table.discards, *(card.face for card in table.partner)]
    visible += [f"{color}{rank}" for color, height in table.fireworks.items() for rank in range(1, height + 1)]
    certain = [n for n, card in enumerate(table.own, 1) if all(fits(table, face) for face in faces(card, visible))]
    if certain:
        return f"play {certain[-1]}"
    last = env.moves[-1][1] if env.moves and env.moves[-1][0] != player else ""
    if pointed := re.findall(r"\d", last.partition(" for card")[2]):
        newest = int(pointed[-1])
        if any(fits(table, face) for face in faces(table.own[newest - 1], visible)):
            return f"play {newest}"
    hints = [word for word in words if word.startswith("hint")]
    targets = {word: touched(table.partner, word)[-1] for word in hints}
    useful = [word for word in hints if fits(table, table.partner[targets[word]].face)]
    if useful:
        return min(useful, key=lambda word: (len(touched(table.partner, word)), word))
    useless = [n for n, card in enumerate(table.own, 1) if all(is_dead(table, face) for face in faces(card, visible))]
    if useless and f"discard {useless[0]}" in words:
        return f"discard {useless[0]}"
    untold = [n for n, card in enumerate(table.own, 1) if not card.color and not card.rank]
    if "discard 1" in words:
        return f"discard {(untold or range(1, len(table.own) + 1))[0]}"
    # All tokens are there, so that nothing can be discarded: the hint whose newest card the partner knows not to fit.
    return next((word for word in hints if not misleads(table, word)), hints[0] if hints else next(iter(words)))


def fits(table: Table, face: str) -> bool:
    return table.fireworks[face[0]] + 1 == int(face[1])


def is_dead(table: Table, face: str) -> bool:
    """Return True if a card can never be played: it lies there, or all copies of one before it are discarded."""
    height = table.fireworks[face[0]]
    missing = (rank for rank in range(height + 1, int(face[1])))
    return int(face[1]) <= height or any(table.discards.count(f"{face[0]}{rank}") == COPIES[rank] for rank in missing)


def faces(card: Card, visible: Sequence[str] = ()) -> list[str]:
    """Return what a card may be, by the hints and by the copies that are seen elsewhere."""
    possible = [f"{color}{rank}" for color, rank in product(card.colors, card.ranks)]
    return [face for face in possible if list(visible).count(face) < COPIES[int(face[1])]] or possible


def touched(hand: Sequence[Card], word: str) -> list[int]:
    named = word.split()[1]
    return [index for index, card in enumerate(hand) if named in (COLORS[card.face[0]], card.face[1])]


def misleads(table: Table, word: str) -> bool:
    """Return True if the partner would play the newest card of a hint, by what it then knows of it."""
    newest, named = table.partner[touched(table.partner, word)[-1]], word.split()[1]
    colors = newest.face[0] if named in COLORS.values() else newest.colors
    ranks = (int(newest.face[1]),) if named.isdigit() else newest.ranks
    return any(fits(table, f"{color}{rank}") for color, rank in product(colors, ranks))


POLICIES: dict[str, Policy] = {"random": random_move, "convention": by_convention}


def always(text: str) -> Policy:
    return lambda env, draw: text


def echo(env: Hanabi, draw: random.Random) -> str:
    (observation,) = env.observe().values()
    return observation.messages[-1].content


def first_of(kinds: Sequence[str]) -> Policy:
    """Return the policy of the first legal move of these kinds, in their order."""
    return lambda env, draw: next(word for kind in kinds for word in env.words() if word.startswith(kind))


EXPLOITS: dict[str, Policy] = {
    "empty answer": always(""),
    "echo the prompt": echo,
    "noise": always("I think it is easy!"),
    "overlong": always("play 1 " * 5000),
    "claim": always("Move: done, 10 points"),
    "play the oldest": first_of(["play"]),
    "never play": first_of(["hint", "discard", "play"]),
    "discard on": first_of(["discard", "hint", "play"]),
    "random moves": random_move,
}


def play(size: Size, policy: Policy, games: int) -> list[int]:
    """Return the scores of games of the test split."""
    return [score for score, _ in play_games(size, policy, games)]


def play_games(size: Size, policy: Policy, games: int) -> list[tuple[int, float]]:
    """Return the score and the sum of all rewards of games of the test split."""

    async def one(index: int) -> tuple[int, float]:
        env, draw, total = Hanabi(Hanabi.tasks("test", size)[index], size), random.Random(index), 0.0
        while observed := env.observe():
            reward = await env.step(dict.fromkeys(observed, policy(env, draw)))
            total += reward.team + sum(reward.local.values())
        return env.score, total

    async def every() -> list[tuple[int, float]]:
        return [await one(index) for index in range(games)]

    return asyncio.run(every())


def exploits(games: int) -> tuple[float, int]:
    """Print what exploits earn in both sizes; return the largest mean share of the convention's reward, and the number
    of games."""
    best, sizes = 0.0, ("small", "full")
    honest = {size: fmean(total for _, total in play_games(size, by_convention, games)) for size in sizes}
    for name, policy in EXPLOITS.items():
        shares = [fmean(total for _, total in play_games(size, policy, games)) / honest[size] for size in sizes]
        print(f"  {name}: {', '.join(f'{share:.3f}' for share in shares)} of the convention's reward", flush=True)
        best = max(best, *shares)
    return best, len(EXPLOITS) * len(sizes) * games


def scores(games: int, write: bool) -> None:
    """Print the mean scores of known policies."""
    for size, (name, policy) in product(("small", "full"), POLICIES.items()):
        scored = play(size, policy, games)
        error = stdev(scored) / len(scored) ** 0.5
        print(
            f"{size:6} {name:11} {fmean(scored):6.2f} +- {error:.2f}  from {min(scored)} to {max(scored)}", flush=True
        )
        if write:
            command = " ".join(["python -m lab.hanabi", *sys.argv[1:]])
            record("worlds", f"worlds.hanabi.{size}.{name}", [round(fmean(scored), 2)], "points", command, len(scored))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    parts = options.parts or ["scores", "exploits"]
    if unknown := set(parts) - {"scores", "exploits"}:
        parser.error(f"got the part {unknown.pop()!r}; expected scores or exploits")
    if "scores" in parts:
        scores(options.games, options.write)
    if "exploits" in parts:
        best, games = exploits(options.games)
        print(f"worlds.hanabi.exploits_best: {best:.4g} of the convention's reward, in {games:,} games")
        if options.write:
            command = " ".join(["python -m lab.hanabi", *sys.argv[1:]])
            record("worlds", "worlds.hanabi.exploits_best", [best], "share of convention", command, games)


if __name__ == "__main__":
    main()
