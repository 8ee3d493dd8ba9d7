"""Trees by step and number from a run's trees.jsonl."""

from pathlib import Path

import pytest

from bench.parity.trees import leaf, node
from cadre.errors import RunError
from cadre.runs.kept_trees import KeptTree, append_tree, find_tree, read_all_trees
from cadre.types import Task, Tree


def kept(folder: Path, *steps: int) -> Path:
    """A run that kept a tree of each of these steps, and was cut off in writing another."""
    for position, step in enumerate(steps):
        tree = Tree(Task(str(position), {}), node(0, {"a": 1}, [leaf({"a": 0}, 1.0)]))
        append_tree(folder, KeptTree(step, steps[:position].count(step), tree))
    with (folder / "trees.jsonl").open("a") as file:
        file.write('{"step": 9, "ta')
    return folder


def test_steps_count_from_one_and_trees_from_zero(tmp_path: Path) -> None:
    folder = kept(tmp_path, 0, 0, 1, 1)
    assert find_tree(folder, 1).tree.task.id == "0"
    assert find_tree(folder, 1, 1).tree.task.id == "1"
    assert find_tree(folder, 2, 1).tree.task.id == "3"
    assert [read_all_tree.tree.task.id for read_all_tree in read_all_trees(folder)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("steps", "step", "number", "expected"),
    [
        ((0, 1), 3, 0, "got --step 3 --task 0, .*; expected a step from 1 to 2. "),
        ((0, 1), 2, 1, "got --step 2 --task 1, .*, and a task from 0 to 0. "),
        ((), 1, 0, "has kept no tree; expected .*train.trees_kept"),
    ],
)
def test_what_is_not_there_is_told(
    tmp_path: Path, steps: tuple[int, ...], step: int, number: int, expected: str
) -> None:
    with pytest.raises(RunError, match=expected):
        find_tree(kept(tmp_path, *steps), step, number)


def test_a_folder_without_trees(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has kept no tree"):
        find_tree(tmp_path, 1)
