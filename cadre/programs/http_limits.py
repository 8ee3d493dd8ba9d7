"""HTTP connections that end: a limit of time for every head and body, and of how many connections there are.

uvicorn limits how long an idle connection is kept, and the size of a head. What this adds for its h11 protocol: a
client that sends half a head, or a body without end, or does not read what it is sent, is closed; one connection too
many gets a 503. What it leaves out: how long an answer may take, which is up to the application.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from cadre.errors import EngineError
from cadre.file_limits import raise_descriptor_limit, too_few_descriptors

# Seconds. Clients are on this machine, so that only one that means no good, or has stopped, is slower.
HEAD_S = 10.0
BODY_S = 60.0
READ_S = 60.0
# How long a connection that is refused is kept, so that the client reads why.
REFUSED_S = 1.0
MOST_CONNECTIONS = 4_096
# Descriptors of this process that are left to everything else.
RESERVED = 24
LEAST_CONNECTIONS = 4

Phase = Literal["head", "body"]


def connection_limit() -> int:
    """How many connections a server of this process may have at once. Raises EngineError where that is hardly one."""
    most = raise_descriptor_limit()
    free = most - len(os.listdir("/dev/fd")) - RESERVED
    if free < LEAST_CONNECTIONS:
        raise EngineError(too_few_descriptors())
    return min(MOST_CONNECTIONS, free * 3 // 4 + 1)


class LimitedProtocol(H11Protocol):
    """One connection. `most` are those of its server together, itself included."""

    most = MOST_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._phase: Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._refused = len(self.connections) > self.most
        if len(self.connections) > self.most + LEAST_CONNECTIONS:
            transport.abort()  # those that are told why take descriptors too
        elif self._refused:
            self._timer = self.loop.call_later(REFUSED_S, transport.abort)
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._answer(503, f"This server has {self.most} connections, as many as it may; ask again later.")
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        """Give what the client has to send next its time, which more of it does not make longer."""
        phase = self._awaited()
        if phase == self._phase:
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if phase is not None:
            self._timer = self.loop.call_later(HEAD_S if phase == "head" else BODY_S, self._late, phase)

    def _awaited(self) -> Phase | None:
        """What the client has begun and not ended; None while it is our turn, and between two requests."""
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        return "head" if self.conn.their_state is h11.IDLE and begun else None

    def _late(self, phase: Phase) -> None:
        if phase == "head":
            self._answer(408, f"No whole head of a request came within {HEAD_S:g} s.")
        else:
            self.transport.abort()

    def _answer(self, status: int, why: str) -> None:
        """Say why the connection is closed, and close it when the client has had the time to read that."""
        if self.transport.is_closing():
            return
        body = why.encode()
        reason = {408: "Request Timeout", 503: "Service Unavailable"}[status]
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


def protocol(most: int) -> Any:
    """The protocol of the connections of one server, at most so many."""
    return type("Protocol", (LimitedProtocol,), {"most": most})
