"""Has OpenAI's client load what it loads with its first calls, once, before instances are forked.

It imports its connections late and builds the types of an answer when the first one comes: three quarters of the
processor time of a short program. Two calls of each kind of client to a server of this module's own do both. Of the
standard library alone.
"""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

PATIENCE = 10.0
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
MESSAGE = {"role": "assistant", "content": "", "refusal": None}
CHAT = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop", "logprobs": None}],
    "usage": USAGE,
}
PART = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
RESPONSE = {
    "id": "resp_0",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "status": "completed",
    "output": [{"id": "msg_0", "type": "message", "role": "assistant", "status": "completed", "content": [PART]}],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


class Canned(BaseHTTPRequestHandler):
    """Answers every call at once and closes the connection."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps(RESPONSE if self.path.endswith("responses") else CHAT).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def warm_up() -> None:
    """Does nothing where the program has not imported the client, and never fails: a client of another age is left to
    load what it likes in every instance. Leaves no thread behind."""
    openai: Any = sys.modules.get("openai")
    if openai is None:
        return
    with serving() as url, contextlib.suppress(Exception):
        told = {"base_url": url, "api_key": "none", "max_retries": 0, "timeout": PATIENCE}
        with openai.OpenAI(**told) as client:
            for call in calls(client):
                call()
        asyncio.run(asynchronously(openai.AsyncOpenAI(**told)))


async def asynchronously(client: Any) -> None:
    async with client:
        for call in calls(client):
            await call()


def calls(client: Any) -> Iterator[Any]:
    """A call of either interface."""
    asked = [{"role": "user", "content": ""}]
    yield lambda: client.chat.completions.create(model="m", messages=asked)
    yield lambda: client.responses.create(model="m", input="")


@contextlib.contextmanager
def serving() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Canned)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
