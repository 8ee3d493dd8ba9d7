"""The form in which an answer is sent: a body in one piece, or the events of one of the three interfaces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from cadre_programs import anthropic, protocol
from cadre_programs.calls import Answer, ModelCall


class BodyWriter:
    """Writes a JSON body in one piece. JSON may begin with whitespace, which keeps the connection alive."""

    content_type = "application/json"

    def __init__(self, call: ModelCall, call_id: str, reply_format: protocol.ReplyFormat) -> None:
        self._call, self._call_id, self._format = call, call_id, reply_format

    def opening(self) -> Iterable[bytes]:
        return ()

    def keep_alive(self) -> bytes:
        return b" "

    def closing(self, answers: Sequence[Answer]) -> Iterable[bytes]:
        if self._format.api == "chat":
            body = protocol.chat_body(self._call, answers, self._call_id, self._format.logprobs)
        elif self._format.api == "messages":
            body = anthropic.message_body(self._call, answers[0], self._call_id)
        else:
            body = protocol.responses_body(self._call, answers[0], self._call_id, self._format.extra)
        return [json.dumps(body).encode()]


def make_writer(call: ModelCall, call_id: str, reply_format: protocol.ReplyFormat) -> protocol.ReplyWriter:
    """Return the writer of an answer in the form that the client asked for; `call_id` is unique in the session."""
    if not reply_format.stream:
        return BodyWriter(call, call_id, reply_format)
    if reply_format.api == "chat":
        return protocol.ChatStream(call, call_id, reply_format)
    if reply_format.api == "messages":
        return anthropic.MessageStream(call, call_id)
    return protocol.ResponsesStream(call, call_id, reply_format.extra)
