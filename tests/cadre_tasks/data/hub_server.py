"""A server of this process that stands for the hub: one data set, one commit, requests that may break off."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


@dataclass
class Hub:
    """What it serves: files by branch and path. `broken` paths are sent by half once.

    requests  every request, as (method, path, range)
    commit  of the main branch; what others held is among the files by their commit
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    commit: str = COMMIT

    def metadata(self, branch: str) -> dict[str, object]:
        siblings = [
            {"rfilename": name, "size": len(data), "blobId": blob(data)} | large(name, data)
            for name, data in self.files[branch].items()
        ]
        return {"id": "some/set", "sha": branch if len(branch) == 40 else self.commit, "siblings": siblings}

    def bytes_of(self, revision: str, name: str) -> bytes | None:
        """Return a file of a commit that has it, otherwise of any branch."""
        revision_files = self.files.get(revision, {})
        return next((files[name] for files in (revision_files, *reversed(self.files.values())) if name in files), None)


def blob(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def large(name: str, data: bytes) -> dict[str, object]:
    """Return the hub's description of a file that is stored beside the repository."""
    if not name.endswith(".parquet"):
        return {}
    return {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range", "")))
        if self.path.startswith("/api/datasets/"):
            branch = self.path.partition("?")[0].rpartition("/revision/")[2].replace("%2F", "/")
            branch = "main" if branch == self.hub.commit else branch
            is_known = branch in self.hub.files
            self.send(
                200 if is_known else 404,
                json.dumps(self.hub.metadata(branch) if is_known else {"error": "none"}).encode(),
            )
        elif "/resolve/" in self.path:
            revision, _, name = self.path.partition("/resolve/")[2].partition("/")
            self.file(revision, name, body)
        else:
            self.send(200, b"")

    def file(self, revision: str, name: str, body: bool) -> None:
        data = self.hub.bytes_of(revision, name)
        if data is None:
            self.send(404, b"")
            return
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        more = {"ETag": f'"{blob(data)}"', "X-Repo-Commit": revision, "Accept-Ranges": "bytes"}
        if begin:
            more["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        part = data[begin:]
        if body and name in self.hub.broken:
            self.hub.broken.remove(name)
            self.send(200, part, more, len(part) // 2)
        else:
            self.send(206 if begin else 200, part, more, len(part) if body else 0)

    def send(self, code: int, data: bytes, more: dict[str, str] | None = None, sent: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data if sent is None else data[:sent])
        if sent is not None and sent < len(data) and self.command == "GET":
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(files: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """Run the hub; yield its url."""
    hub = Hub(files=files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
