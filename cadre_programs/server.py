"""The HTTP server of the endpoint: routes, answers that take minutes, and its thread.

Needs starlette and uvicorn (the extra `programs`); `cadre_programs.instances.start_server` imports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cadre.cli.terminal import visible
from cadre.errors import EngineError
from cadre.files import to_json
from cadre.sockets import HOST, connection_limit, limited_protocol, listen
from cadre_programs import anthropic, protocol
from cadre_programs.calls import Answer, ModelCall, RequestError, validate_constraints
from cadre_programs.rewards import parse_reward
from cadre_programs.sessions import FOLDER, PendingCall, Session, Sessions

T = TypeVar("T")
MAX_BODY_BYTES = 16 << 20
# The session's key is the bearer token, or a part of the path for clients that send no key.
PREFIXES = ("/v1", "/s/{key}/v1")
# Seconds: for how long an error can still have a status of its own, and between two signs of life.
KEEP_ALIVE_S = 10.0
MIN_KEEP_ALIVE_S = 0.05

# Answers for embeddings that are kept, and seconds that one may take.
MAX_EMBEDDINGS = 10_000
EMBEDDINGS_S = 120.0
# Kinds of refused requests that are printed.
MAX_REFUSALS = 100

_embeddings: dict[tuple[str, bytes], bytes] = {}
Handler = Callable[[Session, Request], Awaitable[Any]]


class Server:
    """Serves `sessions` at `url` from its construction to `close`, in a thread and an event loop of its own.

    In the loop that trains, a program that calls from there would wait for itself. Raises EngineError if the port is
    taken.
    """

    def __init__(self, port: int = 0) -> None:
        self.sessions, self.loop = Sessions(), asyncio.new_event_loop()
        try:
            self._socket = listen(port)
        except OSError as error:
            raise EngineError(
                f"The endpoint cannot listen on {HOST}:{port}: {error.strerror}; expected a free port. Name another."
            ) from None
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        settings = uvicorn.Config(
            make_application(self.sessions, RefusalLog()),
            http=limited_protocol(connection_limit()),
            ws="none",
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=75,
        )
        self._uvicorn = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._run, name="cadre-endpoint", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stop listening, drop open connections, and end the thread."""
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        self._thread.join(timeout=10)
        self._socket.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._uvicorn.serve(sockets=[self._socket]))
        finally:
            self.loop.close()


# Routes


class RefusalLog:
    """Prints a warning for a request that is refused, once a kind: a program may go on without what it asked for."""

    def __init__(self, write: Callable[[str], Any] | None = None) -> None:
        self._write, self._seen = write, set[tuple[Any, ...]]()

    def report(self, session: Session, request: Request, error: RequestError) -> None:
        """Print the refusal if its kind is new. The end of a session is no refusal."""
        body: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(getattr(request.state, "body", b"null"))
        model = str(body.get("model"))[:80] if isinstance(body, dict) else ""
        line = f"{request.method} {request.url.path[-80:]}{f' of model {model!r}' if model else ''}"
        field_name = re.match(r"\w*", error.param or "")
        value = body.get(field_name[0]) if field_name and isinstance(body, dict) else None
        excerpt = "" if value is None else f" It sent {field_name[0] if field_name else ''}: {json.dumps(value)[:200]}."
        kind = (line, error.status, re.sub(r"\d+", "0", error.param or error.message))
        if error.status == 410 or kind in self._seen or len(self._seen) >= MAX_REFUSALS:
            return
        self._seen.add(kind)
        text = visible(f"warning: the endpoint refused {line} with {error.status}: {error.message}{excerpt}")
        session.refusals.append(text)
        (self._write or sys.stderr.write)(f"{text}\n")


def make_application(sessions: Sessions, refusals: RefusalLog) -> Starlette:
    """Return the ASGI application that passes requests to the sessions."""

    def with_session(handler: Handler) -> Callable[[Request], Awaitable[Any]]:
        async def handle(request: Request) -> Any:
            if "key" in request.path_params:
                key = str(request.path_params["key"])
            else:
                scheme, _, token = request.headers.get("authorization", "").partition(" ")
                key = token.strip() if scheme.lower() == "bearer" else ""
                key = key or request.headers.get("api-key", "") or request.headers.get("x-api-key", "")
            try:
                session = await sessions.find(key, request.client.port if request.client else 0)
            except RequestError as error:
                if error.status != 410:
                    await read_body(request)
                    refusals.report(Session((), lambda pending: None), request, error)
                raise
            try:
                return await handler(session, request)
            except RecursionError:
                too_deep = RequestError(400, "The body is nested too deep; expected a flatter one.")
                refusals.report(session, request, too_deep)
                raise too_deep from None
            except RequestError as error:
                refusals.report(session, request, error)
                raise

        return handle

    handlers: list[tuple[str, str, Handler]] = [
        ("POST", "/chat/completions", post_chat_completion),
        ("POST", "/responses", post_response),
        ("POST", "/messages", post_message),
        ("POST", "/embeddings", post_embeddings),
        ("POST", "/rewards", post_reward),
        ("GET", "/models", get_models),
        ("GET", "/models/{name:path}", get_model),
    ]
    routes = [
        Route(prefix + path, with_session(handler), methods=[method])
        for method, path, handler in handlers
        for prefix in PREFIXES
    ]

    async def request_error(request: Request, error: RequestError) -> Response:
        is_messages = request.url.path.endswith("/messages")
        return JSONResponse(anthropic.error_body(error) if is_messages else error.body, error.status)

    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path[-80:]}: {error.detail}."
        served = ", ".join(f"{method} /v1{path}" for method, path, _ in handlers)
        refusal = RequestError(error.status_code, f"{message} Served are {served}.")
        refusals.report(Session((), lambda pending: None), request, refusal)
        return JSONResponse(refusal.body, error.status_code)

    async def client_gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)

    async def unexpected_error(request: Request, error: Exception) -> Response:
        return JSONResponse(RequestError(500, f"A bug in the endpoint: {type(error).__name__}.").body, 500)

    errors: dict[Any, Any] = {
        RequestError: request_error,
        HTTPException: http_error,
        ClientDisconnect: client_gone,
        Exception: unexpected_error,
    }
    return Starlette(routes=routes, exception_handlers=errors)


async def post_chat_completion(session: Session, request: Request) -> Any:
    body = await read_call(session, request)
    call, reply_format = protocol.parse_chat_call(body), protocol.parse_chat_format(body)
    validate_constraints(call)
    pending = session.attach(call, is_retry(request), reply_format.count)
    return DelayedResponse(session, pending, reply_format, keep_alive_s(request))


async def post_message(session: Session, request: Request) -> Any:
    body = await read_call(session, request)
    call, reply_format = anthropic.parse_messages_call(body), anthropic.parse_messages_format(body)
    validate_constraints(call)
    return DelayedResponse(session, session.attach(call, is_retry(request)), reply_format, keep_alive_s(request))


async def post_embeddings(session: Session, request: Request) -> Response:
    """Pass a request on to `session.embeddings`. The answer is kept: a replay must read the same numbers."""
    body = await read_body(request)
    if not session.embeddings:
        raise RequestError(
            400,
            "embeddings: no model here makes them; expected settings.embeddings, the URL of an endpoint that does.",
            "input",
        )
    key = (session.embeddings, body)
    if key not in _embeddings:
        _embeddings[key] = await asyncio.to_thread(fetch_embeddings, session.embeddings, body)
        while len(_embeddings) > MAX_EMBEDDINGS:
            del _embeddings[next(iter(_embeddings))]
    return Response(_embeddings[key], media_type="application/json")


def fetch_embeddings(url: str, body: bytes) -> bytes:
    """Return the answer of an endpoint for embeddings. Raises RequestError if it has none."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get("CADRE_EMBEDDINGS_KEY"):
        headers["authorization"] = f"Bearer {key}"
    address = f"{url.rstrip('/')}/embeddings"
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=EMBEDDINGS_S) as answer:
            content = bytes(answer.read(MAX_BODY_BYTES + 1))
    except urllib.error.HTTPError as error:
        text = error.read(2000).decode(errors="replace")
        raise RequestError(error.code if 400 <= error.code < 600 else 502, f"embeddings: {address}: {text}") from None
    except (OSError, ValueError) as error:
        raise RequestError(502, f"embeddings: {address} does not answer: {error}.") from None
    if len(content) > MAX_BODY_BYTES:
        raise RequestError(
            502, f"embeddings: {address} answers with more than {MAX_BODY_BYTES >> 20} MiB; ask for fewer at once."
        )
    return content


async def post_response(session: Session, request: Request) -> Any:
    body = await read_call(session, request)
    call, conversation = protocol.parse_responses_call(body, session.responses)
    reply_format = protocol.parse_responses_format(body)
    validate_constraints(call)
    (pending,) = session.attach(call, is_retry(request))

    def store(answer: asyncio.Future[Any]) -> None:
        """Let later requests continue from the response."""
        if not answer.cancelled() and answer.exception() is None:
            session.responses[f"resp_{pending.id}"] = (*conversation, answer.result().message)

    pending.answer.add_done_callback(store)
    return DelayedResponse(session, [pending], reply_format, keep_alive_s(request))


async def post_reward(session: Session, request: Request) -> Response:
    body = protocol.parse_body(await read_body(request))
    if session.end_error is not None:
        raise session.end_error
    if session.on_reward is None:
        raise RequestError(400, "This session takes no rewards: the run names another source of them.")
    session.on_reward(parse_reward(body))
    return JSONResponse({"object": "reward"})


async def get_models(session: Session, request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [describe_model(name) for name in session.models]})


async def get_model(session: Session, request: Request) -> Response:
    name = request.path_params["name"]
    if not session.has_model(ModelCall(name, ())):
        raise RequestError(404, f"There is no model {name[:80]!r}; expected {', '.join(session.models)}.", "model")
    return JSONResponse(describe_model(name))


def describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "cadre"}


def keep_alive_s(request: Request) -> float:
    """Return the seconds between two signs of life: a third of what the client waits for bytes, where it says so, as
    OpenAI's and Anthropic's do."""
    times = [KEEP_ALIVE_S]
    for name in ("x-stainless-read-timeout", "x-stainless-timeout"):
        with contextlib.suppress(ValueError):
            seconds = float(request.headers.get(name, ""))
            if seconds > 0.0 and math.isfinite(seconds):
                times.append(max(MIN_KEEP_ALIVE_S, seconds / 3.0))
    return min(times)


def is_retry(request: Request) -> bool:
    """Return True if the client marks the request as a retry, as OpenAI's own does."""
    return request.headers.get("x-stainless-retry-count", "0").strip() not in ("", "0")


async def read_call(session: Session, request: Request) -> dict[str, Any]:
    """Return the body of a call, with one name for the folder of every instance of a program, and masked."""
    raw = await read_body(request)
    if session.folder:
        raw = raw.replace(session.folder.encode(), FOLDER.encode())
    for pattern, text in session.masks.items():
        masked = re.sub(pattern, json.dumps(text)[1:-1].replace("\\", r"\\"), raw.decode(errors="surrogateescape"))
        raw = masked.encode(errors="surrogateescape")
    return protocol.parse_body(raw)


async def read_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(413, f"The body is over {MAX_BODY_BYTES >> 20} MiB; expected less.")
    request.state.body = bytes(body)
    return bytes(body)


# Responses. A writer writes one answer: at once, while it is waited for (bytes that every client ignores), and when it
# has come.


class BodyWriter:
    """Writes a JSON body in one piece. JSON may begin with whitespace, which keeps the connection alive."""

    content_type = "application/json"

    def __init__(self, call: ModelCall, call_id: str, reply_format: protocol.ReplyFormat) -> None:
        self._call, self._call_id, self._format = call, call_id, reply_format

    def opening(self) -> Iterable[bytes]:
        return ()

    def keep_alive(self) -> bytes:
        return b" "

    def closing(self, answers: Sequence[Answer]) -> Iterable[bytes]:
        if self._format.api == "chat":
            body = protocol.chat_body(self._call, answers, self._call_id, self._format.logprobs)
        elif self._format.api == "messages":
            body = anthropic.message_body(self._call, answers[0], self._call_id)
        else:
            body = protocol.responses_body(self._call, answers[0], self._call_id, self._format.extra)
        return [to_json(body).encode()]


Writer = BodyWriter | protocol.ChatStream | protocol.ResponsesStream | anthropic.MessageStream


def make_writer(call: ModelCall, call_id: str, reply_format: protocol.ReplyFormat) -> Writer:
    """Return the writer of an answer in the form that the client asked for; `call_id` is unique in the session."""
    if not reply_format.stream:
        return BodyWriter(call, call_id, reply_format)
    if reply_format.api == "chat":
        return protocol.ChatStream(call, call_id, reply_format)
    if reply_format.api == "messages":
        return anthropic.MessageStream(call, call_id)
    return protocol.ResponsesStream(call, call_id, reply_format.extra)


class DelayedResponse:
    """An ASGI response that waits for the answer of a pending call.

    While it waits it sends what clients ignore, so that they do not time out: whitespace before a JSON body, an empty
    event in a stream. A client that disconnects all the same and retries is attached to the same call.
    """

    def __init__(
        self, session: Session, pending: list[PendingCall], reply_format: protocol.ReplyFormat, keep_alive_s: float
    ) -> None:
        self._pending, self._format, self._keep_alive_s = pending, reply_format, keep_alive_s
        self._folder = session.folder

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        disconnected = asyncio.ensure_future(wait_for_disconnect())
        for pending in self._pending:
            pending.connections += 1
            pending.was_connected = True
        try:
            await self._respond(disconnected, scope, receive, send)
        finally:
            for pending in self._pending:
                pending.connections -= 1
            disconnected.cancel()

    def _error(self) -> BaseException | None:
        """Return the error of the first call that has one."""
        errors = (pending.answer.exception() for pending in self._pending if pending.answer.done())
        return next((error for error in errors if error is not None), None)

    async def _respond(self, disconnected: asyncio.Future[None], scope: Any, receive: Any, send: Any) -> None:
        is_answered = await self._wait(disconnected)
        if not is_answered and disconnected.done():
            return
        error = self._error() if is_answered else None
        if isinstance(error, RequestError):
            body = anthropic.error_body(error) if self._format.api == "messages" else error.body
            await JSONResponse(body, error.status)(scope, receive, send)
            return

        # From here on the status is 200, whatever comes.
        first = self._pending[0]
        writer = make_writer(first.call, first.id, self._format)
        headers = [(b"content-type", writer.content_type.encode()), (b"cache-control", b"no-store")]
        if self._format.note:
            headers.append((b"x-cadre-note", self._format.note.encode("ascii", "replace")))
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def send_parts(parts: Iterable[bytes]) -> None:
            for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})

        await send_parts(writer.opening())
        while not is_answered:
            await send_parts([writer.keep_alive()])
            is_answered = await self._wait(disconnected)
            if not is_answered and disconnected.done():
                return
        if self._error() is not None:
            return  # the connection breaks off, and the client's retry gets the error
        parts = writer.closing([pending.answer.result() for pending in self._pending])
        if self._folder:
            parts = (part.replace(FOLDER.encode(), self._folder.encode()) for part in parts)
        await send_parts(parts)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        for pending in self._pending:
            pending.is_delivered = pending.is_delivered or not disconnected.done()

    async def _wait(self, disconnected: asyncio.Future[None]) -> bool:
        """Wait for the answers, a disconnect or the next sign of life. Returns True if there are all answers, or an
        error."""
        until = asyncio.get_running_loop().time() + self._keep_alive_s
        while unanswered := [pending.answer for pending in self._pending if not pending.answer.done()]:
            seconds = until - asyncio.get_running_loop().time()
            if seconds <= 0.0 or disconnected.done() or self._error() is not None:
                break
            futures: list[asyncio.Future[Any]] = [*unanswered, disconnected]
            await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not unanswered or self._error() is not None
