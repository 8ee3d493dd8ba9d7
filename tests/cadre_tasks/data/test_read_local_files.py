"""Files of a folder that belong to a split."""

import json
from pathlib import Path

import pytest

from cadre.errors import DataError
from cadre_tasks.data import load
from cadre_tasks.data.read import MissingFilesError


def written(path: Path, *numbers: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"problem": f"{n}?", "answer": str(n), "id": n}) + "\n" for n in numbers))


def test_the_hub_s_name_of_a_split_is_one_only_in_the_set_s_own_folder(tmp_path: Path) -> None:
    """Mistake: another set's train.jsonl is taken for the test items of AIME, whose split the hub calls `train`."""
    written(tmp_path / "train.jsonl", 1, 2)
    with pytest.raises(MissingFilesError, match=r"no file of aime24 \(test\)"):
        load("aime24", "test", str(tmp_path))
    written(tmp_path / "aime24" / "train.jsonl", 3)
    for source in (tmp_path, tmp_path / "aime24"):
        assert [task.id for task in load("aime24", "test", str(source))] == ["3"]
    (tmp_path / "aime24" / "train.jsonl").rename(tmp_path / "test.jsonl")
    (tmp_path / "aime24").rmdir()
    assert [task.id for task in load("aime24", "test", str(tmp_path))] == ["3"]


@pytest.mark.parametrize(
    "names",
    [
        ("train-1", "train-2"),
        ("train_a", "train_b"),
        ("train-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002"),
        ("train-00000-of-00001-a1", "train-00000-of-00001-b2"),
        ("train", "train-00000-of-00001"),
        ("train", "train_2"),
    ],
)
def test_several_files_of_one_split_are_named(names: tuple[str, ...], tmp_path: Path) -> None:
    """Mistake: the first of them is read and nothing is said of the others."""
    for number, name in enumerate(names):
        written(tmp_path / "polaris" / f"{name}.jsonl", number)
    message = ", ".join(f"{name}.jsonl" for name in names)
    with pytest.raises(DataError, match=rf"several files of one split: {message}; .* Keep one, or a whole series"):
        load("polaris", "train", str(tmp_path))


@pytest.mark.parametrize("second", ["train_first2.jsonl", "train_notes.jsonl", "train.parquet", "training.jsonl"])
def test_a_file_of_the_split_s_own_name_stands_beside_other_things(second: str, tmp_path: Path) -> None:
    written(tmp_path / "polaris" / "train.jsonl", 1)
    written(tmp_path / "polaris" / second, 2)
    assert [task.id for task in load("polaris", "train", str(tmp_path))] == ["1"]
