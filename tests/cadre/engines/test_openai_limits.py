"""A remote endpoint that never ends an answer: by its bytes, once unpacked too, and by its time."""

import asyncio
import gzip
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from cadre.engines import openai as remote
from cadre.engines.openai import OpenAISampler
from cadre.errors import EngineError
from cadre.types import Message, Request, Sampling

ended = Event()


class Endless(BaseHTTPRequestHandler):
    """Answers in one of several ways that have no end; `how` is the name of the model."""

    how = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        if self.how == "packed":
            body = gzip.compress(b" " * (4 << 20))
            self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.end_headers()
        with suppress(OSError):
            while not ended.is_set():
                self.wfile.write(b" " * (1 if self.how == "slow" else 1 << 16))
                time.sleep(0.02 if self.how == "slow" else 0)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@contextmanager
def serving(how: str) -> Iterator[str]:
    Endless.how = how
    ended.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("how", "why"),
    [("long", "more than 1 MiB"), ("packed", "more than 1 MiB"), ("slow", "did not answer .* within 1 s")],
)
def test_an_answer_without_end(how: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.setattr(remote, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(remote, "ANSWER_S", 1.0 if how == "slow" else 60.0)
    request = Request("guess", "far", (Message("user", "x"),), 2, Sampling(), key=3)
    with serving(how) as url, pytest.raises(EngineError, match=f"{why}") as raised:
        asyncio.run(OpenAISampler("x", url, "NO_SUCH_KEY").sample(request))
    assert url in str(raised.value)
