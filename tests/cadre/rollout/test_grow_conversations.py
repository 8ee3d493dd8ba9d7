"""The last turn of each role and conversation, and which joint actions are equal."""

from dataclasses import replace

from cadre.rollout.grow import Path, action_key
from cadre.types import Message, Observation, Sample


def seen(conversation: str, text: str = "x") -> Observation:
    return Observation("r", (Message("user", text),), conversation=conversation)


def said(text: str, message: Message | None = None) -> Sample:
    return Sample("r", "p", text, (), (), (), "stop", 0, message)


def test_a_role_goes_on_in_each_of_its_conversations():
    path = Path().extended({"r": seen("a", "1")}, {"r": said("one")}, 0, 1.0)
    path = path.extended({"r": seen("b", "2")}, {"r": said("two")}, 0, 1.0)
    first, second = path.previous_turn(seen("a")), path.previous_turn(seen("b"))
    assert first is not None
    assert second is not None
    assert (first.messages[0].content, first.sample.text) == ("1", "one")
    assert second.sample.text == "two"
    assert path.previous_turn(seen("c")) is None


def test_equal_words_that_ended_alike_are_equal_whatever_else_differs():
    twin = Sample("r", "q", "a", (1,), (2,), (0.0,), "stop", 3)
    assert action_key({"r": said("a")}) == action_key({"r": twin})
    assert action_key({"r": said("a")}) != action_key({"r": replace(twin, finish="length")})  # it may be told so
    assert action_key({"r": said("a")}) != action_key({"r": said("a", Message("assistant", "a"))})
