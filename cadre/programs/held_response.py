"""Sending an answer that may come in minutes: the connection is kept alive with what every client reads over.

Ahead of a JSON body that is whitespace, in a stream an event that says nothing. Clients that give up all the same and
ask again are attached to the call that they made before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from starlette.responses import JSONResponse

from cadre.programs import chat, responses
from cadre.programs.calls import Answer, Envelope
from cadre.programs.refusal import Refused
from cadre.programs.sessions import Held

# Seconds: how long an error can still get a status of its own, and between signs of life.
PATIENCE = 10.0


class Writer(Protocol):
    """How an answer is written, one for each form that it may be asked for in."""

    kind: str

    def opening(self) -> Iterable[bytes]: ...
    def waiting(self) -> bytes: ...
    def closing(self, answer: Answer) -> Iterable[bytes]: ...


class Whole:
    """A JSON body, after as much whitespace as the wait was long."""

    kind = "application/json"

    def __init__(self, held: Held, envelope: Envelope) -> None:
        self._held, self._envelope = held, envelope

    def opening(self) -> Iterable[bytes]:
        return ()

    def waiting(self) -> bytes:
        return b" "

    def closing(self, answer: Answer) -> Iterable[bytes]:
        form = chat.whole if self._envelope.api == "chat" else responses.whole
        yield json.dumps(form(self._held.call, answer, self._held.name, self._envelope.extra)).encode()


def writer_of(held: Held, envelope: Envelope) -> Writer:
    """What writes the answer in the form of the envelope."""
    if not envelope.stream:
        return Whole(held, envelope)
    if envelope.api == "chat":
        return chat.Stream(held.call, held.name, envelope.usage)
    return responses.Stream(held.call, held.name, envelope.extra)


class HeldResponse:
    """An ASGI response: the answer to a held call, once it is there."""

    def __init__(self, held: Held, envelope: Envelope, patience: float | None = None) -> None:
        self._held, self._envelope, self._patience = held, envelope, PATIENCE if patience is None else patience

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._listening(receive) as gone:
            answered = await self._answered(gone)
            if not answered and gone.done():
                return
            error = self._held.answer.exception() if answered else None
            if isinstance(error, Refused):
                await JSONResponse(error.body, error.status)(scope, receive, send)
            else:
                await self._write(answered, gone, send)

    async def _write(self, answered: bool, gone: asyncio.Future[None], send: Any) -> None:
        writer = writer_of(self._held, self._envelope)
        headers = [(b"content-type", writer.kind.encode()), (b"cache-control", b"no-store")]
        if self._envelope.note:
            headers.append((b"x-cadre-note", self._envelope.note.encode("ascii", "replace")))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _say(send, writer.opening())
        while not answered:
            await _say(send, [writer.waiting()])
            answered = await self._answered(gone)
            if not answered and gone.done():
                return
        if self._held.answer.exception() is not None:
            return  # too late for a status: the connection breaks off, and the client's next try is told why
        await _say(send, writer.closing(self._held.answer.result()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self._held.delivered = self._held.delivered or not gone.done()

    async def _answered(self, gone: asyncio.Future[None]) -> bool:
        """Whether there is an answer, after waiting for a while."""
        if not self._held.answer.done():
            both: list[asyncio.Future[Any]] = [self._held.answer, gone]
            await asyncio.wait(both, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
        return self._held.answer.done()

    @contextmanager
    def _listening(self, receive: Any) -> Iterator[asyncio.Future[None]]:
        """Within it a connection waits for the call; gives what is done once the client has gone."""
        gone = asyncio.ensure_future(_disconnected(receive))
        self._held.listeners += 1
        self._held.heard = True
        try:
            yield gone
        finally:
            self._held.listeners -= 1
            gone.cancel()


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _say(send: Any, parts: Iterable[bytes]) -> None:
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
