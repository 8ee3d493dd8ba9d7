"""Which files of a folder are a split's."""

import json
from pathlib import Path

import pytest

from cadre.data import load
from cadre.data.read import MissingFilesError


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
        assert [one.id for one in load("aime24", "test", str(source))] == ["3"]
    (tmp_path / "aime24" / "train.jsonl").rename(tmp_path / "test.jsonl")
    (tmp_path / "aime24").rmdir()
    assert [one.id for one in load("aime24", "test", str(tmp_path))] == ["3"]
