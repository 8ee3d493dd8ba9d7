"""The almanac: its figures and questions by hand, the two tools, and what notes and answers are paid."""

from __future__ import annotations

import asyncio
import json

import pytest

from cadre.envs.spec import EnvSpec
from cadre.types import Message, Reward, Sample, ToolCall
from cadre_tasks.worlds.almanac import Almanac, AlmanacSingleAgent, almanac, calculate
from tests.cadre_tasks.worlds.trying import check_contract
from tests.helpers.playing import play


def first(env: type[Almanac] = Almanac, facts: int = 2) -> Almanac:
    return env(env.tasks("train", facts=facts)[0])


@pytest.mark.parametrize(
    ("expression", "value"),
    [("17 + 4 * 2", 25), ("(1+2)*-3", -9), (" 12 ", 12), ("-(2 - 5)", 3)],
)
def test_calculate(expression: str, value: int) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression", ["2 ** 9", "1.5", "x", "f(1)", "1 +", "True", "'a' * 9", "1" * 201, "1\n2", "(" * 199]
)
def test_what_is_no_expression_is_an_error(expression: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        calculate(expression)


def test_an_almanac_and_its_questions() -> None:
    lines = almanac(3)
    assert len(lines) == len(set(lines)) == 48
    env = first()
    lines = almanac(env.task.data["seed"])
    assert [line in lines for line in env.task.data["needed"]] == [True, True]
    (town, _, _, figure), (other_strip, _, _, second) = (line.strip(".").split() for line in env.task.data["needed"])
    assert env.question == f"How many are the {figure} of {town} and the {second} of {other_strip} together?"
    assert first(facts=1).question.startswith("How many are the ")
    assert env.search(f"{town} {figure}")[0] == env.task.data["needed"][0]
    assert env.search("Paris") == []
    assert len(env.search(town)) == 2


def test_a_note_is_paid_by_its_figures_and_the_sum_by_all() -> None:
    env = first()
    item, second = env.needed
    for note, share in (
        (f"{item}, {second}", 1.0),
        (f"{item}", 0.5),
        (f"{item} {second} 7 8", 0.5),
        ("", 0.0),
        ("9" * 50, 0.0),
    ):
        (reward,) = play(env.fork(), note)
        assert reward == Reward(local={"researcher": 0.5 * share}, parts={"note": share})
    (_, reward) = play(env, f"{item} {second}", f"{item} + {second} = {item + second}")
    assert reward == Reward(1.0, {"accountant": 0.1}, {"right": 1.0, "answered": 1.0})
    assert env.success
    for text, right in ((f"1,{item + second:03}", False), (f"{item + second}.0", True), (f"1.{item + second}", False)):
        fork = first()
        play(fork, f"{item} {second}", text)
        assert fork.success == right, text
    (reward,) = play(first(AlmanacSingleAgent), "none")
    assert reward == Reward(0.0, {"agent": 0.0}, {"right": 0.0, "answered": 0.0})


@pytest.mark.parametrize("name", ["Almanac", "AlmanacSingleAgent"])
def test_calls_lead_to_the_answer(name: str) -> None:
    """The example of the prompts shows calls with the results that the tools really return."""
    spec = EnvSpec(f"cadre_tasks.worlds.almanac:{name}", {"facts": 2})
    env = spec.make(spec.tasks("test")[0])

    def act(text: str, tool: str = "", **arguments: str) -> str:
        (role,) = env.observe()
        calls = (ToolCall("call_0", tool, json.dumps(arguments)),) if tool else ()
        message = Message("assistant", text, calls)
        asyncio.run(env.step_samples({role: Sample(role, "p", text, (), (), (), "stop", 0, message)}))
        return next((request.messages[-1].content for request in env.observe().values()), "")

    shown = [message.tool_calls[0].name for message in env.observe()[env.roles[0]].messages if message.tool_calls]
    assert shown == ["search", "search", "calculate"][: 3 if name == "AlmanacSingleAgent" else 2]
    lines = [json.loads(act("", "search", query=line))[0] for line in env.task.data["needed"]]
    assert lines == env.task.data["needed"]
    if name == "Almanac":
        act(" ".join(lines))
    assert act("", "calculate", expression="2 ** 9").startswith("Error: calculate: expected whole numbers")
    total = act("", "calculate", expression=" + ".join(map(str, env.needed)))  # type: ignore[attr-defined]
    act(total)
    assert env.success
    assert env.observe() == {}


@pytest.mark.parametrize("name", ["Almanac", pytest.param("AlmanacSingleAgent", marks=pytest.mark.slow)])
def test_the_contract(name: str) -> None:
    check_contract([f"cadre_tasks.worlds.almanac:{name}"], ["12", "Oslo has 31 bridges."])


def test_splits_share_no_question_with_its_figures() -> None:
    splits = [
        {repr(task.data["needed"]) for task in Almanac.tasks(split, facts=1)[:200]} for split in ("train", "test")
    ]
    assert not splits[0] & splits[1]
