"""The bench of agent programs: every tutorial is there, its roles have rules, and answers are drawn as it is asked."""

import ast
import json

import pytest

import program_divergence as bench
from cadre.types import Message, Request, Sampling, Tool
from cadre_programs.roles import make_role_rules

NAMES = [name for name, program in bench.PROGRAMS.items() if isinstance(program, bench.Tutorial)]


def test_every_tutorial_is_there_and_has_rules_for_its_roles():
    files = {path.name for path in bench.TUTORIALS.glob("*.py")} - {"score.py"}
    assert files == {bench.PROGRAMS[name].file for name in NAMES}
    for name in NAMES:
        program = bench.PROGRAMS[name]
        functions = ast.parse((bench.TUTORIALS / program.file).read_text()).body
        assert "main" in [node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert set(make_role_rules(program.roles, program.models).rules.values()) == set(program.roles)


@pytest.mark.parametrize(
    ("system", "tools", "text"),
    [
        (f'{bench.SCHEMA}{{"const": 7}} Now.', (), "7"),
        ("", (), "59"),
    ],
)
def test_answers_are_drawn_as_it_is_asked(system, tools, text):
    request = Request("a", "p", (Message("system", system), Message("user", "Go.")), 1, Sampling(), 0, tools=tools)
    assert bench.said(request, 0, ["59"]) == {"text": text}


def test_calls_of_tools_have_arguments_of_their_kind():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "word": {"type": "string"}}}
    request = Request("a", "p", (Message("user", "Go."),), 8, Sampling(), 0, tools=(Tool("look", "", schema),))
    drawn = [bench.said(request, number, ["59"]) for number in range(8)]
    calls = [json.loads(one["message"].tool_calls[0].arguments) for one in drawn if "message" in one]
    assert calls
    assert all(isinstance(call["n"], int) and call["word"] == "59" for call in calls)


def test_a_call_is_written_as_a_model_does_and_json_as_it_is():
    assert bench.as_answer({"add": {"a": 1}}) == '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert bench.as_answer({"answer": "59"}) == '{"answer": "59"}'
