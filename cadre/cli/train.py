"""Commands that train: train, fork."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import (
    STOPPED,
    Best,
    Overrides,
    RunFolder,
    Trust,
    complete_recipe,
    console,
    print_lines,
    reject_beside,
    reject_without,
    shorten_path,
)
from cadre.config.engines import check_hub_models
from cadre.config.experiment import load
from cadre.config.recipes import example_recipe
from cadre.config.resolve import resolve, resolve_recipe
from cadre.errors import ConfigError
from cadre.runs.folder import Run, create_in_free_folder, resume_command
from cadre.runs.resume import fork_run, open_to_resume
from cadre.settings.yaml_file import typed_keys
from cadre.training.checkpoint import best_evaluated_step

NewRun = Annotated[Path | None, typer.Option("--run", help="where to write; default runs/RECIPE-NNN")]
Recipe = Annotated[
    str, typer.Argument(help="a bundled recipe or a YAML file (see: cadre list)", autocompletion=complete_recipe)
]


# ---- cadre train


def train(
    context: typer.Context,
    recipe: Recipe = "",
    overrides: Overrides = None,
    folder: NewRun = None,
    resume: Annotated[bool, typer.Option("--resume", help="resume the run in --run")] = False,
    resume_if_exists: Annotated[
        bool, typer.Option("--resume-if-exists", help="--resume if --run holds a run, otherwise begin it")
    ] = False,
    trust: Trust = False,
    force: Annotated[
        bool, typer.Option("--force", help="--resume although settings, tasks or models have changed")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="build all but the weights, and print what it takes")
    ] = False,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help='with --dry-run: GPUs that are not here, such as "2x8 H100"')
    ] = None,
) -> None:
    """Train a team."""
    changes = overrides or []
    if resume_if_exists:  # one command for all starts of a job that a scheduler requeues
        reject_beside(context, "--resume-if-exists", ["resume"])
        if folder is None:
            raise ConfigError("--resume-if-exists: got no --run; expected the folder to look in. Add --run DIR.")
        resume = (folder / "config.yaml").is_file()
    if resume and "=" in recipe:  # the run has its recipe, so that the first argument is a change
        recipe, changes = "", [recipe, *changes]
    if not recipe and not resume:
        raise ConfigError(f"train: got no recipe; expected a bundled one or a YAML file, such as {example_recipe()}.")
    if not (resume or resume_if_exists):
        reject_without(context, "--resume", ["force", "trust"])

    if dry_run:
        reject_beside(context, "--dry-run", ["folder", "resume", "resume_if_exists"])
        from cadre.config.estimate import estimate_resources, format_estimate

        print_lines(format_estimate(estimate_resources(load(recipe, changes), typed_keys(changes), gpus)))
        return
    reject_without(context, "--dry-run", ["gpus"])
    if resume:
        if folder is None:
            raise ConfigError("--resume: got no --run; expected the folder to go on with. Add --run DIR.")
        run = open_to_resume(folder, recipe, changes, force, trust)
        experiment = resolve(run.config, typed=typed_keys(changes))
    else:
        experiment = resolve_recipe(recipe, changes)
        check_hub_models(experiment)
        run = create_in_free_folder(folder, recipe, lambda new: Run.create(new, experiment.config, recipe, changes))

    from cadre.training.checkpoint import checkpoint_steps
    from cadre.training.loop import run_training

    policies = len(run.policies)
    team = f"{policies} policies" if policies > 1 else "1 policy"
    if any(policy.dtype == "bfloat16" for policy in experiment.policies.values()):
        team += " in bfloat16"
    algorithm = f"{experiment.config.algorithm.name}, {experiment.plan.shape.name}"
    held_out = len(experiment.held_out_tasks) if experiment.config.evaluate.tasks else 0
    counts = f"{len(experiment.training_tasks):,} tasks, {held_out:,} held out"
    print_lines([f"run {run.folder}: {shorten_path(experiment.config.env)}, {algorithm}, {team}, {counts}"])
    steps_before = max(checkpoint_steps(run.folder / "checkpoints"), default=0)
    trained, steps_done = run_training(experiment, run, console, resume, force)
    trained.close()
    if run.ended and resume and steps_done == steps_before:
        print_lines([f"No step was trained: the run has made {steps_done}, and {run.ended} ends it."])
    _print_result(run, steps_done, held_out)


def _print_result(run: Run, steps_done: int, held_out: int) -> None:
    """Print the success before and after, and what to try next; for a stopped run, the command that resumes it. Raises
    typer.Exit with code STOPPED if the run or its last evaluation was stopped."""
    settings, reports = run.train, run.evaluations()
    stopped = ""
    if not run.ended:
        stopped = f"after {steps_done} of {settings.steps} steps"
    elif held_out and (not reports or reports[-1]["step"] < steps_done):
        stopped = f"in the evaluation after {steps_done} steps"
    if stopped:
        print_lines([f"Stopped {stopped}; saved. Go on with:\n  {resume_command(run.folder)}"])
        raise typer.Exit(STOPPED)

    if steps_done < settings.steps:
        print_lines([f"Ended after {steps_done} of {settings.steps} steps by {run.ended}."])
    if len(reports) > 1:
        first, last = reports[0], reports[-1]
        when = f"after {first['step']} steps" if first["step"] else "before"
        rates = f"{first['success']:.1%} {when}, {last['success']:.1%} after"
        print_lines([f"success on {last['tasks']} held-out tasks: {rates}"])
    folder = shlex.quote(str(run.folder))
    lines = [f"The run is in {run.folder}. Next:", f"  cadre play {folder}              one episode, to read"]
    if min(500, held_out) > max((report.get("tasks", 0) for report in reports), default=0):
        lines.append(f"  cadre eval {folder} --tasks {min(500, held_out):<3}  more held-out tasks")
    print_lines([*lines, f"  cadre view {folder}              curves and trees, in a browser"])


# ---- cadre fork


def fork(
    folder: RunFolder,
    context: typer.Context,
    step: Annotated[
        int | None, typer.Option("--at", min=0, help="the checkpoint to start from, by its updates")
    ] = None,
    overrides: Overrides = None,
    best: Best = False,
    trust: Trust = False,
    into: Annotated[Path | None, typer.Option("--run", help="where to write; default runs/NAME-NNN")] = None,
) -> None:
    """Start a new run from a checkpoint of another one, with other settings if you like. The old run is only read."""
    if best:
        reject_beside(context, "--best", ["step"])
        step = best_evaluated_step(folder)
    if step is None:
        raise ConfigError("fork: got neither --at nor --best; expected where to part. Add --at STEP, of a checkpoint.")
    create = partial(fork_run, folder, step, overrides=overrides or [], trust=trust)
    run = create_in_free_folder(into, folder.resolve().name, create)
    print_lines([f"{run.folder} begins after step {step} of {folder}. Go on with:\n  {resume_command(run.folder)}"])
