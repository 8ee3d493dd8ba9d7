"""One run of a program, from its start to where it waits for us: recorded answers are given by what is asked.

Calls are told apart by their content and how often it came before, never by their order, which differs from run to run
in a program that asks for several things at once. Everything here is the endpoint's loop's.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadre.programs import standstill
from cadre.programs.calls import Answer, Call
from cadre.programs.failures import Diverged, ProgramFailed, Stuck
from cadre.programs.posted import added
from cadre.programs.running import Ended, Running
from cadre.programs.sessions import Held, Session, Sessions
from cadre.programs.settings import Limits
from cadre.types import Message, Reward

# Turns of the loop that take in what was sent before.
TURNS = 8
# Seconds between looks: at first, later, and where nothing is waited for.
SHORT, LONG, IDLE = 0.001, 0.02, 0.25


@dataclass(frozen=True)
class Asked:
    """A call of a program, by what it is and how often it came before: `Asked(call, 0)`."""

    call: Call
    occurrence: int

    @property
    def name(self) -> tuple[str, int]:
        return self.call.content, self.occurrence


@dataclass(frozen=True)
class Exchange:
    """A call by a role and its answer, as an instance that starts again is given it."""

    role: str
    asked: Asked
    answer: Answer
    conversation: str = ""


@dataclass(frozen=True)
class Standing:
    """Where a program stands: what it waits for, in an order that follows from what it is; or how it ended."""

    asked: tuple[Asked, ...]
    ended: Ended | None = None


class Instance:
    """Owns a session and the program that runs in it, from its making to `close`."""

    def __init__(self, sessions: Sessions, roles: Mapping[str, str], limits: Limits, past: Sequence[Exchange]) -> None:
        self._sessions, self._roles, self._limits = sessions, list(roles), limits
        self._recorded = {exchange.asked.name: exchange for exchange in past}
        self._waiting: dict[tuple[str, int], Held] = {}
        self._given: list[Held] = []
        self._changed = asyncio.Event()
        self._calls = 0
        self._patience: asyncio.Timeout | None = None
        self.paid, self.posts = Reward(), 0
        self.session = sessions.add(Session(self._roles, self._arrived, self._posted))
        self.running: Running | None = None

    def run(self, running: Running) -> None:
        """The program has been started."""
        self.running = running
        running.ended.add_done_callback(lambda ended: self._changed.set())

    async def standing(self) -> Standing:
        """Wait until the program is blocked in calls, with all its threads, or over. Raises Stuck where it asks for
        nothing new for too long, and closes it."""
        try:
            async with asyncio.timeout(self._limits.seconds) as self._patience:
                await self._still()
        except TimeoutError:
            self.close("it asked for nothing for too long")
            seconds = f"{self._limits.seconds:g} seconds"
            raise Stuck(f"The program neither asked for anything nor ended within {seconds}.") from None
        finally:
            self._patience = None
        assert self.running is not None
        if self.running.ended.done():
            return Standing((), self.running.ended.result())
        return Standing(tuple(self._in_order()))

    async def stepped(self, said: Sequence[Exchange]) -> Standing:
        """Give the program answers that it waits for, and wait where it comes to stand. Raises ProgramFailed where it
        was ended meanwhile, as for another call too many."""
        if self.session.over is not None:
            raise ProgramFailed(self.session.over.message)
        for exchange in said:
            self._give(self._waiting.pop(self._name(exchange.asked)), exchange.answer)
        return await self.standing()

    def _name(self, asked: Asked) -> tuple[str, int]:
        """Of the call, or, in a program that asks for something else each time, of the first by the same model. Raises
        Diverged where none asks for that model."""
        if asked.name in self._waiting:
            return asked.name
        waiting = self._in_order()
        for other in waiting:
            if other.call.role == asked.call.role:
                return other.name
        raise Diverged(f"The program, started again, asks for something else.\n{difference([asked], waiting)}")

    def follows(self, wanted: Standing) -> None:
        """Raises Diverged where the program, having come to a standstill, does not stand there."""
        known = {asked.name for asked in wanted.asked}
        new = [asked for asked in self._in_order() if asked.name not in known]
        missing = [exchange.asked for exchange in self._recorded.values()]
        missing += [asked for asked in wanted.asked if asked.name not in self._waiting]
        if missing or new:
            raise Diverged(f"The program, started again, asks for something else.\n{difference(missing, new)}")

    def close(self, why: str) -> None:
        """Refuse its calls and end it."""
        self._sessions.remove(self.session, why)
        if self.running is not None:
            self.running.kill()

    def _arrived(self, held: Held) -> None:
        self._changed.set()
        self._calls += 1
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + self._limits.seconds)
        if self._calls > self._limits.calls:
            raise_in(self, f"it made more than {self._limits.calls} calls")
        asked = Asked(held.call, held.occurrence)
        exchange = self._recorded.pop(asked.name, None)
        if exchange is None:
            self._waiting[asked.name] = held
        else:
            self._give(held, exchange.answer)

    def _give(self, held: Held, answer: Answer) -> None:
        held.answer.set_result(answer.named(held.name))
        self._given.append(held)

    def _posted(self, reward: Reward) -> None:
        self.paid, self.posts = added(self.paid, reward), self.posts + 1

    def _in_order(self) -> list[Asked]:
        waiting = (Asked(held.call, held.occurrence) for held in self._waiting.values() if not held.left)
        return sorted(waiting, key=lambda asked: (self._roles.index(asked.call.role), *asked.name))

    async def _still(self) -> None:
        pause = SHORT
        while not self._over():
            if self._in_order() and await self._quiet():
                return
            if not self._waiting:
                pause = IDLE
            if await self._woken(pause):
                pause = SHORT
            pause = min(LONG, 2 * pause)

    async def _woken(self, seconds: float) -> bool:
        """Whether something has come in within the time."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                return await self._changed.wait()
        except TimeoutError:
            return False

    def _over(self) -> bool:
        assert self.running is not None
        if self.session.over is not None:
            raise ProgramFailed(self.session.over.message)
        if self.running.processes() > self._limits.processes:
            self.close(f"it had more than {self._limits.processes} processes")
        return self.running.ended.done()

    async def _quiet(self) -> bool:
        """Whether every thread sleeps, and none does anything while all that was sent is taken in."""
        assert self.running is not None
        self._given = [held for held in self._given if not held.delivered and not held.left]
        if self._given:
            return False
        before, calls = self.running.threads(), self._calls
        if not standstill.sleeps(before):
            return False
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self._calls == calls and self.running.threads() == before and not self.running.ended.done()


def raise_in(instance: Instance, why: str) -> None:
    """End an instance because of a call that it makes, which is told why."""
    instance.close(why)
    assert instance.session.over is not None
    raise instance.session.over


def difference(missing: Sequence[Asked], new: Sequence[Asked]) -> str:
    """How two runs of a program differ in what they ask, line by line for the first call of each."""
    before = _lines(missing[0]) if missing else ["(nothing)"]
    after = _lines(new[0]) if new else ["(nothing)"]
    changed = difflib.unified_diff(before, after, "the first time", "the second time", lineterm="", n=1)
    return "\n".join(line[:300] for line in list(changed)[:40])


def _lines(asked: Asked) -> list[str]:
    call = asked.call
    told = [f"{message.role}: {line}" for message in call.messages for line in shown(message).splitlines() or [""]]
    rest: dict[str, Any] = {"tools": [tool.name for tool in call.tools], "choice": call.choice, "schema": call.schema}
    rest |= {"stop": call.stop, "max_tokens": call.max_tokens}
    return [f"model: {call.role}", *told, *(f"{name}: {value}" for name, value in rest.items() if value)]


def shown(message: Message) -> str:
    """A message as text, with the calls of tools that it makes."""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(filter(None, [message.content, *calls]))
