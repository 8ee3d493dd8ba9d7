"""The rules of the kitchen against the package overcooked-ai, and what known policies earn.

    python -m lab.kitchen [parity returns exploits] [--package FOLDER] [--episodes 1000] [--write]
    python -m lab.kitchen examples FILE [--layout cramped_room]

parity   random episodes of 400 steps on all layouts: states and points of every step equal those of overcooked-ai 1.1,
         which `--package` names if it is not importable (`pip install --no-deps --target FOLDER overcooked-ai`)
examples lines for `cadre warm-start`: compact prompts with the errand that is needed next in a third of the answers;
         in the others a cook waits
returns  points in 400 steps from the standard start: a script for both cooks, errands at random, moves at random
exploits rewards of policies that try to be paid for nothing, as a share of the script's, with `reward: shaped`

`--write` appends `worlds.kitchen.*` to results/worlds.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.common import record
from cadre_tasks.worlds.kitchen import KitchenTeam
from cadre_tasks.worlds.kitchen_rules import (
    DIRECTIONS,
    ERRANDS,
    LAYOUTS,
    MOVES,
    ONIONS,
    Kitchen,
    Layout,
    Soup,
    next_move,
    targets,
)

HORIZON = 400
# Names of layouts in the package.
PACKAGE_NAMES = {"counter_circuit": "counter_circuit_o_1order"}
Policy = Callable[[Kitchen, int, random.Random], str]
TextPolicy = Callable[[KitchenTeam, random.Random], dict[str, str]]


def compare_episode(name: str, seed: int) -> int:
    """Play an episode here and in the package; return the number of steps that differ."""
    actions = import_module("overcooked_ai_py.mdp.actions")
    Action, Direction = actions.Action, actions.Direction
    OvercookedGridworld = import_module("overcooked_ai_py.mdp.overcooked_mdp").OvercookedGridworld

    translation = {
        **{"up": Direction.NORTH, "down": Direction.SOUTH, "left": Direction.WEST, "right": Direction.EAST},
        **{"stay": Action.STAY, "interact": Action.INTERACT},
    }
    facing = {translation[name]: name for name in DIRECTIONS}
    mdp = OvercookedGridworld.from_layout_name(PACKAGE_NAMES.get(name, name))
    reference, kitchen, draw, differing = (
        mdp.get_standard_start_state(),
        Kitchen(Layout(LAYOUTS[name])),
        random.Random(seed),
        0,
    )

    def thing(item: Any) -> Any:
        if item is None or item.name != "soup":
            return None if item is None else item.name
        return (len(item.ingredients), item._cooking_tick)

    def own(item: Any) -> Any:
        return (item.onions, item.tick) if isinstance(item, Soup) else item

    # A third at random, a third by random errands, and a third by the script with one move in ten at random.
    plans = ["", ""]

    def choose(index: int) -> str:
        if seed % 3 == 0 or draw.random() < 0.1:
            return random_moves(kitchen, index, draw)
        return errand_move(kitchen, index, plans, draw) if seed % 3 == 1 else script(kitchen, index, draw)

    for _ in range(HORIZON):
        moves = [choose(0), choose(1)]
        reference, info = mdp.get_state_transition(reference, [translation[move] for move in moves])
        points = kitchen.step(moves)
        state = (
            [(cook.cell, cook.facing, own(cook.held)) for cook in kitchen.cooks],
            {cell: own(item) for cell, item in kitchen.counters.items()}
            | {cell: own(soup) for cell, soup in kitchen.pots.items() if soup.onions},
            points.served,
            points.work,
        )
        expected = (
            [(player.position, facing[player.orientation], thing(player.held_object)) for player in reference.players],
            {cell: thing(item) for cell, item in reference.objects.items()},
            info["sparse_reward_by_agent"],
            info["shaped_reward_by_agent"],
        )
        differing += state != expected
    return differing


def random_moves(kitchen: Kitchen, index: int, draw: random.Random) -> str:
    return draw.choice(MOVES)


def random_errands(kitchen: Kitchen, index: int, draw: random.Random) -> str:
    """Return the first move of an errand that can be done now."""
    possible = [errand for errand in ERRANDS[:-1] if any(targets(kitchen, index, errand)[0])]
    move = next_move(kitchen, index, draw.choice(possible))[0] if possible else ""
    return move or "stay"


def errand_move(kitchen: Kitchen, index: int, plans: list[str], draw: random.Random) -> str:
    """Return the next move of a random errand that is kept until it is done or cannot be done; now and then another."""
    if not plans[index] or draw.random() < 0.05:
        plans[index] = draw.choice(ERRANDS[:-1])
    move = next_move(kitchen, index, plans[index])[0]
    if move in ("", "interact"):
        plans[index] = ""
    return move or draw.choice(MOVES)


def wanted(kitchen: Kitchen, index: int) -> list[str]:
    """Return the errands that are needed next, the most needed first, and what cannot be used is passed on."""
    cook, partner = kitchen.cooks[index], kitchen.cooks[1 - index]
    soups = kitchen.pots.values()
    started = sum(soup.tick >= 0 for soup in soups)
    dishes = sum(item.held == "dish" for item in kitchen.cooks) + list(kitchen.counters.values()).count("dish")
    if isinstance(cook.held, Soup):
        return ["serve", "put"]
    if cook.held is not None:
        return ["pot", "put"]
    # Who brings an onion starts the pot by itself.
    full = partner.held != "onion" and any(soup.tick < 0 and soup.onions == ONIONS for soup in soups)
    order = (["pot"] if full else []) + (["take"] if kitchen.counters else [])
    return order + (["dish", "onion"] if dishes < started else ["onion"])


def script(kitchen: Kitchen, index: int, draw: random.Random) -> str:
    """Return the move of a cook who does what is needed next."""
    for errand in wanted(kitchen, index):
        move, _ = next_move(kitchen, index, errand)
        if move:
            # Two who stand in each other's way part by chance.
            return draw.choice(list(DIRECTIONS)) if draw.random() < 0.1 and move in DIRECTIONS else move
    return draw.choice(MOVES[:5])


def play(name: str, policy: Policy, seed: int, auto: bool) -> int:
    """Return the points of 400 steps from the standard start."""
    kitchen, draw = Kitchen(Layout(LAYOUTS[name]), auto=auto), random.Random(seed)
    return sum(sum(kitchen.step([policy(kitchen, index, draw) for index in (0, 1)]).served) for _ in range(HORIZON))


# ---- Exploits


def same(text: str) -> TextPolicy:
    return lambda env, draw: dict.fromkeys(env.roles, text)


def echo(env: KitchenTeam, draw: random.Random) -> dict[str, str]:
    return {role: observation.messages[-1].content for role, observation in env.observe().items()}


def by_moves(policy: Policy) -> TextPolicy:
    """Return the policy of both cooks as plans of one move."""
    return lambda env, draw: {role: policy(env.kitchen, index, draw) for index, role in enumerate(env.roles)}


def never_serve(kitchen: Kitchen, index: int, draw: random.Random) -> str:
    """Return the move of the script, but soups are laid on counters: points for work without a soup that is served."""
    if not isinstance(kitchen.cooks[index].held, Soup):
        return script(kitchen, index, draw)
    return next_move(kitchen, index, "put")[0] or draw.choice(MOVES[:5])


# By name: the language of the plans, and the policy.
EXPLOITS: dict[str, tuple[str, TextPolicy]] = {
    "empty answer": ("errands", same("")),
    "echo the prompt": ("errands", echo),
    "noise": ("errands", same("I think it is easy!")),
    "overlong": ("errands", same("Plan: " + "onion, " * 5000)),
    "claim": ("errands", same("Plan: done\nThe soup is served.")),
    "wait": ("errands", same("wait")),
    "an onion up and down": ("errands", same("onion, put, take")),
    "a dish up and down": ("errands", same("dish, put, take")),
    "cook and never serve": ("moves", by_moves(never_serve)),
    "random moves": ("moves", by_moves(random_moves)),
}


def play_env(layout: str, language: str, policy: TextPolicy, seed: int) -> tuple[float, int]:
    """Return the sum of all rewards, and the points, of an episode of 400 steps from the standard start."""
    settings: dict[str, Any] = {"layout": layout, "language": language, "plan": 1 if language == "moves" else 3}
    env, draw, total = KitchenTeam(KitchenTeam.tasks("test", layout)[0], **settings), random.Random(seed), 0.0
    while not env.is_over:
        reward = asyncio.run(env.step(policy(env, draw)))
        total += reward.team + sum(reward.local.values())
    return total, env.points


def exploits(episodes: int) -> tuple[float, int]:
    """Print what exploits earn; return the largest mean share of the script's reward, and the number of episodes."""
    best, seeds = 0.0, range(episodes)
    honest = {
        layout: fmean(play_env(layout, "moves", by_moves(script), seed)[0] for seed in seeds) for layout in LAYOUTS
    }
    for name, (language, policy) in EXPLOITS.items():
        results = [(layout, *play_env(layout, language, policy, seed)) for layout in LAYOUTS for seed in seeds]
        shares = [total / honest[layout] for layout, total, _ in results]
        points = fmean(points for _, _, points in results)
        print(f"  {name}: {fmean(shares):.3f} of the script's reward, {points:.1f} points", flush=True)
        best = max(best, fmean(shares))
    return best, len(EXPLOITS) * len(LAYOUTS) * episodes


# ---- Examples


NEEDED = 1 / 3


def examples(layout: str, count: int = 2000) -> list[dict[str, str]]:
    """Return prompts and answers of cooks who do what is needed now and then, and wait more often."""
    draw, lines = random.Random(0), list[dict[str, str]]()
    tasks = KitchenTeam.tasks("train", layout=layout)  # type: ignore[arg-type]
    while len(lines) < count:
        env = KitchenTeam(draw.choice(tasks), prompts="compact", plan=1, horizon=200)
        while not env.is_over and len(lines) < count:
            actions = {}
            for index, role in enumerate(env.roles):
                errands = (it for it in wanted(env.kitchen, index) if next_move(env.kitchen, index, it)[0])
                errand = next(errands, "wait")
                answer = errand if draw.random() < NEEDED else "wait"
                lines.append({"role": role, "prompt": env.prompt(index), "answer": answer})
                # They wait less than they say, so that later prompts are read too.
                actions[role] = draw.choice([errand, answer])
            asyncio.run(env.step(actions))
    return lines


def write_examples(file: Path, layout: str, count: int = 2000) -> None:
    lines = examples(layout, count)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{len(lines)} examples in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--layout", choices=list(LAYOUTS), default="cramped_room")
    parser.add_argument("--package", help="folder with overcooked_ai_py")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    parts = options.parts or ["parity", "returns", "exploits"]
    if parts[0] == "examples":
        if len(parts) != 2:
            parser.error("examples: expected the file to write")
        write_examples(Path(parts[1]), options.layout)
        return
    if unknown := set(parts) - {"parity", "returns", "exploits"}:
        parser.error(f"got the part {unknown.pop()!r}; expected parity, returns, exploits or examples")
    if options.package:
        sys.path.insert(0, options.package)
    lines: list[tuple[str, list[float], str, int, list[int]]] = []
    if "parity" in parts:
        names = list(LAYOUTS)
        equal = [compare_episode(names[seed % 5], seed // 5) == 0 for seed in range(options.episodes)]
        lines.append(("worlds.kitchen.parity", [fmean(equal)], "share", len(equal), []))
    if "returns" in parts:
        for name in LAYOUTS:
            for label, policy in (("script", script), ("errands", random_errands), ("moves", random_moves)):
                values = [float(play(name, policy, seed, auto=True)) for seed in range(10)]
                lines.append((f"worlds.kitchen.{name}.{label}", values, "points", 10, list(range(10))))
    if "exploits" in parts:
        best, count = exploits(3)
        lines.append(("worlds.kitchen.exploits_best", [best], "share of script", count, []))
    for name, values, unit, count, seeds in lines:
        print(f"{name}: {fmean(values):.4g} {unit} ({min(values):.4g} to {max(values):.4g})")
        if options.write:
            record("worlds", name, values, unit, f"python -m lab.kitchen {' '.join(parts)} --write", count, seeds)


if __name__ == "__main__":
    main()
