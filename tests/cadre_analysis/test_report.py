"""A run as a page."""

import json
import subprocess
from pathlib import Path

import pytest

from cadre.runs.folder import Run, git_commit
from cadre_analysis.report import summary_lines, write_summary
from tests.cadre.cli.calling import call
from tests.cadre.view.runs import synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run.open(synthetic(tmp_path_factory.mktemp("report") / "run", 3, 1))
    run.log_evaluation(
        0, {"success": 0.5, "low": 0.25, "high": 0.75, "tasks": 20, "reward": 1.0, "tokens": 1234.0, "parts": {}}
    )
    run.close()
    return run


def test_results_have_intervals_and_costs_are_summed(run: Run) -> None:
    page = "\n".join(summary_lines(run, price=3600.0))
    assert "| 0 | 50.0% | 25.0% to 75.0% | 20 | +1.00 | 1,234 |" in page
    assert "2,700 tokens sampled" in page
    assert "4 s sampling" in page
    assert "4.50 at 3,600.00 an hour" in page
    assert "name: at_grpo" in page


def test_commits_are_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "commits: none is known" in "\n".join(summary_lines(run))
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    (tmp_path / "mine.yaml").touch()
    for command in (["init", "-q"], ["add", "mine.yaml"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    clean = git_commit(Path())
    (tmp_path / "mine.yaml").write_text("changed")
    assert (len(clean), git_commit(Path())) == (12, f"{clean}+")
    run.record_environment()
    assert f"the folder that it was begun in at {clean}+" in "\n".join(summary_lines(run))
    monkeypatch.setenv("PATH", "")
    assert git_commit(Path()) == ""


def test_plots_stand_beside_the_page(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra plots, is not installed")
    write_summary(run, tmp_path / "report.md")
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures[0] == "report-1.png"
    assert all(f"]({picture})" in (tmp_path / "report.md").read_text() for picture in pictures)


def test_a_picture_that_is_there_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "report-2.png").write_bytes(b"mine")
    result = call("report", str(run.folder), "--out", str(tmp_path / "report.md"))
    assert result.code == 2
    assert "report-2.png exists" in " ".join(result.err.split())
    assert (tmp_path / "report-2.png").read_bytes() == b"mine"


def test_texts_of_a_stranger_are_no_html(run: Run) -> None:
    harm = "`</code><script>harm()</script>\n<img src=x>"
    (run.folder / "command.json").write_text(json.dumps({"recipe": harm, "overrides": ["a=```"]}))
    (run.folder / "environment.json").write_text(json.dumps({"machine": harm, "commits": {"cadre": harm}}))
    run.config = run.config.model_copy(update={"env": f"```\n{harm}"})
    page = list(summary_lines(run))
    code = next(line for line in page if line.startswith("`cadre train"))
    assert code.count("`") == 2
    fence = page[-1]
    settings = page[page.index(f"{fence}yaml") + 1]
    assert fence not in settings
    rest = [line for line in page if line not in (code, settings)]
    assert not any("<" in line for line in rest)
