"""docs/own_tool.md from its first line to a trained model, with the files and commands that it prints."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from statistics import fmean

import pytest

from cadre.runs.folder import Run
from tests.cadre.cli.calling import call
from tests.docs.blocks import ROOT, blocks_of, commands_of

PAGE = ROOT / "docs" / "own_tool.md"
SHORT = {"steps: 20": "steps: 1", "tasks_per_step: 8": "tasks_per_step: 1", "tasks: 40": "tasks: 2", "k: 8": "k: 2"}


@pytest.mark.parametrize("is_short", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_page_leads_to_a_model_that_calls(is_short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks_of(PAGE):
        if name := re.match(r'(?:"""|# )([\w-]+\.(?:py|yaml))\b', block.text):
            text = block.text
            for long, short in SHORT.items() if is_short and block.language == "yaml" else ():
                assert long in text
                text = text.replace(long, short)
            Path(name[1]).write_text(text)
    runpy.run_path("examples.py")
    assert len(Path("examples.jsonl").read_text().splitlines()) == 480
    commands = [command.text for command in commands_of(PAGE) if not command.inline]
    done = [command for command in commands if command.split()[1] in ("check", "warm-start", "train")]
    assert [command.split()[1] for command in done] == ["check", "warm-start", "train"]
    for command in done:
        words = shlex.split(command.replace("--steps 60", "--steps 1") if is_short else command)
        result = call(*words[1:])
        assert result.code == 0, result.err
    run = Run.open(Path("runs/doors"))
    assert len(run.evaluations()) == 2
    if not is_short:
        success = [metrics["rollout/success"] for metrics in run.metrics()]
        assert fmean(success[-5:]) > fmean(success[:5]) + 0.1
