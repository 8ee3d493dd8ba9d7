"""Constraints of calls on their answers: written into the prompt, checked afterwards."""

import socket

import pytest

from cadre.types import Message, Tool, ToolCall
from cadre_programs.calls import (
    ModelCall,
    RequestError,
    add_constraints_to_prompt,
    is_satisfied,
    merge_messages,
    validate_constraints,
)

USER = Message("user", "Go.")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD, SUB = Tool("add"), Tool("sub")
CALLED = Message("assistant", "", (ToolCall("1", "add", "{}"),))


def call(**demands) -> ModelCall:
    return ModelCall("r", (USER,), **demands)


def test_a_free_call_stays_as_it_is():
    assert add_constraints_to_prompt(call(tools=(ADD,))) == call(tools=(ADD,))


def test_demands_stand_at_the_end_of_the_system_message():
    constrained_call = add_constraints_to_prompt(ModelCall("r", (Message("system", "Be brief."), USER), schema=SCHEMA))
    assert constrained_call.messages[0].content.startswith("Be brief.\n\nAnswer with one JSON object")
    assert '"required": ["a"]' in constrained_call.messages[0].content
    assert "schema" not in add_constraints_to_prompt(call(schema={})).messages[0].content


@pytest.mark.parametrize(
    ("schema", "kind"),
    [({"type": "array"}, "value"), ({"type": ["object", "null"]}, "value"), ({"$ref": "#/x"}, "object")],
)
def test_a_schema_of_no_object_asks_for_none(schema, kind):
    assert f"Answer with one JSON {kind} and" in add_constraints_to_prompt(call(schema=schema)).messages[0].content


def test_a_named_tool_is_the_only_one_shown():
    constrained_call = add_constraints_to_prompt(call(tools=(ADD, SUB), choice="sub"))
    assert constrained_call.tools == (SUB,)
    assert "Call the tool sub now." in constrained_call.messages[0].content
    assert (
        "Call one of the tools now."
        in add_constraints_to_prompt(call(tools=(ADD, SUB), choice="required")).messages[0].content
    )


@pytest.mark.parametrize(
    ("demands", "message", "stored"),
    [
        ({}, Message("assistant", "x"), True),
        ({"schema": SCHEMA}, Message("assistant", '{"a": 1}'), True),
        ({"schema": SCHEMA}, Message("assistant", '{"a": "1"}'), False),
        ({"schema": SCHEMA}, Message("assistant", "a = 1"), False),
        ({"schema": SCHEMA}, Message("assistant", "[" * 50_000), False),
        ({"schema": SCHEMA}, CALLED, True),
        ({"schema": {}}, Message("assistant", "{}"), True),
        ({"schema": {}}, Message("assistant", "1"), False),
        ({"choice": "required"}, CALLED, True),
        ({"choice": "required"}, Message("assistant", "x"), False),
        ({"choice": "add"}, CALLED, True),
        ({"choice": "sub"}, CALLED, False),
    ],
)
def test_answers_are_checked(demands, message, stored):
    assert is_satisfied(call(tools=(ADD, SUB), **demands), message) is stored


def test_demands_that_no_answer_can_keep_are_refused():
    with pytest.raises(RequestError, match="none of the tools"):
        validate_constraints(call(choice="mul", tools=(ADD,)))
    with pytest.raises(RequestError, match="got required, and no tools"):
        validate_constraints(call(choice="required"))
    with pytest.raises(RequestError, match="JSON schema"):
        validate_constraints(call(schema={"type": 3}))
    with pytest.raises(RequestError, match="has 120,011 characters; expected at most 120,000"):
        validate_constraints(call(schema={"enum": ["x" * 119_998]}))


@pytest.mark.parametrize(("text", "stored"), [('{"a": "x"}', True), ('{"a": 1}', False)])
def test_a_pattern_of_another_language_demands_nothing(text, stored):
    result = call(schema={"properties": {"a": {"type": "string", "pattern": "^[[:"}}})
    validate_constraints(result)
    assert is_satisfied(result, Message("assistant", text)) is stored


def test_a_schema_is_never_looked_up_elsewhere():
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.1", 0))
        elsewhere.listen()
        elsewhere.settimeout(0.05)
        reference = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema"
        assert not is_satisfied(call(schema={"$ref": reference}), Message("assistant", "{}"))
        with pytest.raises(TimeoutError):
            elsewhere.accept()


@pytest.mark.parametrize(("step", "text"), [(0.1, "1" + "0" * 400), (0.5, "1e400")])
def test_a_number_beyond_all_bounds_is_no_answer(step, text):
    schema = {"type": "object", "properties": {"x": {"multipleOf": step}}}
    assert not is_satisfied(call(schema=schema), Message("assistant", f'{{"x": {text}}}'))


def test_two_texts_of_an_assistant_stay_apart():
    first, second = Message("assistant", "I plan."), Message("assistant", "I call.", CALLED.tool_calls)
    assert merge_messages([USER, first, second])[1] == Message("assistant", "I plan.\nI call.", CALLED.tool_calls)
    assert merge_messages([USER, first, CALLED])[1] == Message("assistant", "I plan.", CALLED.tool_calls)


def test_conversations_are_as_chat_templates_expect_them():
    message, two = (Message("assistant", "", (ToolCall(str(n), "add", "{}"),)) for n in range(2))
    arguments = [Message("system", "a"), Message("system", "b"), USER, Message("assistant", "x"), message, two]
    assert merge_messages([*arguments, Message("system", "c")]) == (
        Message("system", "a\n\nb"),
        USER,
        Message("assistant", "x", (*message.tool_calls, *two.tool_calls)),
        Message("user", "c"),
    )
