"""The endpoint as an ASGI application: who may ask for what. Needs starlette (the extra `programs`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cadre.programs import chat, checked, fields, responses
from cadre.programs.held_response import HeldResponse
from cadre.programs.posted import reward_of
from cadre.programs.refusal import Refused
from cadre.programs.sessions import Held, Session, Sessions
from cadre.types import Message

MAX_BODY = 16 << 20
# The session's key is the bearer token, or stands in the path before v1, for clients that want no key.
PREFIXES = ("/v1", "/s/{key}/v1")
Handler = Callable[[Session, Request], Awaitable[Any]]


def application(sessions: Sessions) -> Starlette:
    """What answers the requests of these sessions."""

    def guarded(handler: Handler) -> Callable[[Request], Awaitable[Any]]:
        async def handle(request: Request) -> Any:
            try:
                return await handler(sessions.of(_key(request)), request)
            except RecursionError:
                raise Refused(400, "The body is nested too deep; expected a flatter one.") from None

        return handle

    table: list[tuple[str, str, Handler]] = [
        ("POST", "/chat/completions", _chat),
        ("POST", "/responses", _responses),
        ("POST", "/rewards", _rewards),
        ("GET", "/models", _models),
        ("GET", "/models/{name:path}", _model),
    ]
    routes = [
        Route(prefix + path, guarded(handler), methods=[method])
        for method, path, handler in table
        for prefix in PREFIXES
    ]
    handlers: dict[Any, Any] = {Refused: _refusal, HTTPException: _http, ClientDisconnect: _left, Exception: _bug}
    return Starlette(routes=routes, exception_handlers=handlers)


async def _chat(session: Session, request: Request) -> Any:
    body = fields.body_of(await _read(request))
    call, envelope = chat.call_of(body), chat.envelope_of(body)
    checked.check_demands(call)
    return HeldResponse(session.attach(call, _again(request)), envelope)


async def _responses(session: Session, request: Request) -> Any:
    body = fields.body_of(await _read(request))
    call, said = responses.call_of(body, session.stored)
    envelope = responses.envelope_of(body)
    checked.check_demands(call)
    held = session.attach(call, _again(request))
    _store(session, held, said)
    return HeldResponse(held, envelope)


def _store(session: Session, held: Held, said: tuple[Message, ...]) -> None:
    """Let later requests go on from the response once it is there."""

    def store(answer: Any) -> None:
        if not answer.cancelled() and answer.exception() is None:
            session.stored[f"resp_{held.name}"] = (*said, answer.result().message)

    held.answer.add_done_callback(store)


async def _rewards(session: Session, request: Request) -> Response:
    body = fields.body_of(await _read(request))
    if session.over is not None:
        raise session.over
    if session.posted is None:
        raise Refused(400, "This session takes no rewards: the run names another source of them.")
    session.posted(reward_of(body))
    return JSONResponse({"object": "reward"})


async def _models(session: Session, request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_described(name) for name in session.models]})


async def _model(session: Session, request: Request) -> Response:
    name = request.path_params["name"]
    if name not in session.models:
        raise Refused(404, f"There is no model {name[:80]!r}; expected {', '.join(session.models)}.", "model")
    return JSONResponse(_described(name))


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "cadre"}


def _key(request: Request) -> str:
    if "key" in request.path_params:
        return str(request.path_params["key"])
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("api-key", "")


def _again(request: Request) -> bool:
    """Whether the client says that it has asked before, as OpenAI's own does."""
    return request.headers.get("x-stainless-retry-count", "0").strip() not in ("", "0")


async def _read(request: Request) -> bytes:
    """The body, as long as it is not too long."""
    whole = bytearray()
    async for part in request.stream():
        whole += part
        if len(whole) > MAX_BODY:
            raise Refused(413, f"The body is over {MAX_BODY >> 20} MiB; expected less.")
    return bytes(whole)


async def _refusal(request: Request, error: Refused) -> Response:
    return JSONResponse(error.body, error.status)


async def _http(request: Request, error: HTTPException) -> Response:
    told = Refused(error.status_code, f"{request.method} {request.url.path[-80:]}: {error.detail}.")
    return JSONResponse(told.body, error.status_code)


async def _left(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)


async def _bug(request: Request, error: Exception) -> Response:
    return JSONResponse(Refused(500, f"A bug in the endpoint: {type(error).__name__}.").body, 500)
