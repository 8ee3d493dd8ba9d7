"""A tiny MCP server with a state, over stdio (`python mcp_server.py`) and HTTP, on the standard library alone."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

NUMBER = {"type": "object", "properties": {"number": {"type": "integer", "maximum": 99}}, "required": ["number"]}
NOTHING = {"type": "object", "properties": {}}
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOLS = {"add": NUMBER, "total": NOTHING, "fail": NOTHING, "sleep": NOTHING, "die": NOTHING, "picture": NOTHING}
TOOLS |= {"find": QUERY}


class McpServer:
    """The state of one server: a total that `add` changes."""

    def __init__(self) -> None:
        self.total = 0

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the response to a request; None for a notification."""
        if "id" not in message:
            return None
        response = {"jsonrpc": "2.0", "id": message["id"]}
        params = message.get("params") or {}
        match message["method"]:
            case "initialize":
                information = {"name": "totals", "version": "1"}
                version = params["protocolVersion"]
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": information}
            case "tools/list":  # in two pages
                names = list(TOOLS)[:2] if not params.get("cursor") else list(TOOLS)[2:]
                result = {"tools": [{"name": name, "description": "é", "inputSchema": TOOLS[name]} for name in names]}
                result |= {"nextCursor": "more"} if "add" in names else {}
            case "tools/call":
                result = self.call(params["name"], params.get("arguments") or {})
            case _:
                return {**response, "error": {"code": -32601, "message": "Method not found"}}
        return {**response, "result": result}

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == "die":
            os._exit(1)
        if name == "sleep":
            time.sleep(1.0)
        if name == "picture":
            return {"content": [{"type": "image", "data": "AA==", "mimeType": "image/png"}]}
        if name == "find":
            return {"content": [{"type": "text", "text": f"found {arguments['query']}\n\nsecond"}]}
        self.total += arguments.get("number", 0)
        return {"content": [{"type": "text", "text": f"é {self.total}"}], "isError": name == "fail"}


@contextmanager
def http_server() -> Iterator[str]:
    """Serve over HTTP within the block; yields the address. All connections share a state."""
    server = McpServer()

    class McpHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            response = server.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = b"" if response is None else json.dumps(response).encode()
            self.send_response(200 if body else 202)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_error(405)

        def log_message(self, *_: Any) -> None: ...

    web = ThreadingHTTPServer(("127.0.0.1", 0), McpHandler)
    Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{web.server_port}/mcp"
    finally:
        web.shutdown()
        web.server_close()


def main() -> None:
    server = McpServer()
    for line in sys.stdin:
        response = server.answer(json.loads(line))
        if response is not None:
            print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
