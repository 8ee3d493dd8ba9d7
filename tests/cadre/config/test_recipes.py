"""Recipes that name another one as `base`."""

from __future__ import annotations

from pathlib import Path

import pytest

import cadre
from cadre.config.experiment import load
from cadre.config.recipes import read_recipe
from cadre.errors import ConfigError

OTHER = "team: {policies: {shared: seed}, roles: {planner: shared}}"


def test_a_recipe_says_what_differs_from_its_base(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: plan-path\ntrain: {steps: 3}\nalgorithm: {name: gigpo, k: 2}\n")
    recipe, base = read_recipe(str(file)), read_recipe("plan-path")
    assert recipe["train"] == {"steps": 3, "tasks_per_step": 16}  # merged key by key
    assert recipe["algorithm"] == {"name": "gigpo", "k": 2}  # an algorithm stands whole
    assert {key: recipe[key] for key in ("env", "team", "sampling")} == {
        key: base[key] for key in ("env", "team", "sampling")
    }
    assert "base" not in recipe


def test_a_base_may_be_a_file_beside_and_have_one_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is meant from the folder of the one that names it, wherever the command is called."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "first.yaml").write_text(f"base: plan-path-no-tool\n{OTHER}\ntrain: {{steps: 5}}\n")
    second = tmp_path / "recipes" / "second.yaml"
    second.write_text("base: first.yaml\ntrain: {tasks_per_step: 2}\n")
    monkeypatch.chdir(tmp_path)
    config = load("recipes/second.yaml")
    assert (config.env, config.train.steps, config.train.tasks_per_step) == ("plan-path-no-tool", 5, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base: plan-pth\n", "base: got 'plan-pth'.*Did you mean plan-path?"),
        ("base: missing.yaml\n", "base: got .*missing.yaml', which is neither a bundled recipe nor a file"),
        ("base: [plan-path]\n", "base: got \\['plan-path'\\]"),
        ("base: mine.yaml\n", "leads back to where it began"),
        ("base: other.yaml\n", "leads back to where it began"),
    ],
)
def test_a_base_that_cannot_be_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text("base: mine.yaml\n")
    with pytest.raises(ConfigError, match=expected):
        read_recipe(str(tmp_path / "mine.yaml"))


def test_python_may_name_a_base() -> None:
    with pytest.raises(ConfigError, match="Did you mean plan-path"):
        cadre.load({"base": "plan-pth"})
    team = cadre.load({"base": "plan-path", "evaluate": {"tasks": 3}})
    team.close()
    assert (team.experiment.config.env, team.experiment.config.evaluate.tasks) == ("plan-path", 3)
