"""`cadre train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cadre.cli import completion
from cadre.cli.ignored import refuse_unused
from cadre.cli.terminal import Overrides, Trust, console, refuse_beside, refuse_without
from cadre.config.engines import check_hub_models
from cadre.config.experiment import Experiment, load
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from cadre.runs.folder import Run, create_in_free_folder, resume_command
from cadre.runs.resume import open_to_resume

# The exit code of a run that was stopped before its end, as of a command that Ctrl-C ended.
STOPPED = 130


def train(
    context: typer.Context,
    recipe: Annotated[
        str, typer.Argument(help="a bundled recipe or a YAML file (see: cadre list)", autocompletion=completion.recipes)
    ] = "",
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option("--run", help="where to write; default runs/RECIPE-NNN")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --run")] = False,
    trust: Trust = False,
    force: Annotated[bool, typer.Option("--force", help="--resume although settings or tasks have changed")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="build all but the weights; say what it takes")] = False,
) -> None:
    """Train a team."""
    changes = overrides or []
    if resume and "=" in recipe:  # the run knows its recipe
        recipe, changes = "", [recipe, *changes]
    if not recipe and not resume:
        raise ConfigError("train: got no recipe; expected a bundled one or a YAML file, such as plan-path.")
    if not resume:
        refuse_without(context, "--resume", ["force", "trust"])
    if dry_run:
        refuse_beside(context, "--dry-run", ["folder", "resume"])
        _dry_run(recipe, changes)
    elif resume:
        here = _resumed(recipe, changes, folder, force, trust)
        refuse_unused(changes, here.config)
        _train(resolve(here.config), here, resume, force)
    else:
        chosen = load(recipe, changes)
        refuse_unused(changes, chosen)
        experiment = resolve(chosen)
        check_hub_models(experiment)
        here = create_in_free_folder(folder, recipe, lambda new: Run.create(new, experiment.config, recipe, changes))
        _train(experiment, here, resume)


def _dry_run(recipe: str, overrides: list[str]) -> None:
    from cadre.config.dry_run import estimate_resources, format_estimate

    chosen = load(recipe, overrides)
    refuse_unused(overrides, chosen)
    for line in format_estimate(estimate_resources(chosen)):
        console.print(line, markup=False, highlight=False)


def _resumed(recipe: str, overrides: list[str], folder: Path | None, force: bool, trust: bool) -> Run:
    if folder is None:
        raise ConfigError("--resume: got no --run; expected the folder to go on with. Add --run DIR.")
    return open_to_resume(folder, recipe, overrides, force, trust)


def _train(experiment: Experiment, here: Run, resume: bool, force: bool = False) -> None:
    from cadre.training.loop import run_training

    policies = len(here.config.team.policies)
    team = f"{policies} policies" if policies > 1 else "1 policy"
    algorithm = f"{experiment.config.algorithm.name}, {experiment.plan.shape.name}"
    console.print(f"run {here.folder}: {experiment.config.env}, {algorithm}, {team}", markup=False, highlight=False)
    trained, done = run_training(experiment, here, console, resume, force)
    trained.close()
    _after(here, done, len(experiment.held_out.tasks("test")) if here.config.evaluate.tasks else 0)


def _stopped(here: Run, where: str) -> NoReturn:
    """Say that the run was stopped, and how it goes on."""
    console.print(
        f"Stopped {where}; saved. Go on with:\n  {resume_command(here.folder)}", markup=False, highlight=False
    )
    raise typer.Exit(STOPPED)


def _after(here: Run, done: int, held_out: int) -> None:
    """What came of it, and what to try next, with so many held-out tasks."""
    goal, folder = here.config.train, shlex.quote(str(here.folder))
    if done < goal.steps and not 0 < goal.max_tokens <= here.total("rollout/tokens"):
        _stopped(here, f"after {done} of {goal.steps} steps")
    reports = here.evaluations()
    if here.config.evaluate.tasks and (not reports or reports[-1]["step"] < done):
        _stopped(here, f"in the evaluation after {done} steps")
    if len(reports) > 1:
        first, last = reports[0], reports[-1]
        when = f"after {first['step']} steps" if first["step"] else "before"
        console.print(
            f"success on {last['tasks']} held-out tasks: {first['success']:.1%} {when}, {last['success']:.1%} after",
            highlight=False,
        )
    more = f"  cadre eval {folder} --tasks {min(500, held_out):<3}  more held-out tasks\n" if held_out else ""
    console.print(
        f"The run is in {here.folder}. Next:\n"
        f"  cadre play {folder}              one episode, to read\n"
        f"{more}"
        f"  tensorboard --logdir {folder}    the curves",
        markup=False,
        highlight=False,
    )
