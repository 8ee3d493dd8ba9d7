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


def test_every_question_counts_its_own_deaths() -> None:
    member = Scripted([*([True] * IN_A_ROW), False] * 3, most=100)
    assert [member.ask(str) for _ in range(3)] == ["6", "11", "16"]


def test_answers_to_others_do_not_hide_a_question_that_kills() -> None:
    member = Scripted([False] * 100, most=100)

    def kills(handle: Any) -> Any:
        member.ask(str)
        raise Died("killed")

    with pytest.raises(EngineError, match="died 6 times in a row"):
        member.ask(kills)
    assert member.made == 1 + IN_A_ROW


def test_a_question_counts_deaths_after_which_another_had_it_replaced() -> None:
    member = Scripted([False] * 100, most=100)

    def kills(handle: Any) -> Any:
        member.replace(handle, Died("killed"), 0)
        raise Died("killed")

    with pytest.raises(EngineError, match="died 6 times in a row"):
        member.ask(kills)


def test_too_many_in_all() -> None:
    member = Scripted([True, False] * 9, most=2)
    assert [member.ask(str) for _ in range(2)] == ["2", "3"]
    with pytest.raises(EngineError, match=r"died 3 times, .* Expected at most 2 \(cluster\.replaced\)"):
        member.ask(str)
