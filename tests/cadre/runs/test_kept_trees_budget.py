"""Kept trees of a step: those within the budget, their descriptions, and what was left out."""

import json
from dataclasses import replace
from pathlib import Path

from cadre.runs import jsonl
from cadre.runs.kept_trees import (
    INITIAL_MEGABYTES,
    annotate_trees,
    copy_steps,
    forget_steps,
    left_out_lines,
    read_entries,
    read_vocabulary,
)
from cadre.settings import CreditConfig
from tests.helpers.kept_trees import keeping, record, tree


def lines(path: Path) -> list[dict]:
    return list(jsonl.records(path))


def test_every_sample_is_named_by_decision_role_and_sibling(tmp_path: Path) -> None:
    keeping(tmp_path).keep(0, record(tree("t", 0.0, 2.0)))
    (line,) = lines(tmp_path / "annotations" / "credit.jsonl")
    text = {(sample["node"], sample["role"], sample["index"]): sample for sample in line["samples"]}
    assert set(text) == {(0, "tool", 0), (0, "tool", 1), (1, "planner", 0), (1, "planner", 1)}
    assert [text[1, "planner", index]["advantage"] for index in (0, 1)] == [-1.0, 1.0]
    assert text[0, "tool", 0]["left_out"] == "no spread"
    assert "left_out" not in text[1, "planner", 0]
    (line,) = lines(tmp_path / "annotations" / "tokens.jsonl")
    assert line["samples"] == [
        {"node": 1, "role": "planner", "index": 1, "logprobs": [-0.5, -0.25], "entropy": [0.1, 0.2]}
    ]


def test_what_was_left_out_is_told_with_the_reason(tmp_path: Path) -> None:
    keeping(tmp_path, trees_kept=1).keep(4, record(tree("t", 0.0, 2.0), tree("u", 1.0, 1.0), replaced=1))
    message = {(line["kind"], line.get("task")): line for line in lines(tmp_path / "left_out.jsonl")}
    assert all(line["step"] == 4 for line in message.values())
    assert message["failed", "broken"]["reason"] == "raised: ValueError: no goal"
    assert message["no spread", "t"]["groups"] == [{"role": "tool", "decision": 0, "samples": 2, "return": 0.0}]
    assert (message["no spread", "t"]["whole"], message["no spread", "u"]["whole"]) == (False, True)
    assert message["not kept", None]["reason"] == "train.trees_kept is 1"
    assert message["not kept", None]["trees"] == 1


def test_a_group_that_was_dropped_as_one_of_the_lowest_is_not_said_to_lack_a_gain() -> None:
    """Of means 0 and 1 the lower half is left out: both siblings of the planner in t, one of which has a gain."""
    dropping = CreditConfig(drop_groups="lowest_mean", drop_fraction=0.25)
    stored = record(tree("t", -1.0, 0.0), tree("u", 1.0, 3.0), chosen=dropping)
    streams = annotate_trees(stored.sampled.trees, stored.batch, (), dropping)
    reasons = {
        (number, sample["node"], sample["index"]): sample.get("left_out")
        for number, samples in streams["credit"].items()
        for sample in samples
        if sample["role"] == "planner"
    }
    assert reasons == {(0, 1, 0): "lowest group", (0, 1, 1): "lowest group", (1, 1, 0): None, (1, 1, 1): None}


def test_groups_that_are_dropped_for_equal_rewards_are_told_of() -> None:
    """Their returns differ by a length penalty alone."""
    dropping = CreditConfig(without_std="drop")
    stored = record(tree("t", 0.0, 2.0))
    groups = [replace(group, reward_std=0.0) for group in stored.batch.groups]
    message = list(left_out_lines(stored.sampled, replace(stored.batch, groups=groups), dropping))
    (line,) = [line for line in message if line["kind"] == "no spread"]
    assert (line["whole"], [group["role"] for group in line["groups"]]) == (True, ["tool", "planner"])
    assert "groups with equal rewards are dropped" in line["reason"]


def test_the_budget_is_spread_over_the_steps(tmp_path: Path) -> None:
    """Of 100 steps' budget no more than a tenth is used by step 10, once the first megabytes are full."""
    assert keeping(tmp_path, steps=100, trees_megabytes=400.0).due(9) == 40.0
    assert keeping(tmp_path, steps=100, trees_megabytes=400.0).due(0) == INITIAL_MEGABYTES
    assert keeping(tmp_path, steps=100, trees_megabytes=1.0).due(50) == 1.0


def test_no_tree_is_kept_beyond_the_budget_and_that_is_told(tmp_path: Path) -> None:
    small = keeping(tmp_path, trees_kept=2, trees_megabytes=0.002)
    for step in range(3):
        small.keep(step, record(tree("t", 0.0, 2.0), tree("u", 0.0, 1.0)))
    assert (tmp_path / "trees.jsonl").stat().st_size < 2_000
    message = [line for line in lines(tmp_path / "left_out.jsonl") if line["kind"] == "not kept"]
    assert "train.trees_megabytes" in message[-1]["reason"]


def test_a_resumed_step_is_written_as_it_was(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for step in range(3):
            keeping(tmp_path / folder).keep(step, record(tree("t", 0.0, 2.0)))
    forget_steps(tmp_path / "b", 1)
    assert [entry.step for entry in read_entries(tmp_path / "b")] == [0]
    for step in (1, 2):
        keeping(tmp_path / "b").keep(step, record(tree("t", 0.0, 2.0)))
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.jsonl")]
    assert len(files) == 6
    for path in files:
        assert (tmp_path / "b" / path).read_bytes() == (tmp_path / "a" / path).read_bytes()


def test_a_fork_has_what_was_kept_before_it(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for step in range(3):
        keeping(tmp_path).keep(step, record(tree("t", 0.0, 2.0)))
    copy_steps(tmp_path, tmp_path / "b", 2)
    assert [entry.step for entry in read_entries(tmp_path / "b")] == [0, 1]
    assert [line["step"] for line in lines(tmp_path / "b" / "annotations" / "credit.jsonl")] == [0, 1]


def test_tokens_are_spelt_once(tmp_path: Path) -> None:
    for step in range(2):
        keeping(tmp_path).keep(step, record(tree("t", 0.0, 2.0)))
    assert read_vocabulary(tmp_path) == {"shared": {"0": "a", "1": "b", "2": "c", "3": "d"}}
    assert len((tmp_path / "vocabulary.jsonl").read_text().splitlines()) == 1
    assert json.loads((tmp_path / "trees.jsonl").read_text().splitlines()[0])["version"] == 3
