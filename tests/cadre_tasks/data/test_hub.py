"""Fetching from the hub: files are chosen, told, kept and resumed, and no script is ever run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from cadre.errors import DataError
from cadre_tasks.data import SPECS, hub, load, read
from cadre_tasks.data.examine import examine
from tests.cadre_tasks.data.hub_server import COMMIT, Hub, serving
from tests.cadre_tasks.data.invented import ROWS


def lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that has APPS with a script beside it, and nothing fetched yet."""
    apps = {f"{split}.jsonl": lines(ROWS["apps"][split]) for split in ("train", "test")}
    read._load.cache_clear()
    with serving({"main": {"apps.py": b"raise SystemExit", "README.md": b"-", **apps}}) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("CADRE_CACHE", str(tmp_path))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield served
    read._load.cache_clear()


def test_a_repository_with_a_script_is_read_by_its_files(fake_hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert [record.id for record in load("apps", "train", "hub")] == ["apps-1"]
    size = len(fake_hub.files["main"]["train.jsonl"]) / 1e6
    assert f"data: fetching 1 files, {size:,.1f} MB, of codeparrot/apps at {COMMIT}" in capsys.readouterr().err
    assert not any("apps.py" in path for _, path, _ in fake_hub.requests)


def test_what_was_fetched_is_kept_and_nobody_is_asked_again(fake_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = hub.fetch_split(SPECS["apps"], "train")
    fake_hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.fetch_split(SPECS["apps"], "train") == files
    assert fake_hub.requests == []
    (note,) = files[0].parents[1].glob("*.json")
    content = json.loads(note.read_text())
    assert (content["repository"], content["commit"]) == ("codeparrot/apps", COMMIT)
    files[0].write_bytes(b"")  # cut short by somebody: not taken for whole
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        hub.fetch_split(SPECS["apps"], "train")


def test_the_splits_of_a_set_are_of_one_commit(fake_hub: Hub) -> None:
    """Mistake: what was fetched later is of a later commit, in which an item may have changed its split."""
    hub.fetch_split(SPECS["apps"], "train")
    fake_hub.files[COMMIT], fake_hub.commit = fake_hub.files["main"], "d" * 40
    fake_hub.files["main"] = {"test.jsonl": b'{"other": 1}\n'}
    (file,) = hub.fetch_split(SPECS["apps"], "test")
    assert file.parent.name == COMMIT
    fake_hub.files[COMMIT] = {"train.jsonl": b"-"}  # that has no such split
    file.unlink()
    (file,) = hub.fetch_split(SPECS["apps"], "test")
    assert file.parent.name == fake_hub.commit


def test_a_note_that_was_cut_off_is_no_note(fake_hub: Hub) -> None:
    files = hub.fetch_split(SPECS["apps"], "train")
    (note,) = files[0].parents[1].glob("*.json")
    full = note.read_text()
    for cut in ("", full[:40], "[]", "{}"):
        note.write_text(cut)
        assert hub.cached_files(SPECS["apps"], "train") is None
        assert hub.fetch_split(SPECS["apps"], "train") == files
        assert note.read_text() == full


def test_leaks_are_looked_for_in_the_sets_that_were_fetched(fake_hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    result = examine("apps", "hub")
    assert list(result.leaks) == ["apps"]
    assert result.unseen == ("humaneval", "coophumaneval", "mbpp", "code-contests", "livecodebench")
    assert any("not compared with the test items of humaneval, coophumaneval" in line for line in result.lines())
    fake_hub.files["main"] = {"test.jsonl": lines(ROWS["humaneval"]["test"])}
    hub.fetch_split(SPECS["humaneval"], "test")
    assert list(examine("apps", "hub").leaks) == ["humaneval", "apps"]


def test_a_fetch_that_breaks_off_goes_on_where_it_stopped(fake_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 10)  # written so often, not every 10 MB
    fake_hub.files["main"]["train.jsonl"] = lines(ROWS["apps"]["train"] * 2_000)
    fake_hub.broken.add("train.jsonl")
    (file,) = hub.fetch_split(SPECS["apps"], "train")
    assert file.read_bytes() == fake_hub.files["main"]["train.jsonl"]
    ranges = [span for method, path, span in fake_hub.requests if method == "GET" and "resolve" in path]
    assert len(ranges) == 2
    assert int(ranges[1].removeprefix("bytes=").rstrip("-")) > 1_000


def test_a_repository_of_a_script_alone_is_read_by_the_hubs_conversion(fake_hub: Hub) -> None:
    fake_hub.files["main"] = {"scitldr.py": b"raise SystemExit"}
    fake_hub.files[hub.CONVERTED] = {"Abstract/train/0000.parquet": b"PAR1", "FullText/train/0000.parquet": b"-"}
    (file,) = hub.fetch_split(SPECS["scitldr"], "train")
    assert file.read_bytes() == b"PAR1"


def test_a_revision_is_taken_at_its_word(fake_hub: Hub) -> None:
    del fake_hub.files["main"]
    fake_hub.files["v2"] = {"train.jsonl": lines(ROWS["apps"]["train"][:1] * 3)}
    assert len(read.parse_rows("apps", "train", "hub@v2")) == 3
    with pytest.raises(DataError, match="could not be fetched"):
        hub.fetch_split(SPECS["apps"], "train", "v3")


def test_a_split_that_there_is_not_says_what_to_do(fake_hub: Hub) -> None:
    fake_hub.files["main"] = {"README.md": b"-"}
    fake_hub.files[hub.CONVERTED] = {}
    with pytest.raises(DataError, match=r"no JSONL, JSON or Parquet file .* take the files of codeparrot/apps"):
        hub.fetch_split(SPECS["apps"], "train")


@pytest.mark.parametrize(
    ("name", "split", "names", "expected"),
    [
        ("gsm8k", "test", ["main/test-00000-of-00001.parquet", "socratic/test-00000-of-00001.parquet"], [0]),
        ("livecodebench", "test", ["code.py", "test.jsonl", "test2.jsonl", "test6.jsonl"], [1, 2, 3]),
        ("deepscaler", "train", ["README.md", "deepscaler.json"], [1]),
        ("olympiadbench", "test", ["OlympiadBench/OE_MM_zh/x.parquet", "O/OE_TO_maths_en_COMP/x.parquet"], [1]),
        (
            "stories",
            "train",
            ["data/test-00000.parquet", "data/train-00000.parquet", "data/train-00001.parquet"],
            [1, 2],
        ),
        ("math-train", "train", ["algebra/train-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"], [1]),
        ("math-train", "train", ["algebra/train/0000.parquet", "default/train/0000.parquet"], [1]),
        ("deepmath", "train", ["a.parquet", "b.parquet"], []),
        ("arxiv", "test", ["val.jsonl", "train.jsonl"], [0]),
    ],
)
def test_which_files_are_of_a_split(name: str, split: str, names: list[str], expected: list[int]) -> None:
    assert hub.select_files(names, SPECS[name], split) == [names[position] for position in expected]
