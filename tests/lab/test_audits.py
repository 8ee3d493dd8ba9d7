"""The bench of credits: every credit fits every game, and an audit is kept with its intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import common
from cadre.config.experiment import load
from lab import audits

PART = {"decisions": 40, "correlation": [0.5, 0.25, 0.75], "explained": [0.25, 0.0, 0.5], "ceiling": [0.8, 0.6, 1.0]}


@pytest.mark.parametrize("game", audits.GAMES)
@pytest.mark.parametrize("name", audits.CREDITS)
def test_every_credit_has_the_settings_of_its_recipe(name: str, game: str) -> None:
    credit = audits.CREDITS[name]
    its_own = load("plan-path" if isinstance(credit, dict) else credit, [audits.override(name)]).algorithm
    assert its_own.name == {"gdpo": "grpo"}.get(name, name)
    assert load(game, [audits.override(name)]).algorithm == its_own


def test_an_audit_is_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "validate_commit", lambda commit: None)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    game = audits.GAMES["plan-path"]
    audit = audits.Audit(game, game.run(tmp_path), "c3", untrained=True)
    report = {**dict.fromkeys(("all", "tool", "tool/0"), PART), "tool/2": PART | {"decisions": 3}}
    audit.file.write_text(json.dumps({"report": report, "minutes": 1.5, "commit": "abc"}))
    audit.keep()
    latest = common.latest()
    name = "audit.c3.plan-path.untrained"
    figures = ("correlation", "explained", "at_most", "minutes", "tool/0.correlation", "tool/2.correlation")
    assert set(latest) == {f"{name}.{figure}" for figure in figures}
    stored = latest[f"{name}.correlation"]
    assert (stored["value"], stored["low"], stored["high"], stored["n"]) == (0.5, 0.25, 0.75, 40)
