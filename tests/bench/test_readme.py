"""Tables and figures on pages are those of results/, and lines name a commit that can be checked out."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import common
import readme
import sandbox

LINES: dict[str, dict[str, Any]] = {
    "game.base": {"value": 0.1, "low": 0.1, "high": 0.1, "unit": "share", "n": 200},
    "game.team": {"value": 0.9, "low": 0.8, "high": 1.0, "unit": "share", "n": 200},
    "game.tokens": {"value": 12345.6, "low": 12345.6, "high": 12345.6, "unit": "tokens", "n": 3},
}
for number, line in enumerate(LINES.values()):
    line |= {"commit": "abcdef" + str(min(number, 1)), "date": "2026-11-28", "command": "make results"}


def test_pages_show_what_results_have() -> None:
    assert readme.outdated_pages() == [], "run: python bench/readme.py"
    assert readme.wrong_figures() == []


def test_cells_are_filled_by_their_templates() -> None:
    head = "| what | figure | commit | date | command |\n|---|---|---|---|---|\n"
    template = "<!-- {game.base} before, {game.team} after, {game.team.n} tasks -->"
    row = f"| Success | {template} 1% before | old | | |\n"
    figure = "10.0% before, 90.0% (80.0% to 100.0%) after, 200 tasks"
    facts = "abcdef0, abcdef1 | 2026-11-28 | `make results`"
    page = readme.filled(f"Words.\n\n{head}{row}\nMore: `a | b`.\n", LINES)
    assert page == f"Words.\n\n{head}| Success | {template} {figure} | {facts} |\n\nMore: `a | b`.\n"
    assert readme.filled(page, LINES) == page
    with pytest.raises(ValueError, match=r"no line 'game.other', which the row 'x' names"):
        readme.filled(f"{head}| x | <!-- {{game.other}} --> | | | |", LINES)


def test_a_table_is_filled_by_the_pattern_above_it() -> None:
    page = "<!-- cells: {row}.{team|-|tokens} -->\n| row | team | seeds | tokens |\n|---|---|---|---|\n"
    filled = readme.filled(f"{page}| **`game`: ours** | | 3 | |\n| `other` | - | 3 | 7 |\n", LINES)
    assert filled == f"{page}| **`game`: ours** | 90.0% (80.0% to 100.0%) | 3 | 12,346 |\n| `other` | - | 3 | 7 |\n"
    few = f"{page}| `game` | 3 decisions | 3 | 12,346 |\n"
    assert readme.filled(few, LINES) == few


def test_curves_are_averaged_in_fifths_of_the_tokens() -> None:
    """Steps of 10 tokens: two in each fifth; the second seed has steps at 0, 50 and 60 of 100, so that the second fifth
    repeats the first, and the last repeats the fourth."""
    even = [(10.0 * (step + 1), float(step)) for step in range(10)]  # 0.5, 2.5, 4.5, 6.5, 8.5
    uneven = [(50.0, 1.0), (60.0, 3.0), (100.0, 5.0)]  # 1, 1, 3, 5, 5
    assert readme.fifths([even]) == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert readme.fifths([uneven]) == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert readme.fifths([even, uneven]) == [0.75, 1.75, 3.75, 5.75, 6.75]


def test_commands_are_shown_with_the_present_place_of_their_program() -> None:
    assert readme._command("python bench/openspiel.py --write") == "`python -m lab.openspiel --write`"
    assert readme._command("python -m lab.openspiel") == "`python -m lab.openspiel`"
    assert readme._command("python bench/kills.py --kills 60") == "`python bench/kills.py --kills 60`"
    assert readme._command("make results") == "`make results`"
    assert readme._command("python bench/no_more.py") == "python bench/no_more.py (in that commit)"
    assert readme._command("make no-more") == "make no-more (in that commit)"


def test_large_results_and_transcripts_are_left_out_of_the_tree() -> None:
    folders = ("results", "docs/pictures", "tests", "examples", "bench", "lab", "cadre", "cadre_sandbox", "cadre_tasks")
    kinds = (".json", ".jsonl", ".md", ".txt", ".svg", ".png", ".csv")
    result = [path for folder in folders for path in (common.ROOT / folder).rglob("*") if path.suffix in kinds]
    assert [str(path) for path in result if path.stat().st_size > 100_000] == []


def test_parts_of_a_bench_without_their_data_are_left_out_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox, "DATA", tmp_path)
    assert sandbox.runnable(["attacks", "checkers", "maths"]) == ["attacks"]
    output = " ".join(capsys.readouterr().out.split())
    assert "checkers is left out" in output
    assert "no humaneval/HumanEval.jsonl" in output
    assert "Set CADRE_DATA" in output
    for name in sandbox.NEEDED["checkers"]:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    assert sandbox.runnable(["checkers"]) == ["checkers"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in place of this one."""
    (tmp_path / "cadre").mkdir()
    (tmp_path / "cadre" / "a.py").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--quiet", "-m", "one")
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return result.stdout.strip()


def record(measured: str = "") -> None:
    common.record("file", "figure", [0.25], "share", "command", 1, (), measured)


def test_the_writer_refuses_uncommitted_code_and_foreign_commits(checkout: Path) -> None:
    record()
    head = common.commit()
    record(f"{head}, {head}")
    assert (checkout / "results" / "file.jsonl").read_text().count(head) == 3
    for measured, message in (
        ("unknown", "expected a hash"),
        ("", "expected a hash"),
        (f"{head}, abcdef1", "which HEAD does not descend from"),
        (f"{head}+", "code differed from it"),
    ):
        with pytest.raises(ValueError, match=message):
            common.validate_commit(measured)
    (checkout / "cadre" / "a.py").write_text("2\n")
    with pytest.raises(ValueError, match=r"code differed .* Not recorded: .*0\.25"):
        record()
    assert (checkout / "results" / "file.jsonl").read_text().count("\n") == 2


def test_without_git_the_commit_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("BENCH_COMMIT", raising=False)
    with pytest.raises(ValueError, match="set BENCH_COMMIT"):
        record()
    monkeypatch.setenv("BENCH_COMMIT", "b29dde3")
    record()
    assert common.latest()["figure"]["commit"] == "b29dde3"
