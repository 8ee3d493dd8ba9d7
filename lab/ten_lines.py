"""A team as a function: `python -m lab.ten_lines step|learn|prompts [--model DIR] [--seeds N] [--write]`.

step   the time of a training step of a game as a function over that as a class, in pairs: two roles that act five times
       in turn with prompts of the length of plan-path's, 8 completions, 16 tasks, the embedded model
learn  a task of ten lines with a real model, an adapter per role: anna and ben meet in a corridor, and pass if one
       keeps left and the other right; held-out success before and after, minutes for each seed
prompts  the same task with the weights as they are, and the prompts that `cadre optimise-prompts` finds

Figures go to results/ten_lines.jsonl, those of prompts to results/prove.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

import cadre
from bench.common import ROOT, record
from cadre import Env, Message, Observation, Reward, Task
from cadre.envs.rows import read_tasks
from cadre.file_limits import read_json
from cadre.statistics import rate_interval
from cadre_analysis.compare import difference_interval, table_interval

TURNS, PAIRS, STEPS = 5, 5, 4
GRID = "\n".join("." * 10 for _ in range(10))
ROWS = [{"number": number} for number in range(200)]
console = Console(soft_wrap=True, highlight=False)


def prompt(number: int, turn: int, last: str) -> str:
    return f"grid {number}\n{GRID}\nturn {turn}\nlast {last}"


def value(text: str) -> float:
    return len(set(text)) / 16


async def relay(row: Mapping[str, Any], tool: Any, planner: Any) -> Reward:
    last, total = "", 0.0
    for turn in range(TURNS):
        role = (tool, planner)[turn % 2]
        last = await role(prompt(row["number"], turn, last))
        role.reward(value(last))
        total += value(last)
    return Reward(success=total > TURNS / 2)


class Relay(Env):
    """The same as a class."""

    roles = ("tool", "planner")
    rewards_absent = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.texts: tuple[str, ...] = ()

    @classmethod
    def tasks(cls, split: Any) -> Sequence[Task]:
        return read_tasks(split, ROWS)

    def observe(self) -> dict[str, Observation]:
        turn = len(self.texts)
        if turn == TURNS:
            return {}
        text = prompt(self.task.data["number"], turn, self.texts[-1] if turn else "")
        return {self.roles[turn % 2]: Observation(self.roles[turn % 2], (Message("user", text),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        self.texts = (*self.texts, text)
        return Reward(local={role: value(text)})

    @property
    def success(self) -> bool:
        return len(self.texts) == TURNS and sum(map(value, self.texts)) > TURNS / 2


def step(write: bool) -> None:
    ratios = []
    options: dict[str, Any] = {"model": "seed", "algorithm": "at_grpo", "k": 8, "steps": STEPS, "quiet": True}
    for number in range(PAIRS):
        seconds: dict[Any, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            for form in (relay, Relay) if number % 2 else (Relay, relay):
                rows = {"tasks": ROWS} if form is relay else {}
                settings = {"train": {"seed": number}, "evaluate": {"tasks": 0}, "sampling": {"max_tokens": 48}}
                trained = cadre.train(
                    form, run=Path(folder) / ("class" if form is Relay else "function"), **options, **rows, **settings
                )
                steps = [m["time/wait_s"] + m["time/learn_s"] for m in trained.metrics()]
                seconds[form] = median(steps[1:])
                trained.close()
        ratios.append(seconds[relay] / seconds[Relay])
        console.print(f"function {seconds[relay]:.3f} s, class {seconds[Relay]:.3f} s")
    keep("function.step_ratio", ratios, "ratio", "step", write)


def side(text: str) -> str:
    """Return the one side that a text names, "" if it names none or both."""
    named = {word for word in ("left", "right") if word in text.lower()}
    return named.pop() if len(named) == 1 else ""


async def corridor(row: Mapping[str, Any], anna: Any, ben: Any) -> Reward:
    met = []
    for meeting in range(2):
        place = f"Corridor {row['number']}, meeting {meeting + 1}."
        text = f"{place} Which side do you keep to? Answer with one word: Left or Right."
        sides = [side(answer) for answer in await asyncio.gather(anna(text), ben(text))]
        met.append(sorted(sides) == ["left", "right"])
        for role, named in zip((anna, ben), sides, strict=True):
            role.reward(met[-1] + 0.2 * bool(named))
    return Reward(success=all(met))


def learn(model: str, seeds: int, write: bool) -> None:
    before, after, played = [], [], 0
    adapter = {"model": model, "dtype": "bfloat16", "lora": {"rank": 8, "alpha": 16}}
    team = {"policies": {"one": adapter, "other": adapter}, "roles": {"anna": "one", "ben": "other"}}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            trained = cadre.train(
                corridor,
                tasks=ROWS,
                held_out=0.25,
                team=team,
                algorithm="at_grpo",
                k=8,
                steps=40,
                run=Path(folder) / "run",
                train={"seed": seed, "tasks_per_step": 4, "stop_at_success": 1.0},
                sampling={"max_tokens": 8},
                learner={"learning_rate": 3e-4},
                evaluate={"tasks": 40, "every": 5},
            )
            reports = trained.evaluations()
            before.append(reports[0]["success"])
            after.append(reports[-1]["success"])
            played += reports[-1]["tasks"]
            trained.close()
    for name, rates in (("before", before), ("after", after)):
        solved = round(sum(rates) / len(rates) * played)
        interval = rate_interval([1.0] * solved + [0.0] * (played - solved))
        console.print(f"{name}: {rates}, of all {played} episodes {interval[1]:.1%} to {interval[2]:.1%}")
        keep(f"ten_lines.{name}", interval, "share", "learn --model DIR", write, played, seeds)


def prompts(model: str, seeds: int, tokens: int, write: bool) -> None:
    tables: dict[str, list[list[float]]] = {"before": [], "after": []}
    settings: dict[str, Any] = {"tasks": ROWS, "held_out": 0.25, "algorithm": "at_grpo", "sampling": {"max_tokens": 8}}
    for seed in range(seeds):
        run = ROOT / "runs" / "gepa" / f"{Path(model).name}-{tokens}-{seed}"
        size: dict[str, Any] = {"tokens": tokens, "training_tasks": 24, "held_out_tasks": 40, "seed": seed}
        found = cadre.optimise_prompts(corridor, run=run, model=model, **settings, **size)
        console.print("\n".join([*found.lines(), str(found.prompts)]), markup=False)
        for name, table in tables.items():
            file = run / f"{name}.json"  # there is no other where nothing better was found
            report = read_json(file if file.exists() else run / "before.json")
            table.append([success for success, _ in report["outcomes"].values()])
    before, after = (np.array(table) for table in tables.values())
    gain = difference_interval(after, before, np.random.default_rng(0), True, True)
    intervals = [table_interval(table, np.random.default_rng(0)) for table in (before, after)]
    for name, interval in zip(("before", "after", "gain"), [*intervals, gain], strict=True):
        console.print(f"gepa.{name}: {interval}")
        if write:
            command = f"python -m lab.ten_lines prompts --model DIR --seeds {seeds} --tokens {tokens} --write"
            record("prove", f"gepa.{name}", interval, "share", command, after.shape[1], range(seeds))


def keep(
    name: str, values: Sequence[float], unit: str, part: str, write: bool, count: int = PAIRS, seeds: int = PAIRS
) -> None:
    console.print(f"{name}: {median(values):.4g} {unit} ({min(values):.4g} to {max(values):.4g}, n={count})")
    if write:
        record("ten_lines", name, values, unit, f"python -m lab.ten_lines {part}", count, range(seeds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["step", "learn", "prompts"])
    parser.add_argument("--model", default="games", help="a folder of a model, for learn and prompts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=20_000, help="for prompts")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.part == "step":
        step(options.write)
    elif options.part == "prompts":
        prompts(options.model, options.seeds, options.tokens, options.write)
    else:
        learn(options.model, options.seeds, options.write)


if __name__ == "__main__":
    main()
