"""Frames on a unix socket: a length, a JSON object, and file descriptors with the first byte. Both ends are trusted."""

import json
import os
import socket
import struct
from typing import Any

HEADER = struct.Struct("!I")
MAX_DESCRIPTORS = 16


def pack(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def send(channel: socket.socket, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
    """Send one frame, blocking. Raises OSError if the other end is closed."""
    data = pack(message)
    sent = socket.send_fds(channel, [data], descriptors) if descriptors else 0
    if sent < len(data):
        channel.sendall(data[sent:])


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Wait for one frame and return it with its descriptors; None if the other end has closed."""
    # The descriptors arrive with the first byte, so the first read must make room for them.
    data, descriptors, _, _ = socket.recv_fds(channel, HEADER.size, MAX_DESCRIPTORS)
    if not data:
        return None
    data += read_exactly(channel, HEADER.size - len(data))
    (length,) = HEADER.unpack(data)
    return json.loads(read_exactly(channel, length)), descriptors


def read_exactly(channel: socket.socket, count: int) -> bytes:
    """Return `count` bytes. Raises EOFError if the other end closes first."""
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(count - len(parts))
        if not part:
            raise EOFError("the other end closed in the middle of a frame")
        parts += part
    return bytes(parts)


def read_file(descriptor: int) -> bytes:
    """Return the content of an open file, regardless of its offset."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
