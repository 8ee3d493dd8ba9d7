"""What needs no sampling: `python -m lab.offline pairs|textworld [--games N]`.

pairs      examples/preferences.yaml in three seeds: held-out pairs in order before and after, first and last loss
textworld  games of the test split, won by their walkthroughs with TextWorld's score at each command
"""

import argparse
import asyncio
import importlib
import tempfile

import cadre
from bench.common import record
from cadre.types import Task
from cadre_tasks.integrations.textworld import TextWorld, make_game


def pairs(seed: int) -> tuple[float, ...]:
    with tempfile.TemporaryDirectory() as folder:
        trained = cadre.train("examples/preferences.yaml", run=f"{folder}/run", train={"seed": seed}, quiet=True)
        success, losses = trained.evaluations(), [line["preference/loss"] for line in trained.metrics()]
        trained.close()
    return success[0]["success"], success[-1]["success"], losses[0], losses[-1]


async def play(task: Task) -> bool:
    env, package, equal = TextWorld(task), importlib.import_module("textworld"), True
    game = package.start(str(make_game("", task.data["seed"], 3, 4, 4)), package.EnvInfos(score=True, won=True))
    game.reset()
    for command in env.game.walkthrough:
        (state, score, _), _ = game.step(command), await env.step({"player": command})
        equal &= (env.score, env.won) == (score, state["won"])
    return equal and env.success


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("part", choices=["pairs", "textworld"])
parser.add_argument("--games", type=int, default=200, help="or the number of held-out pairs, which are 200")
if __name__ == "__main__":
    options = parser.parse_args()
    if options.part == "pairs":
        values = zip(*map(pairs, range(3)), strict=True)
        figures = dict(zip(("before", "after", "loss_first", "loss_last"), values, strict=True))
    else:
        tasks = TextWorld.tasks("test", count=10 * options.games)
        figures = {"won_and_equal": [sum(asyncio.run(play(task)) for task in tasks)]}
    command = f"python -m lab.offline {options.part} --games {options.games}"
    for name, numbers in figures.items():
        unit = "nats" if "loss" in name else "share" if options.part == "pairs" else "games"
        record("offline", f"{options.part}.{name}", numbers, unit, command, options.games, range(len(numbers)))
