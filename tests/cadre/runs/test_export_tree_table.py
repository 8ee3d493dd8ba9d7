"""Kept trees as a flat table."""

from pathlib import Path

import pytest

from cadre.errors import ConfigError
from cadre.runs.export import sample_rows, write_parquet
from tests.helpers.kept_trees import keeping, record, tree


def kept(folder: Path) -> Path:
    keeping(folder).keep(0, record(tree("t", 0.0, 2.0)))
    return folder


def test_a_row_a_sample_with_its_credit(tmp_path: Path) -> None:
    rows = {(row["role"], row["index"]): row for row in sample_rows(kept(tmp_path))}
    assert len(rows) == 4
    best = rows["planner", 1]
    assert (best["node"], best["team_reward"], best["advantage"], best["text"]) == (1, 2.0, 1.0, "planner1")
    assert rows["tool", 0]["left_out"] == "no spread"
    assert (rows["tool", 1]["selected"], best["prompt_ids"]) == (True, [1, 2])


def test_the_rows_come_back_from_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow, of the extra data, is not installed")
    assert write_parquet(kept(tmp_path), tmp_path / "out" / "trees.parquet") == 4
    read = parquet.read_table(tmp_path / "out" / "trees.parquet").to_pylist()
    assert [row["text"] for row in read] == ["tool0", "tool1", "planner0", "planner1"]


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[data\]"):
        write_parquet(kept(tmp_path), tmp_path / "trees.parquet")
