"""What needs no sampling: `python -m lab.offline pairs|textworld [--folder DIR] [--games N] [--write]`.

pairs      DPO on given pairs (env: preferences): two roles with a policy each prefer opposite sides by a word of the
           prompt, the embedded model `games`; held-out pairs in order before and after, and the loss, in three seeds
textworld  games of the test split, made in --folder, won by their walkthroughs with TextWorld's score at each command
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import cadre
from bench.common import record
from cadre_tasks.integrations.textworld import TextWorld


def rows(split: str) -> list[dict[str, str]]:
    sides = [("red", "Left", "Right"), ("green", "Right", "Left")]
    numbered = [(number, *sides[number // 4 % 2]) for number in range(400) if (number % 4 == 0) == (split == "test")]
    pairs = [("anna", number, word, one, other) for number, word, one, other in numbered]
    pairs += [("ben", number, word, other, one) for number, word, one, other in numbered]
    names = ("role", "prompt", "chosen", "rejected")
    return [dict(zip(names, (r, f"lamp {n} {w}\nmoves: Left Right", a, b), strict=True)) for r, n, w, a, b in pairs]


def pairs() -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {name: [] for name in ("before", "after", "loss_first", "loss_last")}
    team = {"policies": {"one": "games", "other": "games"}, "roles": {"anna": "one", "ben": "other"}}
    for seed in range(3):
        with tempfile.TemporaryDirectory() as folder:
            tasks, train = {split: rows(split) for split in ("train", "test")}, {"tasks_per_step": 16, "seed": seed}
            options = {"train": train, "learner": {"learning_rate": 1e-3}, "evaluate": {"tasks": 200}, "quiet": True}
            dpo, run = {"name": "ma_dpo", "k": 2}, Path(folder) / "run"
            trained = cadre.train(
                env="preferences", tasks=tasks, team=team, algorithm=dpo, steps=40, run=run, **options
            )
            successes, losses = trained.evaluations(), [line["preference/loss"] for line in trained.metrics()]
            values = (successes[0]["success"], successes[-1]["success"], losses[0], losses[-1])
            for name, value in zip(figures, values, strict=True):
                figures[name].append(value)
            trained.close()
    return figures


def textworld(folder: str, games: int) -> dict[str, list[float]]:
    import textworld as package

    async def play(env: TextWorld) -> bool:
        name = f"3-4-4-{env.task.data['seed']}.z8"
        game = package.start(str(Path(folder) / name), package.EnvInfos(score=True, won=True))
        game.reset()
        equal = True
        for command in env.game.walkthrough:
            (state, score, _), _ = game.step(command), await env.step({"player": command})
            equal &= (env.score, env.won) == (score, state["won"])
        return equal and env.success

    tasks = list(TextWorld.tasks("test", count=10 * games))
    return {"won_and_equal": [float(sum(asyncio.run(play(TextWorld(task, folder=folder))) for task in tasks))]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["pairs", "textworld"])
    parser.add_argument("--folder", default="build/textworld")
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    is_pairs = options.part == "pairs"
    figures = pairs() if is_pairs else textworld(options.folder, options.games)
    for name, values in figures.items():
        print(f"{options.part}.{name}: {values}")
        if options.write:
            count, command = (200, "pairs") if is_pairs else (options.games, f"textworld --games {options.games}")
            unit = "games" if not is_pairs else "nats" if "loss" in name else "share"
            record(
                "offline",
                f"{options.part}.{name}",
                values,
                unit,
                f"python -m lab.offline {command}",
                count,
                range(3 * is_pairs),
            )


if __name__ == "__main__":
    main()
