"""Bringing the page up on this machine."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from cadre.errors import ConfigError, RunError
from cadre.programs import loopback
from cadre.view.reading import RunReader


def readers(folders: Sequence[Path]) -> list[RunReader]:
    """The runs under names that tell them apart. Raises RunError for a folder that is no run."""
    names = [folder.resolve().name for folder in folders]
    alike = {name for name in names if names.count(name) > 1}
    return [
        RunReader(folder, "/".join(folder.resolve().parts[-2:]) if name in alike else name)
        for folder, name in zip(folders, names, strict=True)
    ]


def serve(runs: Sequence[RunReader], port: int, token: str, told: Callable[[str], None]) -> None:
    """Serve the page until interrupted; `told` is given its address once it can be opened. Port 0 takes a free one."""
    import uvicorn

    from cadre.programs.http_limits import connection_limit, protocol
    from cadre.view.server import application

    with _listening(port) as listening:
        port = listening.getsockname()[1]
        secret = token or secrets.token_urlsafe(18)
        hosts = [f"{loopback.HOST}:{port}", f"localhost:{port}"]
        told(f"http://{loopback.HOST}:{port}/{secret}/")
        config = uvicorn.Config(
            application(runs, secret, hosts),
            http=protocol(connection_limit()),
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listening])


def _listening(port: int) -> socket.socket:
    try:
        return loopback.listening(port)
    except OSError as error:
        raise RunError(
            f"--port: got {port}, which cannot be had ({error.strerror}); expected a free one. Name another, or 0."
        ) from None


def check_installed() -> None:
    """Raises ConfigError where the server's packages are missing."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise ConfigError(
            f"view: {error.name} is not installed; expected the extra view. pip install 'cadre-rl[view]', or write the "
            "page with --export FILE.html, which needs none."
        ) from None
    del starlette, uvicorn
