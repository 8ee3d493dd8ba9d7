"""The JSON form of trees: what is written, what comes back, and what of a stranger's tree is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.parity.trees import sequential, two_turns
from cadre.rollout import walk
from cadre.runs.tree_format import NOT_FINITE, decode_tree, encode
from cadre.types import Branch, BranchFailure, Message, Node, Observation, Reward, Sample, Task, Tool, ToolCall, Tree


def through_json(tree: Tree) -> Tree:
    return decode_tree(json.loads(json.dumps(encode(tree), allow_nan=False)))


def rich() -> Tree:
    """A tree that has all that a tree can have, but images and sounds."""
    tool = Tool("add", "Adds.", {"digest": "d", "width": 1, "height": 2})
    recorded = Observation("a", (Message("user", "Go."),), (tool,), ("end",), 9, "second")
    call = Message("assistant", "so", (ToolCall("c", "add", '{"a": 1}'),), thinking="hm")
    text = Sample(
        "a", "m", "x", (1, 2), (3, 4), (-0.5, -math.inf), "length", 7, call, "clean", ((1, 8),), call_error="no"
    )
    second = replace(text, prompt_ids=(1, 2, 5), failure=BranchFailure("time", "late", margin=0.5))
    failed = Branch({"a": 1}, Reward(), True, False, failure=BranchFailure("raised", "ValueError", kept=True))
    left_out = Branch({"a": 0}, Reward(1.0, {"a": -0.1}, {"goal": math.nan}), False, False, selected=False)
    went = Branch({"a": 0}, Reward(2.0), False, False, True, sequential(), {"kind": "t"}, None, {"a": Reward(0.5)})
    node = Node(1, {"a": recorded}, {"a": (text, second)}, (failed, left_out, went), "seed", 0.5, {"kind": "x"}, 3, "s")
    return Tree(Task("t", {"limit": math.inf, "grid": ["S."]}), node)


def test_a_tree_comes_back_as_it_was() -> None:
    tree = rich()
    again = through_json(tree)
    parts = [item.root.branches[1].reward.parts.pop("goal") for item in (tree, again)]
    assert all(map(math.isnan, parts))
    assert again == tree


def test_what_is_written() -> None:
    """The prompt once for all siblings, children by number, defaults left out."""
    first, second = encode(Tree(Task("t", {}), two_turns()))["nodes"]
    assert first["prompts"] == {"a": [1, 2]}
    assert all("prompt_ids" not in sample and "history" not in sample for sample in first["samples"]["a"])
    assert [branch["child"] for branch in first["branches"] if "child" in branch] == [1]
    assert "weight" not in first
    assert not any("child" in branch for branch in second["branches"])
    (first_sample,) = [sample for sample in encode(rich())["nodes"][0]["samples"]["a"] if "prompt_ids" in sample]
    assert first_sample["prompt_ids"] == [1, 2, 5]
    assert encode(rich())["task"]["data"]["limit"] == {NOT_FINITE: "inf"}


def test_a_deep_tree_is_written_and_read_without_recursion() -> None:
    node = two_turns()
    for _ in range(3_000):
        above = two_turns()
        node = replace(above, branches=(replace(above.branches[0], child=node),))
    again = through_json(Tree(Task("t", {}), node))
    assert sum(1 for _ in walk.nodes(again.root)) == 3_002


def at_first(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda tree: change(tree["nodes"][0])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda tree: tree.update(nodes=[]), "nodes: list should have at least 1 item"),
        (lambda tree: tree.pop("task"), "task: field required"),
        (lambda tree: tree["task"].update(id=3), "task.id: input should be a valid string, got 3"),
        (lambda tree: tree["nodes"].append(tree["nodes"][1]), "nodes.2: not in the order of a walk"),
        (lambda tree: tree["nodes"][1]["branches"][0].update(child=0), "nodes.1.branches: leads to 0"),
        (lambda tree: tree["nodes"][1]["branches"][0].update(child=1), "nodes.1.branches: leads to 1"),
        (at_first(lambda node: node["branches"][0].update(child=2)), "nodes.0.branches: leads to 2"),
        (at_first(lambda node: node["branches"][0].update(child="1")), "nodes.0.branches: leads to '1'"),
        (at_first(lambda node: [branch.update(child=1) for branch in node["branches"]]), "not in the order of a walk"),
        (at_first(lambda node: node["branches"][0]["choice"].update(a=9)), "chooses 'a' number 9, which is not there"),
        (at_first(lambda node: node["branches"][0]["choice"].update(a=-1)), "chooses 'a' number -1, which is not"),
        (at_first(lambda node: node["branches"][0]["choice"].update(b=0)), "chooses 'b' number 0, which is not there"),
        (at_first(lambda node: node.pop("turn")), "nodes.0.turn: field required"),
        (at_first(lambda node: node.pop("prompts")), "samples.a.0.prompt_ids: "),
        (at_first(lambda node: node["samples"].clear()), "nodes.0.branches: chooses|not of the roles"),
        (at_first(lambda node: node.update(observations={"b": node["observations"]["a"]})), "not of the roles"),
        (at_first(lambda node: node["samples"]["a"][0].update(token_ids="x")), "samples.a.0.token_ids: "),
    ],
)
def test_a_tree_that_contradicts_itself_is_refused(change: Callable[[dict[str, Any]], object], expected: str) -> None:
    value = json.loads(json.dumps(encode(Tree(Task("t", {}), two_turns()))))
    change(value)
    with pytest.raises(ValueError, match=expected) as raised:
        decode_tree(value)
    assert "\n" not in str(raised.value)


def test_a_digest_is_no_path() -> None:
    value = encode(Tree(Task("t", {}), two_turns()))
    image = {"digest": "../../etc/passwd", "width": 1, "height": 1}
    value["nodes"][0]["observations"]["a"]["messages"] = [{"role": "user", "content": "", "images": [image]}]
    with pytest.raises(ValueError, match="expected a SHA-256"):
        decode_tree(value)
