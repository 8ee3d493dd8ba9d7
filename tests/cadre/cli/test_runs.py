"""`cadre status`: what a run says of itself while it goes on and when it has ended."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cadre.cli.app import app
from cadre.cli.runs import format_status
from cadre.rollout.episodes import SampledTrees
from cadre.runs import progress
from cadre.runs.progress import read_status
from cadre.training import loop
from cadre.training.loop import Training, sample_step
from tests.helpers.training import configured, play


def test_a_run_says_what_it_does(
    speaker: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, real = [], sample_step
    folder = tmp_path / "run"

    async def looking(training: Training, step: int) -> SampledTrees:
        sampled = await real(training, step)
        if step == 3:
            import asyncio

            await asyncio.sleep(0.1)
            recorded.append(read_status(folder))
        return sampled

    monkeypatch.setattr(loop, "sample_step", looking)
    monkeypatch.setattr(progress, "STATUS_SECONDS", 0.01)
    play(configured(speaker, train={"steps": 5, "tasks_per_step": 4, "max_staleness": 2}), folder, quiet)
    (during,) = recorded
    assert (during["runs"], during["step"], during["learning"]) == (True, 1, False)
    assert (during["ready"], during["sampling"]) == ([1, 2], [3])
    assert during["staleness"]["speaker/staleness"] == 0.0
    final_report = json.loads(CliRunner().invoke(app, ["status", str(folder), "--json"]).output)
    assert (final_report["runs"], final_report["step"], final_report["sampling"], final_report["ready"]) == (
        False,
        5,
        [],
        [],
    )
    assert final_report["staleness"]["rollout/staleness_max"] == 2
    assert final_report["tokens_per_s"] > 0


def test_in_words() -> None:
    text = {
        "runs": True,
        "written": 100.0,
        "step": 4,
        "steps": 30,
        "learning": True,
        "sampling": [6],
        "ready": [4, 5],
        "max_staleness": 2,
        "staleness": {"tool/staleness": 1.5},
        "tokens_per_s": 1234.4,
    }
    assert format_status(text, 103.0) == [
        "run        running, step 4 of 30; written 3 s ago",
        "doing      learning and sampling step 7",
        "ahead      2 steps sampled and waiting, at most 2 updates ahead",
        "staleness  tool/staleness 1.5",
        "tokens/s   1,234 in the last step",
    ]
