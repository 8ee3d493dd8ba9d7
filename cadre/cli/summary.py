"""`cadre report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import RunFolder, console, must_be_new
from cadre.runs.export import plot_paths, write_summary
from cadre.runs.folder import Run


def report(
    folder: RunFolder,
    out: Annotated[Path, typer.Option(help="the Markdown file to write; its plots go beside it")] = Path("report.md"),
    price: Annotated[float, typer.Option(min=0.0, help="of an hour on this machine, to say what the run cost")] = 0.0,
) -> None:
    """Write a run as one page with plots: results with intervals, cost, settings, commits, what it ran on."""
    must_be_new([out, *plot_paths(out)], "report --out")
    write_summary(Run.open(folder), out, price)
    console.print(f"{out} and its plots are written.", markup=False, highlight=False)
