"""Sources of levels: the generator, and folders of the usual text form."""

from pathlib import Path

import pytest

from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, DataError
from cadre_tasks.answers import MOVES
from cadre_tasks.games.levels import read_folder
from cadre_tasks.games.sokoban import Boxoban, Sokoban, parse_level, solve
from tests.helpers.playing import play
from tests.helpers.public_sets import rows as data_rows

LEVEL_FILE = "; 0\n#####\n#@$.#\n#####\n\n; 1\n######\n#@ $.#\n######\n"


@pytest.mark.parametrize(("size", "boxes", "count"), [(6, 1, 200), (6, 2, 20), (8, 2, 5)])
def test_generated_levels_are_solvable_and_not_solved(size: int, boxes: int, count: int) -> None:
    for task in Sokoban.tasks("test", size=size, boxes=boxes)[:count]:
        level, state = parse_level(task.data["grid"])
        assert level.draw(state).split("\n") == task.data["grid"]
        assert (len(state.boxes), len(level.goals)) == (boxes, boxes)
        assert not state.boxes & level.goals
        path = solve(level, state)
        assert path
        for move in path:
            state = level.step(state, move)
        assert level.solved(state)


def test_levels_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "000.txt").write_text(LEVEL_FILE)
    levels = {("#####", "#SBG#", "#####"): "000-0", ("######", "#S.BG#", "######"): "000-1"}
    assert read_folder(str(tmp_path)) == levels
    assert [task.id for task in Boxoban.tasks("train", levels=str(tmp_path))] == ["000-0", "000-1"]
    with pytest.raises(ConfigError, match="holds no level of the split 'test'"):
        Boxoban.tasks("test", levels=str(tmp_path))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("#####\n#@$ #\n#####\n", "0 goals"), ("#####\n# $.#\n#####\n", "0 walkers"), ("#####\n#@$?.#\n", "strange")],
)
def test_bad_levels_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        Boxoban.tasks("train", levels=str(tmp_path))


def test_a_level_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "000.txt").write_text(LEVEL_FILE + LEVEL_FILE)
    assert list(read_folder(str(tmp_path)).values()) == ["000-0", "000-1"]


def test_without_a_folder_the_levels_are_those_among_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boxoban").mkdir()
    (tmp_path / "boxoban" / "000.txt").write_text(LEVEL_FILE)
    monkeypatch.setenv("CADRE_DATA", str(tmp_path))
    assert len(EnvSpec("boxoban", {}).tasks("train")) == 2
    monkeypatch.delenv("CADRE_DATA")
    with pytest.raises(ConfigError, match=r"holds no levels; .* Name one, or put them into boxoban"):
        EnvSpec("boxoban", {}).tasks("train")


def test_what_generated_levels_are_asked_for_is_unknown_to_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"settings\.boxes: unknown to Boxoban"):
        EnvSpec("boxoban", {"levels": "-", "boxes": 2})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [('{"grid": 3}', "line 2: got the fields grid; expected `grid`"), ("{}", "got the fields none"), ("{", "not JSON")],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "bad.jsonl").write_text('{"grid": "#####\\n#@$.#\\n#####"}\n' + line)
    with pytest.raises(DataError, match=complaint):
        Boxoban.tasks("train", levels=str(tmp_path))


def test_text_that_is_not_utf_8_is_a_level_with_strange_marks(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"#####\n#@$.#\n##\xff##\n")
    with pytest.raises(ConfigError, match="strange marks"):
        Boxoban.tasks("train", levels=str(tmp_path))


def test_a_missing_folder_is_named() -> None:
    for folder in ("", "./no/such/levels"):
        with pytest.raises(ConfigError, match="holds no levels"):
            Boxoban.tasks("train", levels=folder)


def test_the_public_levels_can_be_read_and_played(tmp_path: Path) -> None:
    lines = data_rows("boxoban/unfiltered_valid_000.jsonl")
    (tmp_path / "000.txt").write_text("\n\n".join(f"; {line['id']}\n{line['grid']}" for line in lines))
    train, test = (Boxoban.tasks(split, levels=str(tmp_path)) for split in ("train", "test"))  # type: ignore[arg-type]
    assert len(train) + len(test) == 1000
    assert 60 < len(test) < 140
    env = Boxoban(test[0], levels=str(tmp_path), prompts="compact")
    assert len(env.state.boxes) == 4
    play(env, "print('LURD')", "L")
    assert env.spent == 1
    assert set(MOVES) == set("UDLR")
