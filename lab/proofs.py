"""How far `cadre prove` can be trusted, and what it finds: `python -m lab.proofs PART [--write]`. The parts:

    calibrate   400 simulated experiments in each of four worlds. In the first all methods are equal, and what is said
                other than undecided is false. Then the team is better by the experiment's own resolution, or more, and
                has to be found better.
    controls    `cadre prove` itself, on tasks whose bounds follow from who sees what (lab/worth_tasks.py): with
                `relay.0` only the first role sees what the second has to name, and the agent is the second; with `open`
                one agent sees all that the team sees, and no gain may appear.
    context     the recipe `search`, by a model that was taught both roles and one agent alike (`python -m
                lab.search_trainings make models/search`): once as it is, where both find room for all they are shown,
                and once with room for 128 tokens, which is enough for each role and not for one agent's conversation.

    record      an experiment of `cadre prove` in the folder --runs, which is called --name

Appends to results/prove.jsonl: `prove.false_verdicts` and `prove.known_gains_found`, and of experiments what every
method solves and by how much the team is better than each agent.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import cadre
from bench.common import ROOT, record
from cadre.config.recipes import read_recipe
from cadre.settings.yaml_file import Raw
from cadre_analysis.prove_report import verdict_line
from cadre_analysis.verdict import Verdict, decide
from lab import worth_tasks
from lab.trainings import console
from lab.worth import speaker

Table = NDArray[np.float64]
EXPERIMENTS = 400
# Seeds, held-out tasks, and what trainings of one method differ by: the deviation of their success in logits, or a
# chance to collapse.
WORLDS = {
    "3 seeds alike": (3, 100, 0.3, 0.0),
    "8 seeds apart": (8, 100, 1.0, 0.0),
    "3 seeds that may collapse": (3, 100, 0.3, 0.3),
    "8 seeds that may collapse": (8, 100, 0.3, 0.3),
}
# Logits by which the team is better where it is.
GAINS = (0.5, 1.0, 2.0, 4.0)


def outcomes(world: str, gain: float, tasks: Table, generator: np.random.Generator) -> Table:
    """Return simulated outcomes [seeds, tasks] of a method that is better by `gain` logits than the tasks' own."""
    seeds, _, spread, collapse = WORLDS[world]
    of_seed = generator.normal(0.0, spread, (seeds, 1)) - 3.0 * (generator.random((seeds, 1)) < collapse)
    logits = tasks + gain + of_seed + generator.normal(0.0, 0.5, (seeds, tasks.shape[1]))
    return (generator.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits))).astype(float)


def experiment(world: str, gain: float, number: int) -> tuple[Verdict, float]:
    """Return the verdict of a simulated experiment, and the true difference of the success of team and agents."""
    generator = np.random.default_rng([number, list(WORLDS).index(world)])
    tasks = generator.normal(0.0, 1.2, (1, WORLDS[world][1]))
    team, one, other = (outcomes(world, better, tasks, generator) for better in (gain, 0.0, 0.0))
    large = generator.normal(0.0, 1.2, (1, 20_000))
    true = [np.mean([outcomes(world, better, large, generator).mean() for _ in range(3)]) for better in (gain, 0.0)]
    return decide(team, {"one": one, "other": other}, number), float(true[0] - true[1]) if gain else 0.0


def calibrate(write: bool) -> None:
    """Count the verdicts of equal methods, and those on gains above the resolution."""
    told, above, found = Counter[str](), 0, 0
    for world in WORLDS:
        words = Counter(experiment(world, 0.0, number)[0].word for number in range(EXPERIMENTS))
        told[world] = words["wins"] + words["loses"]
        console.print(f"{world}, equal methods: {dict(words)}", highlight=False)
        for gain in GAINS:
            tried = [experiment(world, gain, EXPERIMENTS + number) for number in range(EXPERIMENTS // 10)]
            shown = [v for v, true in tried if true > max(comparison.resolution for comparison in v.comparisons)]
            above, found = above + len(shown), found + sum(v.word == "wins" for v in shown)
            console.print(f"{world}, {gain:g} logits: {len(shown)} above the resolution, {found} of {above} found")
    console.print(f"false: {max(told.values()) / EXPERIMENTS:.3f} in the worst world, {dict(told)}", highlight=False)
    if write:
        command, seeds = "python -m lab.proofs calibrate --write", range(EXPERIMENTS)
        shares = [count / EXPERIMENTS for count in told.values()]
        record("prove", "prove.false_verdicts", shares, "share", command, EXPERIMENTS, list(seeds)[:1])
        record("prove", "prove.known_gains_found", [found / above], "share", command, above, list(seeds)[:1])


CONTROLS = {
    # The agent is the second role, which sees nothing of what only the first is shown.
    "private": ({"known_fraction": 0.0}, f"{worth_tasks.__file__}:{worth_tasks.Second.__name__}", "wins"),
    # One agent is shown all that both are.
    "open": ({"known_fraction": 0.0}, None, "undecided"),
}
NOTHING_KEPT = {"trees_kept": 0, "checkpoint_minutes": 0.0}


def controls(runs: Path, seeds: int, tokens: int, write: bool) -> None:
    """Run `cadre prove` where the answer is known."""
    model = str(speaker(runs / "models", 32, 64))
    for name, (settings, agent, expected) in CONTROLS.items():
        recipe = {
            "env": f"{worth_tasks.__file__}:Relay",
            "settings": settings,
            "team": {"policies": {"both": model}, "roles": {"first": "both", "second": "both"}},
            "algorithm": {"name": "magrpo", "k": {"first": 8, "second": 4}},
            "loss": {"entropy": 0.04, "schedule": "linear"},
            "sampling": {"max_tokens": 1},
            "learner": {"learning_rate": 1e-3},
            "train": {"tasks_per_step": 16, **NOTHING_KEPT},
            "trackers": {"names": []},
        }
        console.print(f"{name}, expected {expected}:", highlight=False)
        prove(recipe, runs / name, seeds, tokens, f"control.{name}" * write, agent)


def context(runs: Path, seeds: int, tokens: int, write: bool, rooms: list[int]) -> None:
    """Run `cadre prove` on a task that needs more room alone than in a team."""
    for room in rooms:
        model = runs / "models" / f"search-{room}"
        if not model.exists():
            shutil.copytree(ROOT / "models" / "search", model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": room}))
        recipe = read_recipe("search")
        recipe["team"]["policies"] = dict.fromkeys(recipe["team"]["policies"], str(model))
        recipe["train"] |= NOTHING_KEPT
        if room < 512:
            # An episode whose next prompt finds no room is left out; all of a step's may be.
            recipe["episodes"] = {"failed_fraction": 1.0}
        console.print(f"{room} tokens of context:", highlight=False)
        prove(recipe, runs / f"context-{room}", seeds, tokens, f"context.{room}" * write)


def prove(recipe: Raw, run: Path, seeds: int, tokens: int, name: str = "", agent: str | None = None) -> None:
    """Print the verdict of an experiment of `cadre prove`, and record it if it is given a name."""
    result = cadre.prove(recipe, run=run, quiet=True, seeds=seeds, tokens=tokens, held_out_tasks=200, agent=agent)
    console.print(verdict_line(result), highlight=False)
    if name:
        record_result(run, name, f"python -m lab.proofs {' '.join(sys.argv[1:])}")


def record_result(run: Path, name: str, command: str) -> None:
    """Record what each method of a finished experiment solves, and by how much the team is better than each agent."""
    plan, result = (json.loads((run / f"{file}.json").read_text()) for file in ("plan", "result"))
    found = {f"{method}.success": figures["success"] for method, figures in result["methods"].items()}
    found |= {f"team_minus_{it['agent']}": it["difference"] for it in result["verdict"]["comparisons"]}
    measured = (command, plan["held_out"], plan["seeds"], plan["code"]["cadre"][:8])
    for figure, interval in found.items():
        record("prove", f"prove.{name}.{figure}", interval, "share", *measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("calibrate", "controls", "context", "record"))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "proofs")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=25_600)
    parser.add_argument("--rooms", type=int, nargs="+", default=[512, 128], help="tokens of context, for context")
    parser.add_argument("--name", help="of an experiment, for record")
    parser.add_argument("--command", help="that made it")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    size = (chosen.runs.absolute(), chosen.seeds, chosen.tokens, chosen.write)
    if chosen.part == "calibrate":
        calibrate(chosen.write)
    elif chosen.part == "controls":
        controls(*size)
    elif chosen.part == "context":
        context(*size, chosen.rooms)
    else:
        record_result(chosen.runs, chosen.name, chosen.command)


if __name__ == "__main__":
    main()
