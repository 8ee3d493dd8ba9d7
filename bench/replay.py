"""The first steps of measured trainings, done again: at the commit of a figure and at the present one.

    python bench/replay.py [PATTERN ...] [--models DIR] [--data DIR] [--steps 2] [--tasks 4] [--work DIR] [--write]

A figure of docs/evidence.md ages with every commit that changes code which it runs, though most of them do not change
what a training does. This trains the first steps twice with the same seed on the same machine: with the code of the
figure's commit, in a worktree of git, and with the present code. If the weights of all policies are equal to the last
bit, and the held-out success before and after is equal too, then sampling, rewards, advantages and updates of these
steps are the same. It does not show that later steps are.

Figures are those whose names fit a PATTERN, by default all that are stale and whose training is a `cadre train`. Known
models are folders of `--models`, data sets of `--data`. With `--write` a line `replay.NAME` is appended to
results/replay.jsonl for each figure: the share of its trainings that are equal, with `of`, the commit of the figure.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors import deserialize

from ages import read_history
from common import ROOT, append_line, checked_out, commit, latest, measurement, validate_commit
from evidence import chapters, stale
from headline import TASKS, Headline
from paper import FIRST, ROWS
from repeat import lines, train
from trainings import console

GAME = re.compile(r"(?:table\.(?P<row>[\w-]+)\.)?(?P<game>plan-path|sokoban|sudoku)\.(?:(?:team|base)\.)?success")
METHODS = r"(?P<methods>[\w-]+(?: - [\w-]+)?)(?:\.before)?(?:\.success)?"
HEADLINE = re.compile(rf"headline\.(?P<task>[\w-]+)\.(?P<model>.+?)\.{METHODS}")
OPENSPIEL = {"hanabi.": "tiny-hanabi", "kuhn.": "kuhn-poker"}
# Two policies that were trained apart, of which the row is put together.
ALONE = ("-tool", "-no-tool")


@dataclass(frozen=True)
class Training:
    """A `cadre train`: a recipe and its overrides. Steps and tasks of evaluations are set by the replay."""

    recipe: str
    overrides: tuple[str, ...]


def trainings(line: Mapping[str, Any], options: argparse.Namespace) -> list[Training]:
    """Return the trainings that a figure comes from, with its first seed; none if it comes from no `cadre train`."""
    seed = f"train.seed={line['seeds'][0]}" if line["seeds"] else "train.seed=0"
    if found := GAME.fullmatch(line["name"]):
        row = ROWS[found["row"] or "team-shared"]
        endings = ALONE if row.ending == "-roles-of-alone" else (row.ending,)
        return [Training(f"{found['game']}{ending}", (f"evaluate.first={FIRST}", seed)) for ending in endings]
    for beginning, recipe in OPENSPIEL.items():
        if line["name"].startswith(beginning):
            return [Training(recipe, (seed,))]
    found = HEADLINE.fullmatch(line["name"])
    if found is None or found["task"] not in TASKS or found["methods"].startswith("best-of"):
        return []
    model = options.models / found["model"]
    if TASKS[found["task"]].reads_data and options.data == "hub":
        console.print(f"{line['name']} is left out: it needs --data.", highlight=False)
        return []
    words = shlex.split(line["command"])
    changes = tuple(words[words.index("--set") + 1 :]) if "--set" in words else ()
    tokens = int(words[words.index("--tokens") + 1])
    headline = Headline(model, options.work, tokens, options.tasks, 0, changes, options.data)
    return [
        Training(
            headline.recipe(found["task"], method),
            tuple(headline.settings(found["task"], method, line["seeds"][0])),
        )
        for method in found["methods"].split(" - ")
    ]


def weights(run: Path) -> dict[str, Any]:
    """Return the type, shape and bytes of every tensor of the last checkpoint's policies, by file and name."""
    last = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    found = {}
    for path in sorted(last.glob("*/*.safetensors")):
        found |= {f"{path.relative_to(last)} {name}": tensor for name, tensor in deserialize(path.read_bytes())}
    if not found:
        raise FileNotFoundError(f"{last} has no weights of a policy; expected POLICY/*.safetensors.")
    return found


def successes(run: Path) -> list[float]:
    """Return the held-out success of every evaluation of a run; the reward in games that have none."""
    return [report.get("success", report["reward"]) for report in lines(run / "evaluations.jsonl")]


def has_updates(run: Path) -> bool:
    """Return True if a policy had a gradient in one of the steps, without which equal weights say nothing."""
    steps = lines(run / "metrics.jsonl")
    return any(value > 0 for step in steps for name, value in step.items() if name.endswith("/grad_norm"))


def difference(before: Path, now: Path) -> str:
    """Return the first thing that differs between two runs, or nothing if they are equal."""
    if not has_updates(now):
        return "no policy had a gradient in these steps; take more with --steps"
    if successes(before) != successes(now):
        return f"held-out success {successes(before)} before, {successes(now)} now"
    one, other = weights(before), weights(now)
    if one.keys() != other.keys():
        return f"tensors of one only: {', '.join(sorted(one.keys() ^ other.keys())[:3])}"
    changed = [name for name in one if one[name] != other[name]]
    return f"{len(changed)} of {len(one)} tensors" if changed else ""


class Replay:
    """One call of the command. A training that several figures come from is done once."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.runs: dict[tuple[Training, str], Path] = {}

    def is_equal(self, training: Training, measured: str) -> bool:
        """Return True if a training has the same first steps at a commit and now. What differs is printed."""
        old, now = self.run(training, measured), self.run(training, "")
        found = difference(old, now)
        console.print(f"{training.recipe} at {measured}: {found or 'equal'}", highlight=False)
        return not found

    def run(self, training: Training, commit: str) -> Path:
        """Return the folder of a training with the code of a commit, or with the present one for an empty name."""
        key = training, commit
        if key not in self.runs:
            run = self.folder / str(len(self.runs)) / "run"
            ends = f"train.steps={self.options.steps}", f"evaluate.tasks={self.options.tasks}"
            changes = (*training.overrides, *ends)
            if commit:
                with checked_out(commit, self.folder / f"code-{len(self.runs)}") as code:
                    train(training.recipe, run, changes, 1, code)
            else:
                train(training.recipe, run, changes, 1)
            self.runs[key] = run
        return self.runs[key]


def replay_line(replay: Replay, line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the line of a figure that was trained again; None if no training gives it, or if one fails."""
    options = replay.options
    commits = str(line["commit"]).split(", ")
    found = trainings(line, options)
    try:
        equal = [replay.is_equal(training, measured) for training in found for measured in commits]
    except subprocess.CalledProcessError:
        console.print(f"{line['name']}: the training failed; see {replay.folder}/*/log", highlight=False)
        return None
    if not equal:
        return None
    value = sum(equal) / len(equal)
    folders = " --models DIR --data DIR" if line["name"].startswith("headline.") else ""
    sizes = f"--steps {options.steps} --tasks {options.tasks}"
    command = f"python bench/replay.py {shlex.quote(line['name'])}{folders} {sizes} --write"
    made = measurement(f"replay.{line['name']}", [value], "share", command, options.steps, line["seeds"][:1])
    return made | {"of": line["commit"]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of the names of figures; default: stale ones")
    parser.add_argument("--models", type=Path, default=ROOT / "models", help="the folder of known models' folders")
    parser.add_argument("--data", default="hub", help="the folder of data sets")
    parser.add_argument("--steps", type=int, default=2, help="of each training")
    parser.add_argument("--tasks", type=int, default=4, help="held-out tasks of an evaluation")
    parser.add_argument("--work", type=Path, help="where runs are kept; default: nowhere")
    parser.add_argument("--write", action="store_true", help="append to results/replay.jsonl")
    options = parser.parse_args(arguments)
    found, history = latest(), read_history()
    if history is None:
        raise SystemExit("This checkout has no full git history, which older commits come from. Use a full clone.")
    if options.write:
        validate_commit(commit())
    old = stale(found, history)
    claims = [claim for chapter in chapters(found) for claim in chapter.claims]
    names = {name for claim in claims if options.patterns or claim.lines[-1] in old for name in claim.lines}
    patterns = options.patterns or ["*"]
    chosen = [name for name in sorted(names & found.keys()) if any(fnmatchcase(name, one) for one in patterns)]
    with tempfile.TemporaryDirectory(prefix="cadre-replay-") as temporary:
        options.work = (options.work or Path(temporary)).absolute()
        replay = Replay(options, options.work)
        for name in chosen:
            line = replay_line(replay, found[name])
            if line is not None:
                console.print(f"{line['name']}: {line['value']:g} of {line['of']}", highlight=False)
                if options.write:
                    append_line("replay", line)


if __name__ == "__main__":
    main()
