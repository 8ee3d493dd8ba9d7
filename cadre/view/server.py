"""The server of the page: this machine only, behind a secret path, and read-only.

A request is answered if its address has the token and its Host is the one that the server was bound to; requests from
pages of other origins are rejected. The page may load nothing from elsewhere, and run only its own scripts. Needs
starlette and uvicorn (the extra `view`).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from cadre.errors import CadreError, RunError
from cadre.sockets import HOST, connection_limit, limited_protocol, listen
from cadre.view import PAGE, plain_json
from cadre.view.reading import RunReader

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
QUERIES: dict[str, Callable[[RunReader, Mapping[str, str]], Any]] = {
    "metrics": lambda run, query: run.metrics(int(query.get("offset", 0))),
    "evaluations": lambda run, query: run.evaluations(),
    "left_out": lambda run, query: run.left_out(int(query.get("offset", 0))),
    "trees": lambda run, query: run.entries(int(query.get("first", 0))),
    "table": lambda run, query: run.table(int(query["first"]), int(query["count"])),
    "tree": lambda run, query: run.tree(int(query["at"])),
    "tokens": lambda run, query: run.tokens(
        int(query["at"]), sample := (int(query["node"]), query["role"], int(query["index"]))
    )[sample],
}


def serve(runs: Sequence[RunReader], port: int, token: str, on_ready: Callable[[str], None]) -> None:
    """Serve the page until interrupted; `on_ready` receives its address. Port 0 takes a free one.

    token   the secret of the address, drawn if empty
    Raises RunError if the port is taken.
    """
    try:
        listening = listen(port)
    except OSError as error:
        got = f"got {port}, which cannot be had ({error.strerror})"
        raise RunError(f"--port: {got}; expected a free one. Name another, or 0.") from None
    with listening:
        port = listening.getsockname()[1]
        token = token or secrets.token_urlsafe(18)
        on_ready(f"http://{HOST}:{port}/{token}/")
        config = uvicorn.Config(
            make_application(runs, token, [f"{HOST}:{port}", f"localhost:{port}"]),
            http=limited_protocol(connection_limit()),
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listening])


def make_application(runs: Sequence[RunReader], token: str, hosts: Sequence[str]) -> ASGIApp:
    """Return the application of the page under `/TOKEN/`, for requests to one of `hosts` (`127.0.0.1:8765`)."""

    def json_response(value: Any) -> Response:
        return Response(plain_json(value), media_type="application/json")

    async def get_runs(request: Request) -> Response:
        return json_response(await run_in_threadpool(lambda: [run.about() for run in runs]))

    async def get_values(request: Request) -> Response:
        run = runs[int(request.path_params["run"])]
        query = QUERIES[request.path_params["query"]]
        return json_response(await run_in_threadpool(query, run, request.query_params))

    async def get_image(request: Request) -> Response:
        run = runs[int(request.path_params["run"])]
        png = await run_in_threadpool(run.image, request.path_params["digest"])
        return Response(png, media_type="image/png")

    async def cadre_error(request: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), 404)

    async def unknown_name(request: Request, error: Exception) -> Response:
        return PlainTextResponse("There is nothing of that name here. Load the page again.", 404)

    routes = [
        Route("/api/runs", get_runs),
        Route("/api/runs/{run:int}/pictures/{digest}", get_image),
        Route("/api/runs/{run:int}/{query}", get_values),
        Mount("/", StaticFiles(directory=PAGE, html=True)),
    ]
    errors = {CadreError: cadre_error, KeyError: unknown_name, IndexError: unknown_name, ValueError: unknown_name}
    return RequestGuard(Starlette(routes=[Mount(f"/{token}", routes=routes)], exception_handlers=errors), token, hosts)


class RequestGuard:
    """ASGI middleware that rejects requests from elsewhere, and puts the security headers on every response."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        reason = self._rejection(scope) if scope["type"] == "http" else "expected HTTP"
        app = self._app if reason is None else PlainTextResponse(reason, 403)
        await app(scope, receive, send_with_headers)

    def _rejection(self, scope: Scope) -> str | None:
        """Return the reason to reject a request, None for no reason. It reveals nothing that a stranger cannot know."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("host") not in self._hosts:
            return "another host"
        if "origin" in headers and headers["origin"] not in {f"http://{host}" for host in self._hosts}:
            return "another origin"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "another site"
        if scope["method"] not in ("GET", "HEAD"):
            return "expected GET"
        first = "".join(scope["path"].split("/")[1:2])
        if not hmac.compare_digest(first.encode(errors="replace"), self._token.encode()):
            return "the address lacks the token that the command printed"
        return None
