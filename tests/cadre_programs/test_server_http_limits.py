"""Connections that do not ask, or ask without end, are closed; too many are refused; the others are answered."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.answering import Answering, answering
from cadre import sockets
from cadre.cli import app
from cadre.errors import EngineError
from cadre.types import Message
from cadre_programs.server import Server
from tests.cadre.cli.calling import call
from tests.helpers import forked

SECONDS = 0.2


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """A server with short limits and few connections."""
    for name in ("HEAD_S", "BODY_S", "READ_S"):
        monkeypatch.setattr(sockets, name, SECONDS)
    monkeypatch.setattr(sockets, "MAX_CONNECTIONS", 8)
    with answering(lambda call: Message("assistant", "x")) as created:
        yield created


def connected(endpoint: Answering) -> socket.socket:
    port = int(endpoint.server.url.rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.settimeout(10)
    return connection


def read(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes."""
    full = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            full += part
    return full


def models(endpoint: Answering, more: str = "") -> bytes:
    return f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {endpoint.session.key}\r\n{more}\r\n".encode()


def post(endpoint: Answering, more: str) -> bytes:
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    return f"{head}authorization: Bearer {endpoint.session.key}\r\n{more}\r\n".encode()


def is_answered(endpoint: Answering) -> bool:
    with connected(endpoint) as asking:
        asking.sendall(models(endpoint, "connection: close\r\n"))
        return read(asking).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_does_not_come(endpoint: Answering, sent: bytes) -> None:
    with connected(endpoint) as asking:
        began = time.monotonic()
        asking.sendall(sent)
        assert read(asking).startswith(b"HTTP/1.1 408 ")
    assert SECONDS * 0.9 <= time.monotonic() - began < 5


def test_a_head_that_trickles_gets_no_more_time(endpoint: Answering) -> None:
    with connected(endpoint) as asking:
        asking.sendall(b"GET /v1/models HTTP/1.1\r\n")
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 5:
                asking.sendall(b"x: y\r\n")
                time.sleep(SECONDS / 6)
                asking.settimeout(0.001)
                with contextlib.suppress(TimeoutError):
                    if asking.recv(100):
                        break
    assert time.monotonic() - began < 3


def test_a_second_head_that_does_not_come(endpoint: Answering) -> None:
    with connected(endpoint) as asking:
        asking.sendall(models(endpoint))
        first = asking.recv(65_536)
        assert first.startswith(b"HTTP/1.1 200")
        asking.sendall(b"GET /v1/mo")
        assert b"408" in read(asking)


def test_a_half_head_behind_a_whole_one(endpoint: Answering) -> None:
    with connected(endpoint) as asking:
        asking.sendall(models(endpoint) + b"GET /v1/mo")
        full = read(asking)
    assert full.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in full


@pytest.mark.parametrize("how", ["content-length: 100\r\n", "transfer-encoding: chunked\r\n"])
def test_a_body_that_does_not_come(endpoint: Answering, how: str) -> None:
    with connected(endpoint) as asking:
        began = time.monotonic()
        asking.sendall(post(endpoint, how))
        assert b"200" not in read(asking)
    assert time.monotonic() - began < 5
    assert is_answered(endpoint)


def test_a_body_without_end(endpoint: Answering) -> None:
    began = time.monotonic()
    with connected(endpoint) as asking, contextlib.suppress(OSError):
        asking.sendall(post(endpoint, "transfer-encoding: chunked\r\n"))
        while time.monotonic() - began < 30:
            asking.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    assert time.monotonic() - began < 7
    assert is_answered(endpoint)


def test_connections_are_counted(endpoint: Answering) -> None:
    """Those that are there go on being answered; one more is told why it is not."""
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(endpoint)) for _ in range(8)]
        idle[0].sendall(models(endpoint))
        assert idle[0].recv(65_536).startswith(b"HTTP/1.1 200")
        with connected(endpoint) as asking:
            asking.sendall(models(endpoint))
            assert read(asking).startswith(b"HTTP/1.1 503 Service Unavailable")
        with connected(endpoint) as silent:
            assert read(silent) == b""
    for _ in range(100):
        if is_answered(endpoint):
            return
        time.sleep(0.05)
    raise AssertionError("what is closed counts no more")


def test_half_requests_lock_nobody_out(endpoint: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection holds half a head that may take much longer; a new one replaces the oldest of them."""
    monkeypatch.setattr(sockets, "HEAD_S", 60.0)
    monkeypatch.setattr(sockets, "REJECTED_S", SECONDS)
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(connected(endpoint)) for _ in range(8)]
        for half in halves:
            half.sendall(b"GET /v1/mo")
        assert not is_answered(endpoint)  # they have only just come
        time.sleep(1.5 * SECONDS)
        assert is_answered(endpoint)
        assert read(halves[0]) == b""
        assert is_answered(endpoint)  # in the place of the one that was answered
        halves[7].sendall(models(endpoint, "connection: close\r\n").removeprefix(b"GET /v1/mo"))
        assert read(halves[7]).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("how", ["content-length: 100\r\n", "transfer-encoding: chunked\r\n"])
def test_a_body_that_nobody_reads_holds_no_connection(
    endpoint: Answering, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "BODY_S", 60.0)
    monkeypatch.setattr(sockets, "REJECTED_S", SECONDS)
    with connected(endpoint) as asking:
        asking.sendall(models(endpoint, how))
        assert read(asking).startswith(b"HTTP/1.1 200")


def test_an_invalid_body_behind_its_answer_is_no_traceback(
    endpoint: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(endpoint) as asking:
        asking.sendall(models(endpoint, "transfer-encoding: chunked\r\n"))
        assert asking.recv(15) == b"HTTP/1.1 200 OK"
        asking.sendall(b"no size of a chunk\r\n")
        read(asking)
    assert "Traceback" not in caplog.text


def test_a_flood_of_connections(endpoint: Answering) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(endpoint))
        time.sleep(2 * SECONDS)
        assert is_answered(endpoint)


def test_an_answer_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is longer than what the system holds of it for a client that does not read."""
    monkeypatch.setattr(sockets, "READ_S", SECONDS)
    lost = []
    initial = sockets.LimitedProtocol.connection_lost
    monkeypatch.setattr(
        sockets.LimitedProtocol, "connection_lost", lambda self, error: (lost.append(1), initial(self, error))[1]
    )
    body = b'{"model": "planner", "messages": [{"role": "user", "content": "?"}]}'
    long = Message("assistant", "x" * 20_000_000)
    with answering(lambda call: long) as endpoint, connected(endpoint) as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        asking.sendall(post(endpoint, f"content-type: application/json\r\ncontent-length: {len(body)}\r\n") + body)
        assert asking.recv(15) == b"HTTP/1.1 200 OK"
        began = time.monotonic()
        while not lost and time.monotonic() - began < 30:
            time.sleep(0.02)
    assert lost


def test_http_1_0_is_answered_and_closed(endpoint: Answering) -> None:
    with connected(endpoint) as asking:
        asking.sendall(models(endpoint).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert read(asking).startswith(b"HTTP/1.1 200")


def test_a_long_head_is_refused(endpoint: Answering) -> None:
    with connected(endpoint) as asking, contextlib.suppress(OSError):
        asking.sendall(b"GET /v1/models HTTP/1.1\r\nx: " + b"y" * 1_000_000)
        assert read(asking).startswith(b"HTTP/1.1 400")
    assert is_answered(endpoint)


def test_too_few_descriptors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "raise_descriptor_limit", lambda: 24)
    with pytest.raises(EngineError, match=r"descriptors: .*ulimit -n"):
        Server()


def test_the_command_line_names_too_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "raise_descriptor_limit", lambda: 32)
    result = call("list")
    assert result.code == 2
    assert re.fullmatch(r"error: descriptors: this process may have .* ulimit -n .*\n", result.err)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["train", "plan-path"], ["list"]])
def test_a_process_of_few_descriptors(command: list[str], tmp_path: Path) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)); {forked.CADRE}"
    code, printed = forked.run(command, tmp_path, limited)
    assert code == 2
    assert printed.startswith("error: descriptors: this process may have 32 files and connections open at once")
    assert len(printed.splitlines()) == 1
