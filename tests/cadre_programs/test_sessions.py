"""Answered calls that a long session keeps."""

import asyncio
from collections.abc import Callable

import pytest

from cadre.types import Message
from cadre_programs import sessions
from cadre_programs.calls import Answer, ModelCall, RequestError
from cadre_programs.sessions import COUNTS_PER_CALL, MAX_PENDING, PendingCall, Session, Sessions

REMEMBERED = 300


def call(text: str = "Go.") -> ModelCall:
    return ModelCall("coder", (Message("user", text),))


def said(pending: PendingCall) -> None:
    pending.answer.set_result(Answer(Message("assistant", "Said."), "stop", 3, 2))
    pending.was_connected = pending.is_delivered = True


def refused(pending: PendingCall) -> None:
    pending.answer.set_exception(RequestError(503, "Busy."))
    pending.was_connected = True


def kept(session: Session) -> int:
    return sum(len(alike) for alike in session.calls.values())


def run(work: Callable[[], None]) -> None:
    async def within() -> None:
        work()

    asyncio.run(within())


def test_of_equal_calls_the_latest_is_kept() -> None:
    """Mistake: every one of them is, and looked through with each that comes."""

    def ask() -> None:
        session = Session((), said, max_kept=REMEMBERED)
        names = {session.attach(call(), False)[0].id for _ in range(1000)}
        assert len(names) == 1000
        assert kept(session) == 1
        (last,) = session.attach(call(), False)
        assert session.attach(call(), True) == [last]
        assert session.attach(call(), False) != [last]

    run(ask)


@pytest.mark.parametrize("answered", [said, refused])
def test_no_more_are_kept_than_is_said(answered: Callable[[PendingCall], None]) -> None:
    """The limit holds for answered and unanswered, equal and unequal calls."""

    def ask() -> None:
        session = Session((), answered, max_kept=REMEMBERED)
        for number in range(1000):
            session.attach(call(f"Go to {number}."), False)
            session.attach(call(), False)
        assert kept(session) <= REMEMBERED

    run(ask)


def test_what_waits_is_kept_and_refused_at_the_end() -> None:
    def ask() -> None:
        session = Session((), lambda pending: None, max_kept=10)
        waiting = [session.attach(call(f"Wait for {number}."), False)[0] for number in range(MAX_PENDING - 1)]
        session.on_call = said
        for number in range(100):
            session.attach(call(f"Go to {number}."), False)
        assert kept(session) == MAX_PENDING
        session.on_call = lambda pending: None
        waiting += session.attach(call(), False)
        with pytest.raises(RequestError, match="waits for 256 answers"):
            session.attach(call("More."), False)
        said(waiting.pop())
        session.attach(call("More."), False)
        session.end("its task is done")
        assert all(isinstance(pending.answer.exception(), RequestError) for pending in waiting)

    run(ask)


def test_no_two_calls_have_one_name() -> None:
    """Mistake: what is counted no more begins at 0 again, and is answered with the same noise under the same name."""

    def ask() -> None:
        session = Session((), said, max_kept=4)
        texts = [f"Go to {number % 50}." for number in range(200)]
        assert len({session.attach(call(text), False)[0].id for text in texts}) == 200
        assert len(session.counts) <= COUNTS_PER_CALL * 4

    run(ask)


def test_a_refused_repetition_can_be_made_again() -> None:
    """Mistake: it is given what an equal call was answered that came before."""

    def ask() -> None:
        came: list[PendingCall] = []
        session = Session((), came.append)
        (first,), (failed,) = session.attach(call(), False), session.attach(call(), False)
        said(first)
        refused(failed)
        for number in range(MAX_PENDING):
            session.attach(call(f"Wait for {number}."), False)
        with pytest.raises(RequestError, match="waits for"):
            session.attach(call(), True)
        said(came[-1])
        assert session.attach(call(), True) == [came[-1]] != [first]

    run(ask)


def test_a_repeated_request_for_several_has_several_calls() -> None:
    """Mistake: a call that was abandoned stands for both completions."""

    def ask() -> None:
        session = Session((), lambda pending: None)
        first, second = session.attach(call(), False, 2)
        for pending in (first, second):
            pending.was_connected = True
        assert session.attach(call(), True, 2) == [first, second]
        refused(first)
        again = session.attach(call(), True, 2)
        assert again[0] is second
        assert again[1] not in (first, second)
        assert again[1].request == again

    run(ask)


def test_a_call_may_come_before_the_start_of_its_program_is_noted(monkeypatch):
    """A client that was made at import calls so; its instance is known by its connection alone."""
    monkeypatch.setattr(sessions, "LOCATE_PAUSES_S", (0.0, 0.0))
    session_table = Sessions()
    session = session_table.add(Session((), lambda pending: None))
    attempts = iter((None, None, session.key))
    session_table.shared_key, session_table.locate = "shared", lambda port: next(attempts)
    assert asyncio.run(session_table.find("shared", 4000)) is session
    session_table.locate = lambda port: None
    with pytest.raises(RequestError, match="calls a model while it is imported"):
        asyncio.run(session_table.find("shared", 4000))


@pytest.mark.parametrize(
    ("status", "max_kept", "remaining"), [(400, REMEMBERED, 0), (503, REMEMBERED, 1), (400, None, 1)]
)
def test_a_served_call_that_cannot_be_answered_is_not_kept(status: int, max_kept: int | None, remaining: int) -> None:
    """Mistake: thousands of prompts that are too long stay in memory."""

    async def ask() -> None:
        session = Session((), lambda pending: None, max_kept=max_kept)
        (pending,) = session.attach(call(), False)
        pending.answer.set_exception(RequestError(status, "No."))
        await asyncio.sleep(0)
        assert kept(session) == remaining
        (again,) = session.attach(call(), True)
        assert (again is pending) == (status == 400 and remaining == 1)

    asyncio.run(ask())
