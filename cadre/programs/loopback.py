"""Sockets that this machine alone can reach."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def listening(port: int) -> socket.socket:
    """A socket that listens on the port, on any free one for 0. Raises OSError where it is taken."""
    # The protocol is named because asyncio turns Nagle's algorithm off for sockets of TCP by name alone: under it every
    # answer on a connection that is kept waits 40 ms for the client's acknowledgement.
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
        made.listen(1024)
    except OSError:
        made.close()
        raise
    return made
