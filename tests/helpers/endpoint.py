"""An OpenAI-compatible endpoint of this process, for tests of remote team mates."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Endpoint(BaseHTTPRequestHandler):
    """Answers every chat completion with the last message, or with `reply`, and remembers what it was asked. It serves
    `echo` alone, with `statuses` first."""

    requests: list[dict] = []
    reply = ""
    statuses: list[int] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(body)
        message = {"role": "assistant", "content": body["messages"][-1]["content"]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        reply = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})
        status = self.statuses.pop(0) if self.statuses else 200
        self.send_response(status if body["model"] == "echo" else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write((self.reply or reply).encode())

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server with room for all connections of a batch: the kernel retries a rejected one a second later."""

    request_queue_size = 256


@contextmanager
def serving() -> Iterator[str]:
    """Run the endpoint; yield its url."""
    server = Server(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
