"""Sessions of the endpoint: the key that lets a running program in, and the calls that it waits for.

Everything here runs in the endpoint's event loop.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cadre.types import Message, Reward
from cadre_programs.calls import Answer, ModelCall, RequestError

MAX_PENDING = 256
# Contents whose occurrences are counted, for each call that is kept.
COUNTS_PER_CALL = 10
MAX_ENDED_KEYS = 100_000
# Seconds between attempts to find the program that has a connection: it may call before its start has been noted, and
# the system does not read its table of connections at one moment.
LOCATE_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4)
# What models read in place of the folder of an instance.
FOLDER = "/srv/program"


@dataclass(eq=False)
class PendingCall:
    """A call that has come in, and the future of its answer.

    occurrence      how many equal calls the session had before, from 0
    connections     connections that wait for the answer now
    was_connected   whether there has been one yet
    is_delivered    whether the answer was sent to the end
    request         the calls of the request that it belongs to, itself included: more than one with `n`
    """

    call: ModelCall
    occurrence: int
    answer: asyncio.Future[Answer]
    request: Sequence[PendingCall] = ()
    connections: int = 0
    was_connected: bool = False
    is_delivered: bool = False

    @property
    def is_abandoned(self) -> bool:
        """True if the client disconnected before it had the answer; it may send the call again."""
        return self.was_connected and not self.connections and not self.is_delivered and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """True if the call was answered with an error; sent again, it counts as another call."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is not None

    @property
    def is_being_delivered(self) -> bool:
        """True if its request has all answers, and the client is there that has not read them to the end."""
        has_all = all(other.answer.done() for other in self.request)
        return has_all and not self.is_delivered and not self.is_abandoned

    @property
    def id(self) -> str:
        """An id that is unique in the session, and the same in each replay of the program with the same answers."""
        return f"{self.call.content}{self.occurrence:04x}"


@dataclass(eq=False)
class Session:
    """The calls made with one key.

    models      names that are listed, and may be called if `accepts` is None; any if empty
    on_call     receives every call that is not a repetition
    on_reward   receives rewards that the program posts; None where it may not
    accepts     returns the role of a call, None for one that is refused
    embeddings  the URL that requests for embeddings are passed on to, "" to refuse them
    folder      the folder of the program, whose name differs with every run: calls have `FOLDER` in its place
    masks       patterns of what else differs, in requests as they are sent, each with the text in its place
    max_kept    how many answered calls are kept for repetitions, and responses to continue from; None for all
    end_error   the error that every call gets once the session has ended
    advice      how a call's name, {0}, is mapped to a role, {1}
    refusals    warnings about requests that were refused, the first of each kind
    responses   the conversation up to each response of `/v1/responses`, by its id
    """

    models: Sequence[str]
    on_call: Callable[[PendingCall], None]
    on_reward: Callable[[Reward], None] | None = None
    key: str = field(default_factory=lambda: f"cadre-{secrets.token_urlsafe(24)}")
    accepts: Callable[[ModelCall], str | None] | None = None
    embeddings: str = ""
    folder: str = ""
    masks: Mapping[re.Pattern[str], str] = field(default_factory=dict)
    max_kept: int | None = None
    end_error: RequestError | None = None
    advice: str = (
        "settings.models={{'{0}': {1}}}. If it is not to be trained, as a judge, give it a role of its own with a "
        "frozen policy: team.policies.NAME.frozen=true."
    )
    calls: dict[str, list[PendingCall]] = field(default_factory=dict)  # by content
    refusals: list[str] = field(default_factory=list)
    responses: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    counts: OrderedDict[str, int] = field(default_factory=OrderedDict)  # by content, the least recent first
    _in_order: OrderedDict[PendingCall, None] = field(default_factory=OrderedDict)
    _unanswered: list[PendingCall] = field(default_factory=list)
    _forgotten_count: int = 0

    def attach(self, call: ModelCall, is_retry: bool, count: int = 1) -> list[PendingCall]:
        """Return the pending calls of a request for `count` completions: new ones, or those that the client repeats.

        A request repeats equal calls that were abandoned, or, if the client marks it as a retry (`is_retry`), the
        latest equal ones. Raises RequestError if the session has ended, has no such model, or waits for too many
        answers.
        """
        if self.end_error is not None:
            raise self.end_error
        if not self.has_model(call):
            agent = f" (agent {call.agent[:80]!r})" if call.agent else ""
            message = (
                f"model: there is no {call.role[:80]!r}{agent}; expected {', '.join(self.models)}. Map it to a role: "
                f"{self.advice.format(call.role[:80], self.models[-1])}"
            )
            raise RequestError(404, message, "model", "model_not_found")
        equal_calls = self.calls.get(call.content, [])
        repeated = [pending for pending in equal_calls if pending.is_abandoned][:count]
        # One that was refused would be refused again: a retry gets the refusal.
        errors = {item: item.answer.exception() for item in equal_calls if item.has_failed}
        failed = [item for item, error in errors.items() if getattr(error, "status", 500) >= 500]
        if is_retry and not repeated and not failed:
            repeated = equal_calls[-count:]
        new_count = count - len(repeated)
        # Answered calls are sorted out only when the list is full, so that a call costs no scan.
        if len(self._unanswered) + new_count > MAX_PENDING:
            self._unanswered = [pending for pending in self._unanswered if not pending.answer.done()]
        if new_count and len(self._unanswered) + new_count > MAX_PENDING:
            raise RequestError(
                429, f"This session waits for {MAX_PENDING} answers; expected fewer at once. Ask again later."
            )
        for pending in failed[:new_count] if is_retry else ():
            self._remove(pending)  # a retry makes as many new calls as have failed
        request = [*repeated, *(self._add(call) for _ in range(new_count))]
        for pending in request:
            pending.request = request
        return request

    def _add(self, call: ModelCall) -> PendingCall:
        """Return a new pending call."""
        pending = PendingCall(call, self._count(call.content), asyncio.get_running_loop().create_future())

        def forget_invalid(future: asyncio.Future[Answer]) -> None:
            """Keep no call of a server that can never be answered, as it may be long."""
            # Without a reader of the error, asyncio would log it when the last connection is gone.
            error = None if future.cancelled() else future.exception()
            is_invalid = isinstance(error, RequestError) and error.status < 500
            if is_invalid and self.max_kept is not None and pending in self._in_order:
                self._remove(pending)
                self._unanswered = [other for other in self._unanswered if not other.answer.done()]

        pending.answer.add_done_callback(forget_invalid)
        self.calls.setdefault(call.content, []).append(pending)
        self._in_order[pending] = None
        self._unanswered.append(pending)
        self._remove_old(call.content)
        self.on_call(pending)
        return pending

    def has_model(self, call: ModelCall) -> bool:
        """Return True if some role answers the call."""
        return self.accepts(call) is not None if self.accepts else not self.models or call.role in self.models

    def end(self, reason: str) -> None:
        """Answer all pending and future calls with an error."""
        if self.end_error is not None:
            return
        self.end_error = RequestError(410, f"This session is over: {reason}.", code="session_ended")
        for pending in self._unanswered:
            if not pending.answer.done():
                pending.answer.set_exception(self.end_error)
        self.calls, self.responses, self._unanswered = {}, {}, []
        self._in_order.clear()

    def _count(self, content: str) -> int:
        """Return how many calls of this content there were before, and count this one.

        A content whose count was dropped continues at the highest count that was ever dropped, so that no two calls
        have one id.
        """
        count = self.counts.get(content, self._forgotten_count)
        self.counts[content] = count + 1
        self.counts.move_to_end(content)
        while self.max_kept is not None and len(self.counts) > COUNTS_PER_CALL * self.max_kept:
            self._forgotten_count = max(self._forgotten_count, self.counts.popitem(last=False)[1])
        return count

    def _remove_old(self, content: str) -> None:
        """Keep `max_kept` calls and responses: drop delivered calls of this content first, then the oldest answered."""
        if self.max_kept is None:
            return
        for pending in [pending for pending in self.calls[content] if pending.is_delivered]:
            self._remove(pending)
        while len(self._in_order) > self.max_kept:
            oldest = next((pending for pending in self._in_order if pending.answer.done()), None)
            if oldest is None:
                return
            self._remove(oldest)
        while len(self.responses) > self.max_kept:
            del self.responses[next(iter(self.responses))]

    def _remove(self, pending: PendingCall) -> None:
        del self._in_order[pending]
        equal_calls = self.calls[pending.call.content]
        equal_calls.remove(pending)
        if not equal_calls:
            del self.calls[pending.call.content]


class Sessions:
    """The sessions of an endpoint by key. Ended keys are kept, so that their calls get the reason of the end.

    `locate` returns the key of the program that has a connection, by its port, for clients that a program made while it
    was imported: they have the key `shared_key`, whichever instance calls.
    """

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}
        self._ended: dict[str, RequestError] = {}
        self.shared_key = ""
        self.locate: Callable[[int], str | None] = lambda port: None

    def add(self, session: Session) -> Session:
        self._open[session.key] = session
        return session

    def remove(self, session: Session, reason: str) -> None:
        """End a session."""
        session.end(reason)
        if self._open.pop(session.key, None) is not None and session.end_error is not None:
            self._ended[session.key] = session.end_error
        while len(self._ended) > MAX_ENDED_KEYS:
            del self._ended[next(iter(self._ended))]

    async def find(self, key: str, port: int = 0) -> Session:
        """Return the session of a key, and of a connection's port if the key is shared. Raises RequestError if there is
        none."""
        if key and key == self.shared_key:
            located = self.locate(port)
            for pause in LOCATE_PAUSES_S:
                if located is not None:
                    break
                await asyncio.sleep(pause)
                located = self.locate(port)
            if located is None:
                raise RequestError(
                    401,
                    "The program calls a model while it is imported, or after its end. Move the call into its "
                    "function.",
                )
            key = located
        if key in self._ended:
            raise self._ended[key]
        if key not in self._open:
            raise RequestError(401, "The key is of no session here; expected the one that the program was given.")
        return self._open[key]
