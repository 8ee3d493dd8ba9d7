"""Programs that are trained: `python bench/program_trainings.py WHAT [--write] [--venvs DIR] [--names plain,agents]`.

    learn   examples/programs/plain.yaml in each framework, three seeds: success on held-out tasks before and after.
            An answer is paid by itself (settings.turn_reward), so that one live program scores its siblings
    replay  the same paid at the end, so that every sibling is played out by another instance
    ten     ten steps in each framework, paid at the end, so that every sibling is played by another instance: the share
            of the trees that diverged
    serve   each run of `learn` behind `cadre serve`: the program alone against `cadre eval`, the same tasks

AT-GRPO, K = 4, a LoRA a role. Runs are kept in --work: what is complete is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import ROOT, record
from programs import EXAMPLES, FILES
from trainings import CADRE, Run, commits

RECIPE = str(EXAMPLES / "plain.yaml")
SEEDS = (0, 1, 2)
STEPS = "train.steps=12"
LEARN = (STEPS, f"settings.turn_reward={EXAMPLES / 'walk.py'}:score_turn")


def run(options: argparse.Namespace, what: str, name: str, seed: int, *changes: str) -> Run:
    """The training of a framework, done now unless it is there."""
    python = "" if name == "plain" else f"{options.venvs.absolute()}/{name}/bin/python"
    settings = [f"settings.run={EXAMPLES / FILES[name]}:main", *([f"settings.python={python}"] if python else [])]
    overrides = (*settings, "train.trees_kept=1", *changes)
    made = Run(options.work / what / f"{name}-{seed}", RECIPE, seed, overrides, tasks=options.tasks)
    if not made.complete:
        made.train(threads=1)
    return made


def learn(options: argparse.Namespace, name: str) -> None:
    learned(options, name, name, [run(options, "learn", name, seed, *LEARN) for seed in options.seeds])


def replay(options: argparse.Namespace, name: str) -> None:
    learned(options, name, f"{name}.replay", [run(options, "replay", name, seed, STEPS) for seed in options.seeds])


def learned(options: argparse.Namespace, name: str, figure: str, runs: list[Run]) -> None:
    before, after = [each.before() for each in runs], [each.after() for each in runs]
    print(name, "before", before, "after", after, "minutes", [each.minutes() for each in runs], flush=True)
    diverged = [step["rollout/divergence_rate"] for each in runs for step in each.steps()]
    print(name, "diverged", sum(diverged) / len(diverged), flush=True)
    for when, values in (("before", before), ("after", after)):
        keep(options, f"programs.{figure}.success.{when}", values, options.tasks, runs)


def ten(options: argparse.Namespace, name: str) -> None:
    done = run(options, "ten", name, 0, "train.steps=10", "evaluate.tasks=0", *(options.changes or ()))
    begun = [step["rollout/episodes"] + step["rollout/failures"] for step in done.steps()]
    diverged = sum(step["rollout/divergence_rate"] for step in done.steps()) / len(begun)
    print(name, "trees", sum(begun), "failed", done.total("rollout/failures"), "diverged", diverged, flush=True)
    keep(options, f"programs.divergence_rate.{name}", [diverged], int(sum(begun)), [done])


def serve(options: argparse.Namespace, name: str) -> None:
    """Outside Cadre, in the framework's own interpreter, against the served run."""
    inside, outside = [], []
    for seed in options.seeds:
        folder = run(options, "learn", name, seed, *LEARN).folder
        inside.append(evaluated(folder, options.tasks))
        outside.append(alone(folder, options, name))
    print(name, "cadre eval", inside, "outside", outside, flush=True)
    runs = [run(options, "learn", name, seed, *LEARN) for seed in options.seeds]
    keep(options, f"programs.{name}.success.served", outside, options.tasks, runs)
    keep(options, f"programs.{name}.success.evaluated", inside, options.tasks, runs)


def evaluated(folder: Path, tasks: int) -> float:
    told = subprocess.run(
        [*CADRE, "eval", str(folder), "--tasks", str(tasks), "--json"], cwd=ROOT, check=True, capture_output=True
    )
    return float(json.loads(told.stdout.splitlines()[-1])["success"])


def alone(folder: Path, options: argparse.Namespace, name: str) -> float:
    """The share of the held-out tasks that the program solves on its own, with nothing of Cadre but the address."""
    python = sys.executable if name == "plain" else str(options.venvs.absolute() / name / "bin" / "python")
    rows = "".join(json.dumps(row) + "\n" for row in held_out(folder, options.tasks))
    with subprocess.Popen(
        [*CADRE, "serve", str(folder), "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as server:
        environment = os.environ | dict(exported(server.stdout))
        program = [python, str(Path(__file__).parent / "play_program.py"), str(EXAMPLES / FILES[name])]
        try:
            told = subprocess.run(
                program, input=rows, env=environment, cwd=EXAMPLES, check=True, capture_output=True, text=True
            )
        finally:
            server.terminate()
    solved = [json.loads(line)["success"] for line in told.stdout.splitlines() if line.startswith("{")]
    assert len(solved) == options.tasks
    return sum(solved) / len(solved)


def exported(lines: Any) -> Iterator[tuple[str, str]]:
    """The variables that the server tells, address and key."""
    for line in lines:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").strip().partition("=")
            yield name, value
            if name == "OPENAI_API_KEY":
                return


def held_out(folder: Path, count: int) -> list[dict[str, Any]]:
    from cadre.config.experiment import load
    from cadre_programs.settings import load_tasks

    settings = load(str(folder / "config.yaml"), []).settings
    return [dict(task.data) for task in load_tasks(settings["tasks"], "", settings["held_out"], "test")[:count]]


def keep(options: argparse.Namespace, name: str, shares: list[float], n: int, runs: list[Run]) -> None:
    """Record shares, under the commits that were trained."""
    if options.write:
        record("programs", name, shares, "share", options.command, n, [each.seed for each in runs], commits(runs))


PARTS = {"learn": learn, "replay": replay, "ten": ten, "serve": serve}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(PARTS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--venvs", type=Path, default=Path("venvs"))
    parser.add_argument("--names", default="plain,langgraph,agents")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=list(SEEDS))
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--changes", nargs="*", help="of the recipe, for `ten`")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "programs")
    chosen = parser.parse_args()
    changed = f" --changes {' '.join(chosen.changes)}" if chosen.changes else ""
    for each in chosen.names.split(","):
        chosen.command = f"python bench/program_trainings.py {chosen.what} --names {each}{changed}"
        PARTS[chosen.what](chosen, each)
