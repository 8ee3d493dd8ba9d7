"""Sessions: one program that runs, the calls that it waits for, and the key that lets it in.

Everything here belongs to the endpoint's event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cadre.programs import refusal
from cadre.programs.calls import Answer, Call
from cadre.programs.refusal import Refused
from cadre.types import Message, Reward

MAX_HELD = 256
# Contents whose calls are counted, for each call that is kept.
COUNTED = 10


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
    calls: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _kept: OrderedDict[Held, None] = field(default_factory=OrderedDict)
    _waiting: list[Held] = field(default_factory=list)
    _uncounted: int = 0

    def attach(self, call: Call, again: bool) -> Held:
        """The call as it is held: a new one, or the one that the client has lost hold of and repeats. `again` says that
        the client calls it a repetition. Raises Refused where the session is over or holds too many."""
        if self.over is not None:
            raise self.over
        if self.models and call.role not in self.models:
            known = ", ".join(self.models)
            raise Refused(404, f"model: there is no {call.role[:80]!r}; expected {known}.", "model", "model_not_found")
        alike = self.held.get(call.content, [])
        lost = [held for held in alike if held.left]
        failed = [held for held in alike if held.failed]
        repeated = lost[:1] or (alike[-1:] if again and not failed else [])
        if repeated:
            return repeated[0]
        if self._full():
            raise Refused(429, f"This session waits for {MAX_HELD} answers; expected fewer at once. Ask again later.")
        if again and failed:
            self._let_go(failed[0])  # it is asked again as another call, once
        held = self._hold(call)
        self._forget(call.content)
        self.arrived(held)
        return held

    def _hold(self, call: Call) -> Held:
        held = Held(call, self._counted(call.content), asyncio.get_running_loop().create_future())
        held.answer.add_done_callback(
            lambda future: future.cancelled() or future.exception()
        )  # seen, if by nobody else
        self.held.setdefault(call.content, []).append(held)
        self._kept[held] = None
        self._waiting.append(held)
        return held

    def _full(self) -> bool:
        """Whether as many answers are waited for as may be. Which of them have come is looked at only then."""
        if len(self._waiting) >= MAX_HELD:
            self._waiting = [held for held in self._waiting if not held.answer.done()]
        return len(self._waiting) >= MAX_HELD

    def _counted(self, content: str) -> int:
        """How often this was asked before. What may have been asked too long ago to be known counts as if it had been,
        as often as anything that is known no more: no two calls have one name."""
        before = self.calls.get(content, self._uncounted)
        self.calls[content] = before + 1
        self.calls.move_to_end(content)
        while self.remembered is not None and len(self.calls) > COUNTED * self.remembered:
            self._uncounted = max(self._uncounted, self.calls.popitem(last=False)[1])
        return before

    def _forget(self, content: str) -> None:
        """Where not all are kept, let go of equal calls whose answers were delivered, as what comes again repeats the
        latest, and of the oldest that have been answered."""
        if self.remembered is None:
            return
        for held in [held for held in self.held[content] if held.delivered]:
            self._let_go(held)
        while len(self._kept) > self.remembered:
            oldest = next((held for held in self._kept if held.answer.done()), None)
            if oldest is None:
                return
            self._let_go(oldest)
        while len(self.stored) > self.remembered:
            del self.stored[next(iter(self.stored))]

    def _let_go(self, held: Held) -> None:
        del self._kept[held]
        alike = self.held[held.call.content]
        alike.remove(held)
        if not alike:
            del self.held[held.call.content]

    def end(self, why: str) -> None:
        """Refuse everything from here on, what is waited for included."""
        if self.over is not None:
            return
        self.over = refusal.ended(why)
        for held in self._waiting:
            if not held.answer.done():
                held.answer.set_exception(self.over)
        self.held, self.stored, self._waiting = {}, {}, []
        self._kept.clear()


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
