"""`cadre sweep`: train a recipe with every combination of some settings, and compare the results."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import STOPPED, Overrides, complete_recipe, print_lines, visible
from cadre.config.experiment import Config
from cadre.config.resolve import resolve_recipe
from cadre.errors import ConfigError, RunError
from cadre.files import read_record, write_text_atomically
from cadre.runs.folder import SWEEP_RECORD, SweepRecord
from cadre.settings.yaml_file import parse_yaml
from cadre_analysis.compare import compare_runs, format_comparison
from cadre_analysis.trainings import begin_folder

MAX_RUNS = 1000


@dataclass(frozen=True)
class SweepRun:
    """One training of a sweep: the name of its folder, and what is set in it."""

    name: str
    overrides: tuple[str, ...]


def sweep(
    recipe: Annotated[
        str, typer.Argument(help="a bundled recipe or a YAML file (see: cadre list)", autocompletion=complete_recipe)
    ],
    over: Annotated[
        list[str],
        typer.Option(metavar="KEY=[A, B]", help="a setting and its values; with several, all combinations are trained"),
    ],
    folder: Annotated[Path, typer.Option("--run", help="the folder of the runs; the same command continues in it")],
    overrides: Overrides = None,
) -> None:
    """Train a recipe with every combination of some settings, one after the other, and compare them on held-out tasks.

    A combination that is trained is not trained again, and one that was interrupted is resumed.
    """
    fixed = overrides or []
    runs = make_runs(over)
    # Every combination is refused before the first one is trained.
    check_distinct(fixed, runs, lambda run: resolve_recipe(recipe, [*fixed, *run.overrides]).config)
    claim_folder(folder, recipe, fixed, runs)
    for number, run in enumerate(runs, 1):
        marker = folder / f"{run.name}.done"
        if marker.exists():
            continue
        print_lines([f"{number} of {len(runs)}: {' '.join(run.overrides)}"])
        code = _train(recipe, [*fixed, *run.overrides], folder / run.name)
        if code == STOPPED:
            print_lines(["The sweep is stopped; the same command goes on."])
            raise typer.Exit(STOPPED)
        if code:
            raise RunError(
                f"sweep: the training with {' '.join(run.overrides)} ended with exit code {code}; what went wrong is "
                "above. The same command goes on."
            )
        marker.touch()
    print_lines(map(visible, _compare([folder / run.name for run in runs])))


def make_runs(over: Sequence[str]) -> list[SweepRun]:
    """Return the combinations of `KEY=[A, B]` options, the last one varying fastest. Raises ConfigError for an option
    that is no list of values, and for one setting twice."""
    axes: list[list[str]] = []
    keys: list[str] = []
    for option in over:
        key, equals, text = option.partition("=")
        try:
            values = parse_yaml(text) if equals else None
        except ValueError:
            values = None
        if not key or not isinstance(values, list) or not values:
            raise ConfigError(
                f"--over: got {option!r}; expected a setting and a list of its values, as in "
                "--over 'learner.learning_rate=[1.0e-5, 3.0e-5]'. Write it so."
            )
        if key in keys:
            raise ConfigError(f"--over: got {key} twice; expected each setting once. Put all its values in one list.")
        keys.append(key)
        axes.append([f"{key}={json.dumps(value)}" for value in values])
    combinations = list(itertools.product(*axes))
    if len(combinations) > MAX_RUNS:
        raise ConfigError(f"--over: got {len(combinations):,} combinations; expected at most {MAX_RUNS:,}. Take fewer.")
    runs = [SweepRun(_folder_name(pairs), pairs) for pairs in combinations]
    names = [run.name for run in runs]
    if len({name.lower() for name in names}) < len(names):
        # Values that differ in signs alone have their number in the name.
        runs = [SweepRun(f"{number:03}-{run.name}", run.overrides) for number, run in enumerate(runs)]
    return runs


def _folder_name(pairs: Sequence[str]) -> str:
    """Return a name of a folder: the last part of each key and its value."""
    parts = []
    for pair in pairs:
        key, _, value = pair.partition("=")
        parts.append(f"{key.rpartition('.')[2]}-{value}")
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", "-".join(parts)).strip("._")[:100]


def check_distinct(fixed: Sequence[str], runs: Sequence[SweepRun], resolve: Callable[[SweepRun], Config]) -> None:
    """Raise ConfigError for a combination that cannot be trained, as `resolve` does, and for two that are one
    training."""
    fixed_keys = {change.partition("=")[0] for change in fixed}
    by_settings: dict[str, SweepRun] = {}
    for run in runs:
        if twice := [key for key in (pair.partition("=")[0] for pair in run.overrides) if key in fixed_keys]:
            raise ConfigError(
                f"--over: got {twice[0]}, which is set beside it too; expected one of both. Remove the setting."
            )
        config = resolve(run)
        twin = by_settings.setdefault(json.dumps(config.model_dump(mode="json"), sort_keys=True), run)
        if twin is not run:
            raise ConfigError(
                f"--over: {' '.join(twin.overrides)} and {' '.join(run.overrides)} are the same settings. Leave one "
                "out."
            )


def claim_folder(folder: Path, recipe: str, fixed: Sequence[str], runs: Sequence[SweepRun]) -> None:
    """Record the sweep in its folder. Raises RunError if the folder holds anything else, or another training under the
    name of one of these."""
    new = SweepRecord(recipe=recipe, overrides=list(fixed), runs={run.name: list(run.overrides) for run in runs})
    path = folder / SWEEP_RECORD
    if begin_folder(folder, SWEEP_RECORD, new):
        return
    recorded = read_record(path, SweepRecord)
    if (recorded.recipe, recorded.overrides) != (recipe, list(fixed)):
        raise RunError(
            f"--run: {folder} holds a sweep of {recorded.recipe} {' '.join(recorded.overrides)}, and this one is of "
            f"{recipe} {' '.join(fixed)}; expected the same, as their runs would be compared. Name another folder."
        )
    for name in new.runs.keys() & recorded.runs.keys():
        if recorded.runs[name] != new.runs[name]:
            raise RunError(
                f"--run: {folder / name} is of {' '.join(recorded.runs[name])}, and this sweep would take it for "
                f"{' '.join(new.runs[name])}; expected other names. Name another folder."
            )
    write_text_atomically(path, new.model_copy(update={"runs": {**recorded.runs, **new.runs}}).model_dump_json())


def _train(recipe: str, changes: Sequence[str], folder: Path) -> int:
    """Train in a process of its own, which frees all memory at its end; return its exit code."""
    begun = (folder / "config.yaml").is_file()
    arguments = ["--resume"] if begun else [recipe, *changes]
    process = subprocess.Popen([sys.executable, "-m", "cadre", "train", *arguments, "--run", str(folder)])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()  # it saves and ends, as it does if the terminal has interrupted it too


def _compare(folders: Sequence[Path]) -> list[str]:
    """Return the table of the runs, or why there is none."""
    if all((folder / "evaluations.jsonl").is_file() for folder in folders):
        return format_comparison(compare_runs(folders))
    return ["Nothing was evaluated (evaluate.tasks=0), so that there is nothing to compare."]
