"""Sockets that this machine's programs may connect to: listening, and limits of connections that uvicorn lacks.

Needs uvicorn (the extras `view` and `programs`); those who serve import it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from cadre.errors import EngineError
from cadre.file_limits import raise_descriptor_limit, too_few_descriptors

HOST = "127.0.0.1"
# Seconds. Clients are on this machine, so only a broken or hostile one is slower.
HEAD_S = 10.0
BODY_S = 60.0
READ_S = 60.0
# How long a rejected connection stays open, so that the client can read why.
REJECTED_S = 1.0
MAX_CONNECTIONS = 4_096
MIN_CONNECTIONS = 4
# Descriptors of this process that are kept for everything else.
RESERVED_DESCRIPTORS = 24

Phase = Literal["head", "body", "unread body"]


def listen(port: int) -> socket.socket:
    """Return a socket on the loopback interface that listens on the port, on any free one for 0. Raises OSError."""
    # The protocol is named because asyncio turns Nagle's algorithm off for sockets of TCP by name alone: under it every
    # answer on a connection that is kept waits 40 ms for the client's acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen(1024)
    except OSError:
        listening.close()
        raise
    return listening


def connection_limit() -> int:
    """Return how many connections a server of this process may have at once. Raises EngineError if too few."""
    free = raise_descriptor_limit() - len(os.listdir("/dev/fd")) - RESERVED_DESCRIPTORS
    if free < MIN_CONNECTIONS:
        raise EngineError(too_few_descriptors())
    return min(MAX_CONNECTIONS, free * 3 // 4 + 1)


def limited_protocol(max_connections: int) -> Any:
    """Return the protocol class of one server's connections."""
    return type("Protocol", (LimitedProtocol,), {"max_connections": max_connections})


class LimitedProtocol(H11Protocol):
    """One connection, with time limits that uvicorn does not have.

    A client that sends half a head, a body without end or after its answer, or does not read that, is closed. One
    connection too many takes the place of the oldest that has sent no whole head for REJECTED_S, or gets a 503. How
    long an answer may take is up to the application.
    """

    max_connections = MAX_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._phase: Phase | None = None
        self._phase_began = 0.0
        self._phase_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.max_connections:
            self._close_oldest_half()
        self._is_rejected = len(self.connections) > self.max_connections
        if len(self.connections) > self.max_connections + MIN_CONNECTIONS:
            transport.abort()  # rejected connections take descriptors too, so only a few get the 503
        elif self._is_rejected:
            self._phase_timer = self.loop.call_later(REJECTED_S, transport.abort)
        else:
            self._limit_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._phase_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            self._send_error(
                503, f"This server has {self.max_connections} connections, as many as it may; ask again later."
            )
            return
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # what came is invalid, and its answer has been sent already
            self.transport.close()
        self._limit_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _close_oldest_half(self) -> None:
        """Close the connection that has been without a whole head longest, so that half requests lock nobody out."""
        limit = self.loop.time() - REJECTED_S
        connections = [other for other in self.connections if isinstance(other, LimitedProtocol)]
        halves = [half for half in connections if half._phase == "head" and half._phase_began < limit]
        if halves:
            oldest = min(halves, key=lambda half: half._phase_began)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def _limit_phase(self) -> None:
        """Start the timer of the part that the client has to send next; more bytes of it do not prolong it."""
        # No phase while it is the server's turn, and between two requests.
        phase: Phase | None = None
        if self.conn.their_state is h11.SEND_BODY:
            phase = "unread body" if self.cycle is not None and self.cycle.response_complete else "body"
        elif self.conn.their_state is h11.IDLE and (self.cycle is None or bool(self.conn.trailing_data[0])):
            phase = "head"
        if phase == self._phase:
            return
        self._phase, self._phase_began = phase, self.loop.time()
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None
        if phase == "head":
            message = f"No whole head of a request came within {HEAD_S:g} s."
            self._phase_timer = self.loop.call_later(HEAD_S, self._send_error, 408, message)
        elif phase == "body":
            self._phase_timer = self.loop.call_later(BODY_S, self.transport.abort)
        elif phase == "unread body":  # the client may read its answer first
            self._phase_timer = self.loop.call_later(REJECTED_S, self.transport.close)

    def _send_error(self, status: int, message: str) -> None:
        """Send an error and close the connection."""
        if self.transport.is_closing():
            return
        body = message.encode()
        reason = {408: "Request Timeout", 503: "Service Unavailable"}[status]
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
