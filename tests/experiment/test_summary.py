"""A run as a page."""

from pathlib import Path

import pytest

from cadre.experiment import summary
from cadre.experiment.run_directory import Run
from tests.view.runs import synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = Run.open(synthetic(tmp_path_factory.mktemp("report") / "run", 3, 1))
    made.log_evaluation(
        0, {"success": 0.5, "low": 0.25, "high": 0.75, "tasks": 20, "reward": 1.0, "tokens": 1234.0, "parts": {}}
    )
    made.close()
    return made


def test_results_have_intervals_and_costs_are_summed(run: Run) -> None:
    page = "\n".join(summary.lines(run))
    assert "| 0 | 50.0% | 25.0% to 75.0% | 20 | +1.00 | 1,234 |" in page
    assert "2,700 tokens sampled" in page
    assert "4 s sampling" in page
    assert "name: at_grpo" in page


def test_plots_stand_beside_the_page(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra plots, is not installed")
    summary.write(run, tmp_path / "report.md")
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures[0] == "report-1.png"
    assert all(f"]({picture})" in (tmp_path / "report.md").read_text() for picture in pictures)
