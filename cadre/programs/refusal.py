"""Errors as OpenAI's interface words them, so that every client knows what to do with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KINDS = {401: "authentication_error", 404: "not_found_error", 410: "session_ended_error"}


@dataclass(eq=False)  # not frozen: whoever passes an exception on may set its traceback
class Refused(Exception):
    """A request that is not answered: `Refused(400, "messages: expected a list.", "messages")`.

    `status` is that of HTTP, `param` the field that is wrong. Clients try 408, 409, 429 and 5xx again, so none of them
    is used where that would be of no use.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def ended(why: str) -> Refused:
    """What a call gets after the end of its session."""
    return Refused(410, f"This session is over: {why}.", code="session_ended")
