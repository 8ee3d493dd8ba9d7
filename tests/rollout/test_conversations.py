"""Turns by role and conversation."""

from cadre.rollout.conversations import last_turn, with_turns, words
from cadre.types import Message, Observation, Sample


def seen(conversation: str, text: str = "x") -> Observation:
    return Observation("r", (Message("user", text),), conversation=conversation)


def said(text: str, message: Message | None = None) -> Sample:
    return Sample("r", "p", text, (), (), (), "stop", 0, message)


def test_a_role_goes_on_in_each_of_its_conversations():
    previous = with_turns({}, {"r": seen("a", "1")}, {"r": said("one")})
    previous = with_turns(previous, {"r": seen("b", "2")}, {"r": said("two")})
    first, second = last_turn(previous, seen("a")), last_turn(previous, seen("b"))
    assert first is not None
    assert second is not None
    assert (first.messages[0].content, first.sample.text) == ("1", "one")
    assert second.sample.text == "two"
    assert last_turn(previous, seen("c")) is None


def test_equal_words_are_equal_whatever_else_differs():
    assert words({"r": said("a")}) == words({"r": Sample("r", "q", "a", (1,), (2,), (0.0,), "length", 3)})
    assert words({"r": said("a")}) != words({"r": said("a", Message("assistant", "a"))})
