"""An endpoint whose answers come from a function: what a model would say, without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cadre.types import Message, Reward
from cadre_programs.calls import Answer, ModelCall
from cadre_programs.server import Server
from cadre_programs.sessions import PendingCall, Session


@dataclass
class Answering:
    """A session of a server, open to tests: what came in, and what is to be answered."""

    server: Server
    session: Session
    came: list[PendingCall] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.server.url}/v1"

    @property
    def calls(self) -> list[ModelCall]:
        return [pending.call for pending in self.came]

    def answer(self, index: int, message: Message) -> None:
        """Answer a call that waits."""
        asyncio.run_coroutine_threadsafe(_resolve(self.came[index], message), self.server.loop).result()

    def end(self, why: str = "its task is done") -> None:
        self.server.submit(_end(self.server, self.session, why)).result()


async def _resolve(pending: PendingCall, message: Message) -> None:
    pending.answer.set_result(Answer(message, "stop", 3, 2))


async def _end(server: Server, session: Session, why: str) -> None:
    server.sessions.remove(session, why)


@contextmanager
def answering(
    says: Callable[[ModelCall], Message | None],
    models: Sequence[str] = ("planner", "coder"),
    server: Server | None = None,
) -> Iterator[Answering]:
    """A session in which `says` answers every call at once, or leaves it waiting with None."""
    running = server or Server()
    sessions: list[Answering] = []

    def arrived(pending: PendingCall) -> None:
        sessions[0].came.append(pending)
        message = says(pending.call)
        if message is not None:
            pending.answer.set_result(Answer(message, "stop", 3, 2))

    session = Session(models, arrived, lambda reward: sessions[0].rewards.append(reward))
    sessions.append(Answering(running, session))

    async def add() -> None:
        running.sessions.add(session)

    running.submit(add()).result()
    try:
        yield sessions[0]
    finally:
        if server is None:
            running.close()
