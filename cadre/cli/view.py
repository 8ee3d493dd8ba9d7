"""`cadre view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadre.cli import completion
from cadre.cli.terminal import console, must_be_new, refuse_beside, refuse_without
from cadre.errors import ConfigError
from cadre.view.reading import open_runs


def view(
    context: typer.Context,
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="the folders of one or more runs", autocompletion=completion.runs),
    ],
    export: Annotated[Path | None, typer.Option(help="write the page as one HTML file instead")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free")] = 0,
    token: Annotated[str, typer.Option(help="the secret of the address, so that links last; drawn anew if unset")] = "",
    megabytes: Annotated[float, typer.Option(min=0.1, help="most of the trees in an export, newest first")] = 100.0,
) -> None:
    """Show runs in a browser: curves, trees, tokens, what was left out. Also while they go on."""
    if export is not None:
        refuse_beside(context, "--export", ["port", "token"])
    else:
        refuse_without(context, "--export", ["megabytes"])
    runs = open_runs(folders)
    if token and not token.replace("-", "").replace("_", "").isalnum():
        raise ConfigError("--token: got other signs; expected letters, digits, - and _ alone. Change it.")
    if export is not None:
        from cadre.view.export import write_page

        must_be_new(export, "view --export")
        kept = write_page(runs, export, megabytes)
        all_of_them = sum(len(run.entries(0)["rows"]) for run in runs)
        left = f"; {all_of_them - kept} older ones do not fit (--megabytes)" if kept < all_of_them else ""
        console.print(f"{export} holds {kept} trees{left}.", markup=False, highlight=False)
        return
    try:
        from cadre.view.server import serve
    except ImportError as error:
        raise ConfigError(
            f"view: {error.name} is not installed; expected the extra view. pip install 'cadre-rl[view]', or write the "
            "page with --export FILE.html, which needs none."
        ) from None
    serve(runs, port, token, lambda url: console.print(f"{url}\nCtrl-C ends it.", markup=False, highlight=False))
