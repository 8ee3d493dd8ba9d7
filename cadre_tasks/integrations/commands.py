"""`cadre serve-env`: an environment for clients of OpenEnv."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

import typer

from cadre.cli.terminal import print_lines
from cadre.errors import ConfigError
from cadre.plugins import package
from cadre.settings.yaml_file import parse_overrides


def add_commands(app: typer.Typer) -> None:
    """Add this command to `cadre`."""
    app.command(name="serve-env")(serve_env)


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

    app = make_openenv_app(target, parse_overrides(settings or []), split, sessions)
    uvicorn = package("uvicorn", "openenv")
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"--port: got {port} on {host}, which cannot be had ({error.strerror or error}); expected a free one. Name "
            "another."
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
