"""How often an actor that dies is replaced."""

from typing import Any

import pytest

from cadre.cluster.member import IN_A_ROW, Died, Member
from cadre.errors import EngineError

pytest.importorskip("ray")


class Scripted(Member):
    """Actors are numbers; the asked one dies where `dies` says so."""

    def __init__(self, dies: list[bool], most: int) -> None:
        self.dies, self.made = iter(dies), 0
        super().__init__(int, (), {}, most)

    def answer(self, handle: Any, work: Any) -> Any:
        if next(self.dies):
            raise Died("killed")
        return work(handle)

    def _made(self) -> tuple[Any, Any]:
        self.made += 1
        return self.made, None

    def _got(self, reference: Any) -> Any:
        return reference


def test_what_kills_everybody_who_is_asked_is_given_up() -> None:
    member = Scripted([True] * 100, most=100)
    with pytest.raises(
        EngineError, match=r"an? int died 6 times in a row, the last time by: killed\. What it is asked"
    ):
        member.ask(str)
    assert member.made == 1 + IN_A_ROW


def test_an_answer_between_starts_the_count_again() -> None:
    member = Scripted([*([True] * IN_A_ROW), False] * 3, most=100)
    assert [member.ask(str) for _ in range(3)] == ["6", "11", "16"]


def test_too_many_in_all() -> None:
    member = Scripted([True, False] * 9, most=2)
    assert [member.ask(str) for _ in range(2)] == ["2", "3"]
    with pytest.raises(EngineError, match=r"died 3 times, .* Expected at most 2 \(cluster\.replaced\)"):
        member.ask(str)
