"""`cadre warm-start`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import Overrides, Trust, console, refuse_beside, refuse_without
from cadre.cli.train import STOPPED
from cadre.config.engines import check_hub_models
from cadre.config.experiment import Experiment, load
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from cadre.runs.folder import Run, check_folder_free, create_in_free_folder, resume_command
from cadre.settings.trust import check_trusted, print_import_notice, queue_import_notice
from cadre.team import Metrics
from cadre.training.warm_start import (
    EXAMPLES,
    WARM_START,
    Example,
    WarmStart,
    create_warm_start,
    encode_examples,
    open_warm_start,
    read_examples,
    run_warm_start,
    sample_successes,
)
from cadre.types import TrainingSequence

BEGUN_WITH = ("recipe", "overrides", "on", "own", "steps", "per_step", "learning_rate", "seed")


def command(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="a bundled recipe or a YAML file, which is trained afterwards")] = "",
    overrides: Overrides = None,
    on: Annotated[Path | None, typer.Option(help='JSONL of {"role": ..., "prompt": ..., "answer": ...}')] = None,
    own: Annotated[int, typer.Option(min=0, help="or so many training tasks, whose won episodes are imitated")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 100,
    per_step: Annotated[int, typer.Option("--examples", min=1, help="examples a step")] = 16,
    learning_rate: Annotated[float, typer.Option(min=1e-12, max=1e30, help="of AdamW, constant")] = 1e-5,
    seed: Annotated[int, typer.Option(help="of the order of examples")] = 0,
    folder: Annotated[Path | None, typer.Option("--run", help="where to write; default runs/RECIPE-NNN")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the warm start in --run")] = False,
    trust: Trust = False,
) -> None:
    """Train a team to imitate answers (cross-entropy), as a start for reinforcement learning."""
    if resume:
        if folder is None:
            raise ConfigError("--resume: got no --run; expected the folder to go on with. Add --run DIR.")
        refuse_beside(context, "--resume", BEGUN_WITH)
        run = Run.open(folder)
        settings = open_warm_start(run)
        queue_import_notice(check_trusted(run.folder, run.config.model_dump(mode="json"), trust))
        experiment = resolve(run.config)
        print_import_notice()
        given = read_examples(run.folder / WARM_START / EXAMPLES, [*experiment.trained_roles])
        data = encode_examples(experiment, given)
    else:
        refuse_without(context, "--resume", ["trust"])
        experiment = resolve(load(recipe, overrides or []))
        check_hub_models(experiment)
        if folder is not None:
            check_folder_free(folder)
        given = _examples(experiment, on, own)
        data = encode_examples(experiment, given)
        settings = WarmStart(steps, per_step, learning_rate, seed)
        begun_with = [recipe, *(overrides or [])]

        def create(new: Path) -> Run:
            return create_warm_start(new, experiment.config, settings, given, begun_with)

        run = create_in_free_folder(folder, recipe, create)
    _train(experiment, run, settings, data)


def _examples(experiment: Experiment, on: Path | None, own: int) -> list[Example]:
    if (on is None) == (own == 0):
        got = "neither" if on is None else "both"
        raise ConfigError(f"warm-start: got {got} of --on FILE and --own TASKS; expected one of them. Say which.")
    if on is not None:
        return read_examples(on, list(experiment.trained_roles))
    found, episodes = sample_successes(experiment, own)
    console.print(f"{len(found)} answers of {episodes} episodes were part of a success", highlight=False)
    return found


def _train(experiment: Experiment, run: Run, settings: WarmStart, data: Sequence[TrainingSequence]) -> None:
    every = max(1, settings.steps // 10)

    def tell(step: int, metrics: Metrics) -> None:
        if (step + 1) % every == 0:
            losses = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name.endswith("/loss"))
            console.print(f"step {step + 1}/{settings.steps}  {losses}", highlight=False)

    done = run_warm_start(experiment, run, settings, data, tell)
    again = "warm-start" if done < settings.steps else "train"
    told = f"Stopped after {done} of {settings.steps} steps; saved" if done < settings.steps else "Warm"
    console.print(f"{told}. Go on with:\n  {resume_command(run.folder, again)}", markup=False, highlight=False)
    if done < settings.steps:
        raise typer.Exit(STOPPED)
