"""The server behind the page: this machine alone, behind a secret path, and nothing but reading.

A request is answered where its address has the token and its Host is the one that the server was bound to; one that
another origin's page makes is refused. The page may load nothing from elsewhere, and no script but its own files.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from cadre.errors import CadreError
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
Answer = Callable[[RunReader, Mapping[str, str]], Any]

ANSWERS: dict[str, Answer] = {
    "metrics": lambda run, asked: run.metrics(int(asked.get("offset", 0))),
    "evaluations": lambda run, asked: run.evaluations(),
    "left_out": lambda run, asked: run.left_out(int(asked.get("offset", 0))),
    "trees": lambda run, asked: run.entries(int(asked.get("first", 0))),
    "table": lambda run, asked: run.table(int(asked["first"]), int(asked["count"])),
    "tree": lambda run, asked: run.tree(int(asked["at"])),
    "tokens": lambda run, asked: run.tokens(int(asked["at"]), int(asked["node"]), asked["role"], int(asked["index"])),
}


def application(runs: Sequence[RunReader], token: str, hosts: Sequence[str]) -> ASGIApp:
    """The page of these runs, under `/TOKEN/`, for requests to one of `hosts` (`127.0.0.1:8765`)."""

    async def about(request: Request) -> Response:
        return as_json(await run_in_threadpool(lambda: [run.about() for run in runs]))

    async def answer(request: Request) -> Response:
        asked = request.query_params
        run = runs[int(request.path_params["run"])]
        return as_json(await run_in_threadpool(ANSWERS[request.path_params["what"]], run, asked))

    async def picture(request: Request) -> Response:
        run = runs[int(request.path_params["run"])]
        png = await run_in_threadpool(run.picture, request.path_params["digest"])
        return Response(png, media_type="image/png")

    routes = [
        Route("/api/runs", about),
        Route("/api/runs/{run:int}/pictures/{digest}", picture),
        Route("/api/runs/{run:int}/{what}", answer),
        Mount("/", StaticFiles(directory=PAGE, html=True)),
    ]
    refused = {CadreError: _refused, KeyError: _unknown, IndexError: _unknown, ValueError: _unknown}
    return Guard(Starlette(routes=[Mount(f"/{token}", routes=routes)], exception_handlers=refused), token, hosts)


def as_json(value: Any) -> Response:
    return Response(plain_json(value), media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 404)


async def _unknown(request: Request, error: Exception) -> Response:
    return PlainTextResponse("There is nothing of that name here. Load the page again.", 404)


class Guard:
    """Lets through what may be answered, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        reason = self._refusal(scope) if scope["type"] == "http" else "expected HTTP"
        app = self._app if reason is None else PlainTextResponse(reason, 403)
        await app(scope, receive, with_headers(send))

    def _refusal(self, scope: Scope) -> str | None:
        """Why a request is refused, None where it is not. Says nothing that a stranger does not know."""
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


def with_headers(send: Send) -> Callable[[Any], Awaitable[None]]:
    """`send` with HEADERS on the start of the answer."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sending
