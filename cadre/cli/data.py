"""`cadre data`: what a data set holds, and clean JSON lines of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import console, must_be_new, refuse_beside, refuse_without, visible
from cadre.errors import ConfigError


def data(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="a data set, such as math500 or mbpp")],
    source: Annotated[str, typer.Option("--from", help="a folder, hub, or hub@REVISION; default $CADRE_DATA")] = "",
    out: Annotated[
        Path | None, typer.Option(help="write clean items to this new .jsonl file, and nothing else")
    ] = None,
    split: Annotated[str, typer.Option(help="of --out; default train where there is one, else test")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Read a data set, check its counts, splits and leaks, and show three items. Exit code 1 where it is not sound."""
    from cadre.data.user_file import is_user_file

    if is_user_file(name):
        raise ConfigError(
            f"data: got {name}, a file of your own; expected the name of a set, such as math500. `cadre check ENV "
            f"data={name}` reads yours."
        )
    if out is not None:
        refuse_beside(context, "--out", ["as_json"])
        _prepare(name, source, out, split)
        return
    refuse_without(context, "--out", ["split"])
    from cadre.data.examine import examine

    found = examine(name, source)
    if as_json:
        sys.stdout.write(json.dumps(found.as_dict()) + "\n")
    else:
        for line in found.lines():
            console.print(visible(line), markup=False, highlight=False)
    raise typer.Exit(0 if found.sound else 1)


def _prepare(name: str, source: str, out: Path, split: str) -> None:
    from cadre.data import read
    from cadre.data.examine import prepare
    from cadre.data.user_file import is_user_file

    must_be_new(out, "data --out")
    if not is_user_file(out.name):
        raise ConfigError(
            f"data --out: got {out}; expected a name that ends in .jsonl, as settings.data needs. Rename."
        )
    chosen = split or ("train" if "train" in read.find_spec(name).splits else "test")
    prepared = prepare(name, chosen, source, out)
    console.print(prepared.line(out), markup=False, highlight=False)
