"""The model card of an export, also from a stranger's run, and its upload."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml

from cadre.config.experiment import load
from cadre.errors import ConfigError, RunError
from cadre.runs.export import check_repository, format_model_card, push_to_hub


def run_of(model: str, recipe: str = "plan-path", overrides: tuple[str, ...] = ()) -> SimpleNamespace:
    config = load("plan-path", [f"team={{policies: {{shared: '{model}'}}, roles: {{tool: shared, planner: shared}}}}"])
    reports = [{"step": step, "success": step / 10, "low": 0.0, "high": 0.9, "tasks": 50} for step in (0, 4, 8)]
    return SimpleNamespace(
        config=config,
        policies=config.team.policies,
        command=lambda: (recipe, list(overrides)),
        evaluations=lambda: reports,
    )


def test_the_card_of_a_model_of_the_hub():
    card = format_model_card(run_of("Qwen/Qwen3-0.6B"), "shared", 8, is_adapter=True)
    _, metadata, text = card.split("---\n", 2)
    assert yaml.safe_load(metadata) == {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["cadre", "reinforcement-learning", "multi-agent", "at_grpo"],
        "base_model": "Qwen/Qwen3-0.6B",
    }
    assert "8 updates of at_grpo on plan-path. It plays tool, planner." in text
    assert "| 0 | 0.0% | 0.0% to 90.0% | 50 |" in text
    assert "| 8 | 80.0% | 0.0% to 90.0% | 50 |" in text
    assert "| 4 |" not in text  # the weights are those of step 8


def test_what_a_stranger_wrote_stays_text():
    card = format_model_card(run_of("seed", "`x`\n# <script>", ("[a](b)\n---",)), "shared", 8, is_adapter=False)
    assert card.count("\n---\n") == 1  # the end of the metadata
    assert "\n# <script>" not in card
    assert "`cadre train 'x' # <script> [a](b) ---`" in card  # in a code span, where nothing is read as HTML
    assert "base_model" not in card


def test_names_of_repositories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    cards = [
        format_model_card(run_of(name), "shared", 8, is_adapter=True)
        for name in ("a/b", "models/mine", "seed", "/x/y", "a/b/c")
    ]
    assert ["base_model" in card for card in cards] == [True] + [False] * 4
    with pytest.raises(ConfigError, match="expected a repository of the hub, OWNER/NAME"):
        check_repository("b")


def test_an_upload(tmp_path, monkeypatch):
    calls = []

    class Api:
        def create_repo(self, name, **options):
            calls.append((name, options))

        def upload_folder(self, **options):
            calls.append(options)
            if options["repo_id"] == "a/refused":
                raise ValueError("403\nno write access")
            return SimpleNamespace(repo_url="https://hub/a/b")

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert push_to_hub(tmp_path, "a/b", public=False) == "https://hub/a/b"
    assert calls[0] == ("a/b", {"private": True, "exist_ok": True})
    assert calls[1]["folder_path"] == str(tmp_path)
    with pytest.raises(RunError, match="is written, and the upload to a/refused failed: 403;"):
        push_to_hub(tmp_path, "a/refused", public=True)
