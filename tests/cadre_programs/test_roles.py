"""The role of a call: by model, agent, pattern or system prompt."""

import pytest

from cadre.errors import ConfigError
from cadre.types import Message, ToolCall
from cadre_programs.calls import ModelCall, number_tool_calls
from cadre_programs.roles import make_role_rules


def find(rules, model, system="", agent=""):
    messages = [Message("system", system)] if system else []
    return rules.find(ModelCall(model, (*messages, Message("user", "Go.")), agent=agent))


@pytest.mark.parametrize(
    ("models", "call", "role"),
    [
        ({}, {"model": "lead"}, "lead"),
        ({}, {"model": "helper-3"}, "helper"),
        ({}, {"model": "helper_b"}, "helper"),
        ({}, {"model": "helper7"}, "helper"),
        ({}, {"model": "helpers"}, None),
        ({"gpt-4o": "lead"}, {"model": "gpt-4o"}, "lead"),
        ({"gpt-*": "helper", "gpt-4o": "lead"}, {"model": "gpt-4o"}, "lead"),
        ({"gpt-*": "helper"}, {"model": "gpt-5-mini"}, "helper"),
        ({"worker-[0-9]": "helper"}, {"model": "worker-4"}, "helper"),
        ({"gpt-4o": "helper"}, {"model": "gpt-4o", "agent": "lead"}, "helper"),
        ({"agent:lead*": "lead", "gpt-4o": "helper"}, {"model": "gpt-4o", "agent": "lead-1"}, "lead"),
        ({"system:You plan": "lead", "gpt-4o": "helper"}, {"model": "gpt-4o", "system": "You plan trips."}, "lead"),
        ({"system:You plan": "lead", "gpt-4o": "helper"}, {"model": "gpt-4o", "system": "You help."}, "helper"),
        ({"system:You * trips*": "lead"}, {"model": "gpt-4o", "system": "You plan trips."}, "lead"),
        ({"system:You * trips": "lead"}, {"model": "gpt-4o", "system": "Hello.\nYou plan trips."}, "lead"),
        ({"system:plan * trips": "lead"}, {"model": "gpt-4o", "system": "You plan trips."}, None),
        ({}, {"model": "gpt-4o"}, None),
    ],
)
def test_a_rule_gives_a_call_its_role(models, call, role):
    assert find(make_role_rules(["lead", "helper"], models), **call) == role


def test_a_role_may_be_a_pattern_and_the_longest_name_is_meant():
    assert find(make_role_rules(["lead", "sub-*"], {}), "sub-7") == "sub-*"
    assert find(make_role_rules(["help", "help-desk"], {}), "help-desk-2") == "help-desk"


def test_a_rule_for_no_role_is_rejected():
    with pytest.raises(ConfigError, match=r"settings.models.gpt-4o: got 'led'; expected one of the roles lead, helper"):
        make_role_rules(["lead", "helper"], {"gpt-4o": "led"})


def test_ids_of_tool_calls_are_numbered_and_keep_their_numbers():
    def conversation(*ids):
        calls = tuple(ToolCall(call_id, "go", "{}") for call_id in ids)
        return [Message("assistant", "", calls), *(Message("tool", "x", tool_call_id=name) for name in reversed(ids))]

    first, names = number_tool_calls(conversation("q", "r"))
    second, _ = number_tool_calls(conversation("s", "t"))
    longer, _ = number_tool_calls([*conversation("q", "r"), *conversation("z")])
    assert first == second
    assert longer[: len(first)] == first
    assert names == ("q", "r")
    # The results in another order are another conversation.
    calls, *results = conversation("q", "r")
    assert number_tool_calls([calls, *reversed(results)])[0] != first
