"""Kept trees as text, and the walk through them with keys as terminals send them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadre.cli.play import HELP, Walker, format_tree, text_with_calls, walk_through, wrap_line
from cadre.cli.terminal import visible
from cadre.files import validate_record
from cadre.runs.kept_trees import KeptTree
from cadre.runs.records import StepMetrics
from cadre.types import Branch, Message, Node, Observation, Reward, Sample, Task, ToolCall, Tree
from cadre.view.reading import RunReader
from tests.cadre.cli.calling import call
from tests.cadre.view.runs import hostile, synthetic
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


UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1bOD"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic(tmp_path_factory.mktemp("walk") / "run", 3, 3)


@pytest.fixture
def walker(run: Path) -> Walker:
    return Walker(RunReader(run, "run"), 1)


def screen(walker: Walker, width: int = 100, height: int = 24) -> list[str]:
    lines = walker.render(width, height)
    assert len(lines) == height
    assert all(line.cell_len <= width for line in lines)
    return [line.plain for line in lines]


def test_it_begins_at_what_went_on(walker: Walker) -> None:
    lines = screen(walker)
    assert lines[0] == "step 2, task train-7: decision 1 of this path, 3 in the tree; tree 2 of 3"
    assert lines[1] == "the first decision"
    assert lines[2].startswith("  tool #1  reward +0.00  adv -1.50  moves ")
    assert lines[5].startswith("> tool #4  reward +0.70  adv +1.50  moves ")
    assert lines[7] == "tool: answer"
    assert lines[8].startswith("moves ")
    assert lines[-1] == HELP


def test_on_back_and_among_siblings(walker: Walker) -> None:
    walker.press(UP)
    assert (walker.position.role, walker.position.index) == ("tool", 2)
    walker.press(RIGHT)  # nothing followed that one
    assert walker.position.node == 0
    walker.press(DOWN)
    walker.press(DOWN)
    walker.press(RIGHT)
    assert (walker.position.node, walker.position.role, walker.position.index) == (1, "planner", 3)
    assert screen(walker)[1] == "after tool #4"
    walker.press(RIGHT)
    walker.press(RIGHT)  # the end
    assert (walker.position.node, screen(walker)[5][:33]) == (2, "> tool #4  reward +0.70  adv +1.5")
    assert "solved" in screen(walker)[5]
    walker.press(LEFT)
    walker.press(LEFT)
    walker.press(LEFT)
    assert walker.position.node == 0


def test_the_prompt_other_trees_and_the_end(walker: Walker) -> None:
    walker.press("p")
    assert screen(walker)[7:10] == ["tool: prompt", "user:", screen(walker)[9]]
    assert screen(walker)[9].startswith("Decide, turn 0.")
    walker.press("]")
    walker.press("]")
    assert screen(walker)[0].startswith("step 3, ")
    assert walker.press("x")
    assert not walker.press("q")
    assert not walker.press("\x03")


def test_long_texts_are_read_line_by_line_and_hostile_ones_do_nothing(tmp_path: Path) -> None:
    walker = Walker(RunReader(hostile(tmp_path / "run"), "run"), 0)
    assert screen(walker, 80, 24)[-1] == HELP[:79] + "…"
    assert screen(walker, 80, 24)[10] == "tool: answer, 12488 lines below"
    walker.press(" ")
    assert screen(walker, 80, 24)[10] == "tool: answer, 10 lines above, 12478 lines below"
    walker.press("b")
    for _ in range(2):
        walker.press(UP)
    text = "\n".join(screen(walker, 80, 40))
    assert "\x1b" not in text
    assert "<U+001B>[31m control<U+200F>" in text
    assert "<U+202E>" in text


def test_control_characters_are_written_out_and_line_breaks_are_not() -> None:
    assert visible("a\tb\nc\x1b]0;x\x07\u2066") == "a\tb\nc<U+001B>]0;x<U+0007><U+2066>"


def test_lines_fit_whatever_the_letters_are_wide() -> None:
    assert wrap_line("abc  def ", 5) == ["abc  ", "def "]
    assert wrap_line("", 5) == [""]
    assert wrap_line("日本語ab", 4) == ["日本", "語ab"]


def test_the_command_walks_until_q(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = iter([RIGHT, "q"])
    walk_through(run, 1, 0, lambda: next(keys))
    assert list(keys) == []


def test_without_a_terminal_it_prints(run: Path) -> None:
    result = call("play", str(run), "--step", "2")
    assert result.code == 0
    assert result.out.startswith("step 2, task train-7; > marks")


def test_plain_without_a_step_is_refused(run: Path) -> None:
    assert "--plain: got no --step" in call("play", str(run), "--plain").err


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
