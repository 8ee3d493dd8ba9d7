"""Kept trees as text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadre.cli.play import format_tree, text_with_calls
from cadre.cli.terminal import visible
from cadre.files import validate_record
from cadre.runs.kept_trees import KeptTree
from cadre.runs.records import StepMetrics
from cadre.types import Branch, Message, Node, Observation, Reward, Sample, Task, ToolCall, Tree
from tests.cadre.cli.calling import call
from tests.cadre.view.runs import synthetic
from tests.helpers.endpoint import Endpoint, serving


def branch(choice: dict[str, int], team: float, selected: bool, **more: Any) -> Branch:
    reward = Reward(team, more.pop("local", {}))
    return Branch(choice, reward, **{"over": False, "success": False, "selected": selected} | more)


def node(recorded: dict[str, str], answer: dict[str, list[str]], branches: list[Branch]) -> Node:
    observations = {role: Observation(role, (Message("user", text),)) for role, text in recorded.items()}
    samples = {role: tuple(sample(role, text) for text in texts) for role, texts in answer.items()}
    return Node(0, observations, samples, tuple(branches))


def sample(role: str, text: str, ids: tuple[int, ...] = (), calls: tuple[ToolCall, ...] = ()) -> Sample:
    message = Message("assistant", text, calls) if calls else None
    return Sample(role, "shared", text, (), ids, (0.0,) * len(ids), "stop", 0, message)


LAST = node(
    {"left": "\n".join("abcdefgh"), "right": "what?"},
    {"left": ["a\nb", "x" * 90], "right": ["c", "d"]},
    [
        branch({"left": 0, "right": 0}, 0.0, False, over=True),
        branch({"left": 1, "right": 1}, 1.0, True, over=True, success=True, local={"left": -0.5, "right": 0.0}),
    ],
)
FIRST = node(
    {"lead": "Go."},
    {"lead": ["no", "yes"]},
    [branch({"lead": 0}, -1.0, False), branch({"lead": 1}, 0.25, True, child=LAST)],
)


def test_a_tree_of_two_decisions() -> None:
    printed = list(format_tree(KeptTree(4, 0, Tree(Task("train-7", {}), FIRST))))
    assert printed == [
        "step 5, task train-7; > marks the selected branches",
        "",
        "lead sees",
        "  | Go.",
        "  team -1.00  #0: no",
        "> team +0.25  #1: yes",
        "",
        "  after lead #1:",
        "",
        "  left sees",
        "    | c",
        "    | d",
        "    | e",
        "    | f",
        "    | g",
        "    | h",
        "",
        "  right sees",
        "    | what?",
        "    +0.00, over  left #0: a b",
        "                 right #0: c",
        "  > team +1.00, left -0.50, solved  left #1: " + "x" * 32 + "...",
        "                                    right #1: d",
    ]


def test_control_characters_are_written_out_and_line_breaks_are_not() -> None:
    assert visible("a\tb\nc\x1b]0;x\x07\u2066") == "a\tb\nc<U+001B>]0;x<U+0007><U+2066>"


def test_a_kept_tree_is_printed(tmp_path: Path) -> None:
    done = call("play", str(synthetic(tmp_path / "run", 3, 3)), "--step", "2")
    assert done.code == 0
    assert done.out.startswith("step 2, task train-7; > marks")


STEERING = "\x1b]0;title\x07\x1b[2J\u202e"


def test_the_id_of_a_task() -> None:
    """Mistake: it is printed as it is."""
    (line,) = format_tree(KeptTree(0, 0, Tree(Task(STEERING, {}), Node(0, {}, {}, ()))))
    assert "2J" in line
    assert not set("\x1b\x07\u202e") & set(line)


def test_the_name_of_a_metric_in_a_damaged_line() -> None:
    with pytest.raises(ValueError, match="2J") as raised:
        validate_record({"step": 0, STEERING: "x"}, StepMetrics)
    assert not set("\x1b\x07\u202e") & set(str(raised.value))


def test_calls_that_are_sent_apart_from_the_text_are_shown() -> None:
    """Mistake: a completion of an endpoint that only calls a tool is an empty line."""
    calls = (ToolCall("c", "roll", '{"sides": 6}'),)
    assert text_with_calls(sample("clerk", "", calls=calls)) == 'roll({"sides": 6})'
    assert text_with_calls(sample("clerk", "I roll.", calls=calls)) == 'I roll.\nroll({"sides": 6})'
    written = '<tool_call>{"name": "roll", "arguments": {"sides": 6}}</tool_call>'
    assert text_with_calls(sample("clerk", written, (1,), calls)) == written
    assert text_with_calls(sample("clerk", "")) == ""


def test_so_they_are_in_kept_trees() -> None:
    text = sample("clerk", "", calls=(ToolCall("c", "roll", '{"sides": 6}'),))
    stored = replace(node({"clerk": "Roll."}, {}, [branch({"clerk": 0}, 1.0, True)]), samples={"clerk": (text,)})
    assert list(format_tree(KeptTree(0, 0, Tree(Task("t", {}), stored))))[-1].endswith('#0: roll({"sides": 6})')


CLERK = """
from cadre import Env, Message, Observation, Reward, Task


def double(number: int) -> int:
    return 2 * number


class Clerk(Env):
    roles, tools, tool_turns = ("clerk",), (double,), 1

    def __init__(self, task):
        super().__init__(task)
        self.done = False

    @classmethod
    def tasks(cls, split):
        return [Task(split, {})]

    def observe(self):
        return {} if self.done else {"clerk": Observation("clerk", (Message("user", "Double it."),))}

    async def step(self, actions):
        self.done = True
        return Reward()

    @property
    def success(self):
        return self.done
"""


def test_an_episode_of_an_endpoint_shows_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clerk.py").write_text(CLERK)
    called = {"id": "c", "type": "function", "function": {"name": "double", "arguments": '{"number": 3}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    monkeypatch.setattr(Endpoint, "reply", json.dumps(reply))
    with serving() as url:
        policies = {"far": {"model": "echo", "url": url, "frozen": True}}
        recipe = {"env": f"{tmp_path}/clerk.py:Clerk", "team": {"policies": policies, "roles": {"clerk": "far"}}}
        (tmp_path / "clerk.yaml").write_text(json.dumps(recipe | {"algorithm": {"name": "grpo", "k": 2}}))
        result = call("play", str(tmp_path / "clerk.yaml"))
    lines = result.out.splitlines()
    text = [lines[number + 1] for number, line in enumerate(lines) if line.startswith("clerk (far) says")]
    assert text == ['double({"number": 3})'] * 2, result.out + result.err
