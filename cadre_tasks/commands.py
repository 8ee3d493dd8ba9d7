"""The commands of this package: warm-start, preference-pairs, data and serve-env."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from cadre.cli.terminal import AsJson, print_lines, reject_beside, reject_without, require_new, visible
from cadre.errors import ConfigError
from cadre.plugins import package
from cadre.settings.yaml_file import parse_settings
from cadre_tasks.preference_pairs import preference_pairs
from cadre_tasks.warm_start import warm_start


def serve_env(
    target: Annotated[str, typer.Argument(help="FILE.py:Env or a bundled environment")],
    settings: Annotated[list[str] | None, typer.Argument(help="environment settings, such as turns=2")] = None,
    split: Annotated[Literal["train", "test"], typer.Option(help="whose tasks are served")] = "train",
    host: Annotated[str, typer.Option(help="address to listen at; others than this machine's let anybody play")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    sessions: Annotated[int, typer.Option(min=1, help="episodes at once")] = 64,
) -> None:
    """Serve an environment to clients of OpenEnv: trainers of other frameworks."""
    from cadre_tasks.integrations.openenv_server import make_openenv_app

    app = make_openenv_app(target, parse_settings(settings or []), split, sessions)
    uvicorn = package("uvicorn", "openenv")
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"--port: {port} on {host} cannot be had ({error.strerror or error}). Name another."
        ) from None
    print_lines(
        [
            f"{target}, tasks of the split {split}: http://{host}:{port}. Ctrl-C ends it.",
            f'GenericEnvClient(base_url="http://{host}:{port}") of openenv.core plays it.',
        ]
    )
    with listening:
        # Every session that is closed is an error in the log of the server.
        uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])


def data(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="a data set, such as math500 or mbpp")],
    source: Annotated[str, typer.Option("--from", help="a folder, hub, or hub@REVISION; default $CADRE_DATA")] = "",
    out: Annotated[
        Path | None, typer.Option(help="write clean items to this new .jsonl file, and nothing else")
    ] = None,
    split: Annotated[str, typer.Option(help="of --out; default: train if there is one, else test")] = "",
    as_json: AsJson = False,
) -> None:
    """Read a data set, check its counts, splits and leaks, and show three items. Exit code 1 if it is not sound."""
    from cadre_tasks.data import examine, read
    from cadre_tasks.data.user_file import is_user_file

    if is_user_file(name):
        raise ConfigError(
            f"data: got {name}; expected the name of a set. `cadre check ENV data={name}` reads a file of yours."
        )
    if out is None:
        reject_without(context, "--out", ["split"])
        report = examine.examine(name, source)
        if as_json:
            sys.stdout.write(json.dumps(report.as_dict()) + "\n")
        else:
            print_lines(map(visible, report.lines()))
        raise typer.Exit(0 if report.sound else 1)

    reject_beside(context, "--out", ["as_json"])
    require_new(out, "data --out")
    if not is_user_file(out.name):
        raise ConfigError(
            f"data --out: got {out}; expected a name that ends in .jsonl, as settings.data needs. Rename."
        )
    chosen_split = split or ("train" if "train" in read.find_spec(name).splits else "test")
    print_lines([examine.prepare(name, chosen_split, source, out).line(out)])


# By panel of `cadre --help`.
COMMANDS = {
    "Train": {"warm-start": warm_start, "preference-pairs": preference_pairs},
    "Tasks": {"data": data, "serve-env": serve_env},
}
