"""`cadre data`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cadre.cli.terminal import console


def data(
    name: Annotated[str, typer.Argument(help="a data set, such as math500 or mbpp")],
    source: Annotated[str, typer.Option("--from", help="a folder of JSONL, or hub; default $CADRE_DATA")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Read a data set, check its counts, splits and leaks, and show three items. Exit code 1 where it is not sound."""
    from cadre.data import examine

    found = examine.examine(name, source)
    if as_json:
        sys.stdout.write(json.dumps(found.as_dict()) + "\n")
    else:
        for line in examine.lines(found):
            console.print(line, markup=False, highlight=False)
    raise typer.Exit(0 if found.sound else 1)
