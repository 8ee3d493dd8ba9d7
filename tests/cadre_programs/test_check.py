"""The check of a program: whether a second start makes the same requests, and how they differ."""

import asyncio
import json

import pytest

from cadre.envs.spec import EnvSpec
from cadre.types import Message, Tool
from cadre_programs import instances
from cadre_programs.calls import ModelCall, ProgramCall, is_satisfied
from cadre_programs.check import TOOL_CALLS, _draw_answer, examine
from cadre_programs.processes import ProgramDiverged
from tests.helpers.programs import AGENTS, ROLES


def report(tmp_path, name, **settings):
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"word": word, "program": name}) + "\n" for word in ("fox", "owl"))
    )
    arguments = {"run": f"{AGENTS}:run", "roles": ROLES, "tasks": str(tmp_path / "tasks.jsonl"), "held_out": 0.0}
    return asyncio.run(examine(EnvSpec("program", {**arguments, **settings})))


def test_a_program_that_asks_for_the_same(tmp_path):
    message = report(tmp_path, "relay")
    assert message.broken == ()
    assert message.passed[0] == "2 of 2 tasks, played again with the same answers, asked for the same."
    assert message.passed[1] == "4.0 calls an episode."
    assert set(message.prompts) == set(ROLES)


def test_a_program_that_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(instances, "REPLACED_S", 0.2)
    message = report(tmp_path, "odd")
    assert len(message.broken) == 2
    assert "-user: fox" in message.broken[0]
    assert "replayable=false" in message.broken[0]
    assert message.notes == ("coder was never asked for; a role that never acts is not trained.",)
    assert report(tmp_path, "odd", replayable=False).broken == ()


def test_a_program_that_diverges_where_it_gets_several_calls_at_once(tmp_path, monkeypatch):
    """Mistake: made-up answers have one tool call each, so that the program diverges in training alone."""
    monkeypatch.setattr(instances, "REPLACED_S", 0.2)
    message = report(tmp_path, "several_calls")
    assert [text.splitlines()[0] for text in message.broken] == [
        f"task train-{number}: The program, started again, asks for something else. What differs: ids and addresses."
        for number in range(2)
    ]


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        ("at 2026-11-30T10:00:01Z", "at 2026-12-01T09:59:01Z", ["dates and times"]),
        ("Mon Nov 30 09:50:00 UTC", "Mon Nov 30 09:50:01.5 UTC", ["dates and times"]),
        ("took 1.2 s, pid 100, at 10:00", "took 1.3 s, pid 101, at 10:00", ["numbers"]),
        ("commit 1f2e3d4c5b", "commit 9f2e3d4c5b", ["ids and addresses"]),
        ("<object at 0x7f00>", "<object at 0x7fab>", ["ids and addresses"]),
        ("of call_abc123DEF", "of call_zzz923DEF", ["ids and addresses"]),
        ("/tmp/tmpab12cd/x at 10:00", "/tmp/tmpxx99cd/x at 10:01", ["names in /tmp", "dates and times"]),
        ("a\nb", "b\na", ["the order of lines"]),
        ("a" * 200_000 + " 1", "a" * 200_000 + " 2", ["numbers"]),  # in no more than some passes over the text
        ("pid 1: red", "pid 2: blue", []),
        ("same 12:00", "same 12:00", []),
    ],
)
def test_what_differs_is_named_where_that_is_all(first, second, kinds):
    assert instances.name_kinds(first.splitlines(), second.splitlines()) == kinds


def test_the_kinds_are_in_the_error():
    def call(text):
        return ProgramCall(ModelCall("coder", (Message("user", text),)), 0)

    with pytest.raises(ProgramDiverged, match=r"asks for something else\. What differs: dates and times\.\n.*\n"):
        instances.raise_diverged([call("it is 10:00")], [call("it is 10:01")])


def test_made_up_answers_have_what_those_of_a_model_have(tmp_path):
    message = report(tmp_path, "measured")
    assert (message.broken, message.notes) == ((), ())


@pytest.mark.parametrize(
    ("demands", "counts"),
    [
        ({}, [2, 3, 0, 1]),
        ({"choice": "required"}, [2, 3, 1, 1]),
        ({"choice": "look"}, [1, 1, 1, 1]),
        ({"schema": {}}, [0, 0, 0, 0]),
    ],
)
def test_answers_have_as_many_calls_as_the_request_allows(demands, counts):
    tools = (Tool("look", "", {"type": "object", "properties": {"where": {"enum": ["up"]}}, "required": ["where"]}),)
    call = ModelCall("planner", (Message("user", "Go."),), tools, **demands)
    answers = [_draw_answer(call, "planner", 0, 1, number).message for number in TOOL_CALLS]
    assert [len(answer.tool_calls) for answer in answers] == counts
    assert {tool_call.arguments for answer in answers for tool_call in answer.tool_calls} <= {'{"where": "up"}'}
    assert all(is_satisfied(call, answer) for answer in answers)


def test_a_program_that_fails_on_nonsense(tmp_path):
    message = report(tmp_path, "raises")
    assert message.broken[0].startswith("No task completes. The first, task train-0: KeyError: 'mistake'")
    assert message.notes[0].startswith("task train-0 and 1 more: KeyError: 'mistake'\nThe answers were made up")


def test_a_model_without_a_role_is_reported_once_with_a_count(tmp_path):
    """Mistake: a traceback for each task, as each names something of its own task."""
    message = report(tmp_path, "unmapped")
    reports = [text for text in (*message.broken, *message.notes) if "most recent call last" in text]
    assert len(reports) == 1
    assert "there is no 'gpt-judge'" in reports[0].splitlines()[0]
    assert message.notes[0].startswith("task train-0 and 1 more: NotFoundError: Error code: 404 - model: there is no ")


def test_missing_settings_are_named():
    message = asyncio.run(examine(EnvSpec("program", {"roles": ROLES})))
    assert message.broken[0].startswith("settings.run: missing")
