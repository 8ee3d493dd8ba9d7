"""Make OpenAI's client load everything once, before instances are forked. Standard library only.

The client imports its connections late, and builds the types of a response when the first one comes: three quarters of
the processor time of a short program. Two calls of each kind of client, to a server in this module, trigger both.
"""

import asyncio
import contextlib
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

TIMEOUT_S = 10.0
# What packages import at their first call, as it takes seconds: LiteLLM has a thousand modules.
LATE_IMPORTS = {"google.adk.models.lite_llm": "litellm", "dspy": "litellm"}
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


class FixedAnswers(BaseHTTPRequestHandler):
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
        """Print nothing."""


def warm_up() -> None:
    """Make both kinds of client call both interfaces, if the program has imported the client. Leaves no thread behind.
    Never fails: a version of the client that does not fit is left to load its modules in every instance."""
    for package, library in LATE_IMPORTS.items():
        if package in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(library)
    openai: Any = sys.modules.get("openai")
    if openai is None:
        return
    server = HTTPServer(("127.0.0.1", 0), FixedAnswers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        arguments = {"base_url": url, "api_key": "none", "max_retries": 0, "timeout": TIMEOUT_S}
        with contextlib.suppress(Exception):
            with openai.OpenAI(**arguments) as client:
                for call in calls(client):
                    call()
            asyncio.run(call_asynchronously(openai.AsyncOpenAI(**arguments)))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def call_asynchronously(client: Any) -> None:
    async with client:
        for call in calls(client):
            await call()


def calls(client: Any) -> Iterator[Any]:
    """Yield a call of each interface."""
    messages = [{"role": "user", "content": ""}]
    yield lambda: client.chat.completions.create(model="m", messages=messages)
    yield lambda: client.responses.create(model="m", input="")
