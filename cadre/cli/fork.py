"""`cadre fork`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import Best, Overrides, RunFolder, Trust, console, refuse_beside
from cadre.errors import ConfigError
from cadre.experiment.chosen_checkpoint import best_step
from cadre.experiment.resume import fork as fork_run
from cadre.experiment.run_directory import Run, goes_on, in_new_folder


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
        step = best_step(folder)
    if step is None:
        raise ConfigError("fork: got neither --at nor --best; expected where to part. Add --at STEP, of a checkpoint.")
    parted = step

    def create(new: Path) -> Run:
        return fork_run(folder, parted, new, overrides or [], trust)

    run = in_new_folder(into, folder.resolve().name, create)
    console.print(
        f"{run.folder} begins after step {step} of {folder}. Go on with:\n  {goes_on(run.folder)}",
        markup=False,
        highlight=False,
    )
