"""`cadre fork`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import Best, Overrides, RunFolder, Trust, console, refuse_beside
from cadre.errors import ConfigError
from cadre.runs.folder import Run, create_in_free_folder, resume_command
from cadre.runs.resume import fork_run
from cadre.training.checkpoint import best_evaluated_step


def fork(
    folder: RunFolder,
    context: typer.Context,
    step: Annotated[
        int | None, typer.Option("--at", min=0, help="the updates after which to part, of a checkpoint")
    ] = None,
    overrides: Overrides = None,
    best: Best = False,
    trust: Trust = False,
    into: Annotated[Path | None, typer.Option("--run", help="where to write; default runs/NAME-NNN")] = None,
) -> None:
    """Begin a new run where another one stood, with other settings if you like. The old run is only read."""
    if best:
        refuse_beside(context, "--best", ["step"])
        step = best_evaluated_step(folder)
    if step is None:
        raise ConfigError("fork: got neither --at nor --best; expected where to part. Add --at STEP, of a checkpoint.")
    parted = step

    def create(new: Path) -> Run:
        return fork_run(folder, parted, new, overrides or [], trust)

    run = create_in_free_folder(into, folder.resolve().name, create)
    console.print(
        f"{run.folder} begins after step {step} of {folder}. Go on with:\n  {resume_command(run.folder)}",
        markup=False,
        highlight=False,
    )
