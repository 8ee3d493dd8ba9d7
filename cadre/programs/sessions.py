"""Sessions: one program that runs, the calls that it waits for, and the key that lets it in.

Everything here belongs to the endpoint's event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cadre.programs import refusal
from cadre.programs.calls import Answer, Call
from cadre.programs.refusal import Refused
from cadre.types import Message, Reward

MAX_HELD = 256


@dataclass(eq=False)
class Held:
    """A call that has come in: the `occurrence`-th of its content, from 0. Its answer may still be waited for.

    listeners   connections that wait for the answer now
    heard       whether there has been one yet
    delivered   whether the answer was sent to the end
    """

    call: Call
    occurrence: int
    answer: asyncio.Future[Answer]
    listeners: int = 0
    heard: bool = False
    delivered: bool = False

    @property
    def left(self) -> bool:
        """Whether the client has gone before it had the answer; it may ask again."""
        return self.heard and not self.listeners and not self.delivered and not self.failed

    @property
    def failed(self) -> bool:
        """Whether it could not be answered; asked again, it is another call."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is not None

    @property
    def name(self) -> str:
        """Unique in the session, and the same whenever the program is played again with the same answers."""
        return f"{self.call.content}{self.occurrence:04x}"


@dataclass(eq=False)
class Session:
    """What one key may do. `models` are the names that it may ask for, all where there are none.

    arrived     called with every call that is not a repeated one
    posted      called with every reward that the program posts, None where it may not
    remembered  how many calls are kept for those that come again, and responses to go on from; None for all
    """

    models: Sequence[str]
    arrived: Callable[[Held], None]
    posted: Callable[[Reward], None] | None = None
    key: str = field(default_factory=lambda: f"cadre-{secrets.token_urlsafe(24)}")
    remembered: int | None = None
    over: Refused | None = None
    held: dict[str, list[Held]] = field(default_factory=dict)
    stored: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def attach(self, call: Call, again: bool) -> Held:
        """The call as it is held: a new one, or the one that the client has lost hold of and repeats. `again` says that
        the client calls it a repetition. Raises Refused where the session is over or holds too many."""
        if self.over is not None:
            raise self.over
        if self.models and call.role not in self.models:
            known = ", ".join(self.models)
            raise Refused(404, f"model: there is no {call.role[:80]!r}; expected {known}.", "model", "model_not_found")
        alike = self.held.setdefault(call.content, [])
        lost = [held for held in alike if held.left]
        failed = [held for held in alike if held.failed]
        repeated = lost[:1] or (alike[-1:] if again and not failed else [])
        if repeated:
            return repeated[0]
        if again and failed:
            alike.remove(failed[0])  # it is asked again as another call, once
        if sum(not held.answer.done() for every in self.held.values() for held in every) >= MAX_HELD:
            raise Refused(429, f"This session waits for {MAX_HELD} answers; expected fewer at once. Ask again later.")
        held = Held(call, self.calls[call.content], asyncio.get_running_loop().create_future())
        held.answer.add_done_callback(
            lambda future: future.cancelled() or future.exception()
        )  # seen, if by nobody else
        alike.append(held)
        self.calls[call.content] += 1
        self._forget()
        self.arrived(held)
        return held

    def _forget(self) -> None:
        """Let go of the oldest calls, where not all are kept."""
        while self.remembered is not None and len(self.held) > self.remembered:
            oldest = next(iter(self.held))
            if any(not held.answer.done() for held in self.held[oldest]):
                return
            del self.held[oldest]
        while self.remembered is not None and len(self.stored) > self.remembered:
            del self.stored[next(iter(self.stored))]

    def end(self, why: str) -> None:
        """Refuse everything from here on, what is waited for included."""
        if self.over is not None:
            return
        self.over = refusal.ended(why)
        for held in (held for alike in self.held.values() for held in alike):
            if not held.answer.done():
                held.answer.set_exception(self.over)
        self.held, self.stored = {}, {}


class Sessions:
    """All sessions of an endpoint, by key. A key that has ended is remembered, so that it is told so."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}
        self._ended: dict[str, Refused] = {}

    def add(self, session: Session) -> Session:
        """Let the session's key in."""
        self._open[session.key] = session
        return session

    def remove(self, session: Session, why: str) -> None:
        """End a session."""
        session.end(why)
        if self._open.pop(session.key, None) is not None and session.over is not None:
            self._ended[session.key] = session.over
        while len(self._ended) > 100_000:
            del self._ended[next(iter(self._ended))]

    def of(self, key: str) -> Session:
        """The session of a key. Raises Refused where there is none."""
        if key in self._ended:
            raise self._ended[key]
        if key not in self._open:
            raise Refused(401, "The key is of no session here; expected the one that the program was given.")
        return self._open[key]
