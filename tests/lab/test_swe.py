"""The training with mini-swe-agent in small, if it is there."""

import json
import sys

import pytest

from lab import swe
from tests.helpers.extras import skip_without


@pytest.mark.slow
def test_a_seed_is_made_trained_and_evaluated_before_and_after(tmp_path, monkeypatch, capsys):
    skip_without("minisweagent")
    monkeypatch.setattr(swe, "NEW_BUGS", 1)
    folder = tmp_path / "swe"
    swe.make(folder, sys.executable, ["--conversations", "2", "--steps", "2"])
    conversation = json.loads((folder / "conversations.json").read_text())["all"][0]
    assert [role for role, _ in conversation[:4]] == ["system", "user", "assistant", "user"]
    assert "def run(" in conversation[3][1]
    sections = {"steps": 1, "evaluate": {"tasks": 2}, "algorithm": {"name": "grpo", "k": 2}, "quiet": True}
    for seed in (0, 1):
        result = swe.train(folder, seed, sections)
        assert [len(result[name]) for name in ("before", "after", "new_bugs.before", "training")] == [2, 2, 1, 1]
        (folder / f"seed-{seed}.json").write_text(json.dumps(result))
    swe.report(folder, write=False)
    assert "new_bugs.gain: " in capsys.readouterr().out
