"""The stream of trees and its index: append, read while written, repair, cut."""

import json
from pathlib import Path

import pytest

from bench.parity.trees import sequential, two_turns
from cadre.errors import RunError
from cadre.runs.kept_trees import (
    TREES,
    KeptTree,
    append_tree,
    fits_budget,
    forget_steps,
    read_all_trees,
    read_entries,
    read_tree,
)
from cadre.types import Task, Tree


def written(folder: Path, *steps: int) -> None:
    for step in steps:
        append_tree(folder, KeptTree(step, 0, Tree(Task(f"t{step}", {}), sequential())))


def test_an_entry_says_what_a_tree_holds(tmp_path: Path) -> None:
    """The tool's branch 1 goes on to three answers of the planner, all carried: 4 + 0, 4 + 3, 4 + 3; and two leaves."""
    written(tmp_path, 0)
    (entry,) = read_entries(tmp_path)
    assert (entry.offset, entry.length) == (0, (tmp_path / "trees.jsonl").stat().st_size)
    assert (entry.decisions, entry.samples, entry.episodes, entry.wins) == (2, 6, 5, 0)
    assert entry.reward == pytest.approx((1 + 4 + 7 + 7 + 1) / 5)
    assert entry.roles == ("tool", "planner")


def test_trees_are_read_by_their_entries(tmp_path: Path) -> None:
    written(tmp_path, 0, 1, 2)
    assert [read_tree(tmp_path, entry).tree.task.id for entry in read_entries(tmp_path)] == ["t0", "t1", "t2"]


def test_a_tree_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    written(tmp_path, 0)
    with (tmp_path / "trees.jsonl").open("a") as file:
        file.write('{"version": 3, "step": 1, "tr')
    assert [entry.step for entry in read_entries(tmp_path)] == [0]


@pytest.mark.parametrize("lines_lost", [1, 2, 3])
def test_lost_lines_of_the_index_are_made_anew(tmp_path: Path, lines_lost: int) -> None:
    written(tmp_path, 0, 1, 2)
    full = read_entries(tmp_path)
    index = tmp_path / "trees.index.jsonl"
    index.write_text("".join(index.read_text().splitlines(keepends=True)[: 3 - lines_lost]))
    assert read_entries(tmp_path) == full


def test_an_index_that_is_ahead_of_the_stream_is_not_believed(tmp_path: Path) -> None:
    written(tmp_path, 0, 1)
    first = read_entries(tmp_path)[0]
    with (tmp_path / "trees.jsonl").open("r+b") as file:
        file.truncate(first.length)
    assert read_entries(tmp_path) == [first]


def test_cutting_forgets_a_step_and_what_follows(tmp_path: Path) -> None:
    written(tmp_path, 0, 1, 2)
    forget_steps(tmp_path, 1)
    written(tmp_path, 1)
    assert [entry.step for entry in read_entries(tmp_path)] == [0, 1]


def test_a_tree_that_would_pass_the_budget_does_not_fit(tmp_path: Path) -> None:
    tree = KeptTree(0, 0, Tree(Task("t", {}), sequential()))
    assert fits_budget(tmp_path, tree, 0.01)
    assert not fits_budget(tmp_path, tree, 0.000_001)


@pytest.mark.parametrize("version", [1, 2, 4])
def test_another_format_is_refused(version: int, tmp_path: Path) -> None:
    append_tree(tmp_path, KeptTree(0, 0, Tree(Task("t", {}), two_turns())))
    line = json.loads((tmp_path / TREES).read_text())
    (tmp_path / TREES).write_text(json.dumps({**line, "version": version}) + "\n")
    with pytest.raises(RunError, match=f"got format {version}; expected 3"):
        list(read_all_trees(tmp_path))
