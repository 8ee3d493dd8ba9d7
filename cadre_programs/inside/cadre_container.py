"""Runs one instance of a program in a container. Standard library only, Linux only.

Run as `python3 cadre_container.py SOCKET function FILE.py:NAME` or `... SOCKET command WORD ...`. The order, as of
`cadre_fork_server.py`, is the standard input. The container has no network: connections to a port of this process are
passed on to SOCKET, where the endpoint is, and URLs with the port 0 in the order's environment get that port. The end
of the program is printed as one JSON object:

    {"status": 0, "result": "{\\"value\\": 1}", "output": "the end of what it printed", "errors": ""}
"""

import contextlib
import importlib
import json
import os
import socket
import sys
import threading
from typing import Any

fork_server: Any = importlib.import_module("cadre_fork_server")
CACHE_DESCRIPTOR = 199
MAX_RESULT_BYTES, MAX_OUTPUT, MAX_ERRORS = 16 << 20, 1 << 20, 4000


def pump(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes from one socket to the other, and its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def forward(server: socket.socket, path: str) -> None:
    """Connect every client of the server with the socket at `path`."""
    while True:
        client, _ = server.accept()
        endpoint = socket.socket(socket.AF_UNIX)
        endpoint.connect(path)
        for pair in ((client, endpoint), (endpoint, client)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


def end_with(hello: socket.socket) -> None:
    """End this process when the endpoint closes the connection, as it does when Cadre is killed."""
    with contextlib.suppress(OSError):
        hello.recv(1)
    os._exit(1)


def read_end(path: str, length: int) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - length))
        return file.read(length).decode(errors="replace")
    return ""


def main() -> None:
    path, kind, *words = sys.argv[1:]
    sys.argv[1:] = []
    order: dict[str, Any] = json.load(sys.stdin)
    # Processes that outlive their parents become children of this one, so that they are seen.
    fork_server.libc.prctl(fork_server.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    fork_server.cache_descriptor = CACHE_DESCRIPTOR
    # The first connection tells the endpoint the id of this process on the host.
    hello = socket.socket(socket.AF_UNIX)
    hello.connect(path)
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    order["environment"] = {
        name: value.replace("http://127.0.0.1:0", f"http://127.0.0.1:{port}")
        for name, value in order["environment"].items()
    }
    for name in ("folder", "control", "caches", "temporary"):
        os.makedirs(order[name], exist_ok=True)

    def run(order: dict[str, Any]) -> int:
        # `isolate` has set the variables and made the files its output before the program's file is imported.
        importlib.import_module("cadre_steady").make_steady_by_variables()
        prepare = fork_server.prepare_function(words[0]) if kind == "function" else None
        return (prepare or fork_server.prepare_command(words))(order)

    pid = os.fork()
    if pid == 0:
        for connection in (hello, server):
            connection.close()
        fork_server.run_instance(order, run)
    threading.Thread(target=forward, args=(server, path), daemon=True).start()
    threading.Thread(target=end_with, args=(hello,), daemon=True).start()
    while (ended := os.wait())[0] != pid:
        pass
    result = os.path.join(order["control"], "result.json")
    report = {
        "status": os.waitstatus_to_exitcode(ended[1]),
        "result": read_end(result, MAX_RESULT_BYTES) if os.path.exists(result) else None,
        "output": read_end(os.path.join(order["control"], "output.txt"), MAX_OUTPUT),
        "errors": read_end(os.path.join(order["control"], "errors.txt"), MAX_ERRORS),
    }
    sys.stdout.write(json.dumps(report))
    sys.stdout.flush()
    # What the program left running ends with the container.
    os._exit(0)


if __name__ == "__main__":
    main()
