"""`cadre.compare`, `sweep`, `prove` and `optimise_prompts`: what the commands of those names do, from Python."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadre.api import Player, Section, resolve_sections, section_changes
from cadre.concurrency import configure_threads
from cadre.config.resolve import resolve_for_evaluation
from cadre.errors import ConfigError
from cadre.evaluation.loaded_team import LoadedTeam
from cadre.notebook_html import shorten
from cadre.runs.notebook import make_console
from cadre.settings.yaml_file import flatten, long_key
from cadre_analysis.compare import RunComparison, compare_runs
from cadre_analysis.plots import draw_png, plot_comparison, run_folders
from cadre_analysis.prompts import OptimisedPrompts, optimise_on
from cadre_analysis.prove import Request, prove_on
from cadre_analysis.prove_report import Result
from cadre_analysis.sweep import check_distinct, claim_folder, make_runs
from cadre_analysis.trainings import train_to_end


class PlottedComparison(RunComparison):
    """A comparison that a notebook shows with its curves."""

    def _repr_html_(self) -> str:
        data = base64.b64encode(draw_png(plot_comparison(self))).decode()
        return f'{super()._repr_html_()}<img src="data:image/png;base64,{data}">'


def compare(
    runs: Sequence[LoadedTeam | str | Path],
    measure: str = "success",
    at: str = "last",
    max_tokens: float | None = None,
    unpaired: bool = False,
    plot: bool = False,
) -> RunComparison:
    """Compare runs on the held-out tasks of their training; a sweep's folder stands for its runs.

        cadre.compare([trained, other, "runs/ships-003"], plot=True)

    Runs that differ in their seed alone are one method, and every other method is compared with that of the first run.

    measure     success or reward
    at          the evaluation of each run: last, best, or a step
    max_tokens  only evaluations after at most this many sampled tokens
    unpaired    the methods played different tasks
    plot        a notebook shows the curves too; needs matplotlib

    Raises RunError for runs that cannot be compared.
    """
    compared = compare_runs(run_folders(runs), measure, at, max_tokens, unpaired)
    return PlottedComparison(**vars(compared)) if plot else compared


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep, by name, and their comparison, None if nothing was evaluated."""

    folder: Path
    runs: dict[str, Path]
    comparison: RunComparison | None

    def __repr__(self) -> str:
        return shorten(f"Sweep({len(self.runs)} runs in {self.folder}, {self.comparison!r})")

    def _repr_html_(self) -> str:
        return "Nothing was evaluated." if self.comparison is None else self.comparison._repr_html_()


def sweep(
    recipe: str | Path | Section | Player | None = None,
    *,
    over: Mapping[str, Sequence[Any]],
    folder: str | Path,
    quiet: bool = False,
    **sections: Any,
) -> Sweep:
    """Train every combination of some settings, one after the other, and compare them on held-out tasks.

        rates = {"learner.learning_rate": [1e-4, 1e-3], "train.seed": [0, 1]}
        cadre.sweep(essay, over=rates, folder="runs/rates", tasks=rows, model="Qwen/Qwen3-0.6B", steps=50)

    recipe, sections  as for `train`
    over    the settings and the values of each
    folder  holds the runs. A combination that is trained there is not trained again, and one that was interrupted is
            resumed

    Raises ConfigError before the first training if a combination cannot work, RunError if the folder holds anything
    else. Ctrl-C saves the present training, and ends the sweep with KeyboardInterrupt.
    """
    folder, recipe_text = Path(folder).expanduser(), _describe_recipe(recipe)
    try:
        fixed = [f"{key}={json.dumps(value)}" for key, value in flatten(section_changes(sections))]
        runs = make_runs([f"{long_key(key)}={json.dumps(list(values))}" for key, values in over.items()])
    except TypeError as error:
        raise ConfigError(
            f"over: got {dict(over)!r:.200} ({error}); expected for each setting a list of numbers, texts, or mappings "
            "of these. Write the values so."
        ) from None
    pairs = {run.name: [pair.partition("=") for pair in run.overrides] for run in runs}
    changes = {name: {key: json.loads(value) for key, _, value in settings} for name, settings in pairs.items()}
    check_distinct(fixed, runs, lambda run: resolve_sections(recipe, {**sections, **changes[run.name]}).config)
    claim_folder(folder, recipe_text, fixed, runs)
    console = make_console(quiet)
    for number, run in enumerate(runs, 1):
        marker, run_folder = folder / f"{run.name}.done", folder / run.name
        if marker.exists():
            continue
        console.print(f"{number} of {len(runs)}: {' '.join(run.overrides)}", markup=False, highlight=False)
        train_to_end(console, recipe, {**sections, **changes[run.name]}, run_folder).close()
        marker.touch()
    folders = {run.name: folder / run.name for run in runs}
    evaluated = all((path / "evaluations.jsonl").is_file() for path in folders.values())
    return Sweep(folder, folders, compare_runs(list(folders.values())) if evaluated else None)


def prove(
    recipe: str | Path | Section | Player | None = None,
    *,
    run: str | Path,
    seeds: int = 8,
    tokens: int = 1_000_000,
    held_out_tasks: int = 200,
    first: int = 0,
    rates: Sequence[float] = (1.0, 3.0),
    agent: str | None = None,
    test_tokens: int | None = None,
    without: Sequence[str] = (),
    prompts: bool = False,
    quiet: bool = False,
    **sections: Any,
) -> Result:
    """Train a team and single agents alike, and say whether the team is worth its tokens: wins, loses or undecided.

        result = cadre.prove(essay, run="runs/essay", tasks=rows, model="Qwen/Qwen3-0.6B", tokens=500_000)
        result.verdict.word, result.verdict.comparisons[0].difference

    recipe, sections  as for `train`, of a team with two roles or more
    run             the folder of the experiment; the same call goes on in it
    seeds, tokens   trainings of each method, and tokens that each of them samples
    held_out_tasks  that every training is tested on, from the task `first` of the test split on
    rates           factors of the learning rate that are tried for each method, on tasks of the training split
    agent           the environment of the single agent; by default the task's own, or the same task with one agent
    test_tokens     that the untrained agent samples for each held-out task
    without         methods that are not trained, such as team-L1
    prompts         whether the team has to beat an untrained agent too whose prompt GEPA evolves (extra `prompts`)

    Raises ConfigError before the first training if a method cannot work, RunError if the folder has another plan.
    Ctrl-C saves the present training, and ends with KeyboardInterrupt.
    """
    configure_threads()
    request = Request(seeds, tokens, held_out_tasks, first, tuple(rates), agent, test_tokens, tuple(without), prompts)
    experiment = resolve_sections(recipe, sections)
    is_object = callable(recipe) or callable(sections.get("env"))
    env = experiment.env_spec.declared if is_object else None
    return prove_on(make_console(quiet), experiment, Path(run).expanduser(), request, env)


def optimise_prompts(
    recipe: str | Path | Section | Player | None = None,
    *,
    run: str | Path,
    tokens: int = 200_000,
    training_tasks: int = 40,
    held_out_tasks: int = 200,
    first: int = 0,
    seed: int = 0,
    writer: Section | None = None,
    quiet: bool = False,
    **sections: Any,
) -> OptimisedPrompts:
    """Evolve the system messages of a team's roles (`team.prompts`) with GEPA, on training tasks; no weights change.

        found = cadre.optimise_prompts(essay, run="runs/prompts", tasks=rows, model="Qwen/Qwen3-0.6B")
        found.prompts, found.difference, cadre.train(found.recipe)

    recipe, sections  as for `train`
    run             the folder of the optimisation; the same call goes on in it
    tokens          that are sampled on training tasks and for new prompts
    training_tasks  of the training split: one half is reflected on, by the other prompts are chosen
    held_out_tasks  that are played before and after, from the task `first` of the test split on
    writer          the model that writes prompts: `{"model": ..., "url": ...}` of an endpoint; by default the policy of
                    the first role

    Raises ConfigError without the package gepa, RunError if the folder has another plan. Ctrl-C loses nothing.
    """
    configure_threads()
    experiment = resolve_sections(recipe, sections, resolve_for_evaluation)
    options = {"tokens": tokens, "tasks": training_tasks, "held_out": held_out_tasks, "first": first, "seed": seed}
    return optimise_on(make_console(quiet), experiment, Path(run).expanduser(), options | {"writer": writer})


def _describe_recipe(recipe: Any) -> str:
    """Return the recipe as the record of the sweep names it."""
    if isinstance(recipe, Mapping):
        return json.dumps(dict(recipe), sort_keys=True, default=repr)
    return str(recipe or "") if isinstance(recipe, str | Path | None) else f"{recipe.__module__}:{recipe.__qualname__}"
