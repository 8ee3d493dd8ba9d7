"""`cadre trees`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import RunFolder, console, must_be_new
from cadre.runs.export import write_parquet
from cadre.runs.folder import Run


def trees(
    folder: RunFolder,
    out: Annotated[Path, typer.Option(help="the Parquet file to write")] = Path("trees.parquet"),
) -> None:
    """Write the kept trees of a run as a table, a row a sample (docs/trees.md)."""
    must_be_new(out, "trees --out")
    count = write_parquet(Run.open(folder).folder, out)
    console.print(f"{count:,} samples are in {out}.", markup=False, highlight=False)
