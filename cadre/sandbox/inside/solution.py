import socket
from typing import Any


def serve(job: dict[str, Any], peer: socket.socket | None) -> None:
    raise NotImplementedError
