"""Rows of a file by its ending."""

from pathlib import Path

import pytest

from cadre.errors import ConfigError, DataError
from cadre.rows import read_rows


def test_a_json_list_and_json_lines_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"n": 1}, {"n": 2}]')
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    listed, lined = (list(read_rows(tmp_path / name)) for name in ("a.json", "a.jsonl"))
    assert [row for _, row in listed] == [row for _, row in lined] == [{"n": 1}, {"n": 2}]
    assert [where.rpartition(", ")[2] for where, _ in listed + lined] == ["item 0", "item 1", "line 1", "line 2"]


@pytest.mark.parametrize("text", ['{"n": 1}', "[1]", "[", ""])
def test_another_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.json"):
        list(read_rows(tmp_path / "a.json"))


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"n": [1, 2], "texts": [["a"], []]}), tmp_path / "a.parquet")
    rows = [row for _, row in read_rows(tmp_path / "a.parquet")]
    assert rows == [{"n": 1, "texts": ["a"]}, {"n": 2, "texts": []}]
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        list(read_rows(tmp_path / "b.parquet"))


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[data\]"):
        list(read_rows(tmp_path / "a.parquet"))
