"""`cadre fork`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import Overrides, RunFolder, Trust, console
from cadre.experiment.resume import fork as fork_run
from cadre.experiment.run_directory import goes_on, new_folder


def fork(
    folder: RunFolder,
    step: Annotated[int, typer.Option("--at", min=0, help="the updates after which to part, of a checkpoint")],
    overrides: Overrides = None,
    trust: Trust = False,
    into: Annotated[Path | None, typer.Option("--run", help="where to write; default runs/NAME-NNN")] = None,
) -> None:
    """Begin a new run where another one stood, with other settings if you like. The old run is only read."""
    run = fork_run(folder, step, into or new_folder(folder.resolve().name), overrides or [], trust)
    console.print(
        f"{run.folder} begins after step {step} of {folder}. Go on with:\n  {goes_on(run.folder)}",
        markup=False,
        highlight=False,
    )
