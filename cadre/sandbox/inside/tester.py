import socket
from typing import Any


def test(job: dict[str, Any], peer: socket.socket | None) -> None:
    raise NotImplementedError


def write_verdict(nonce: str, results: list[Any]) -> None:
    raise NotImplementedError
