"""The target that a name stands for: a run, a model, a recipe or a file."""

from pathlib import Path

import pytest

from cadre.config.experiment import dump, load
from cadre.config.resolve import find_target
from cadre.errors import ConfigError
from cadre.runs.folder import Run


def test_a_run_keeps_its_configuration_but_for_what_is_changed(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", load("plan-path", ["sampling.max_tokens=9"]))
    target = find_target(str(tmp_path / "run"), ["settings.turns=1"], {"sampling": {"temperature": 0.5}})
    assert target.run == tmp_path / "run"
    assert target.config.settings["turns"] == 1
    assert (target.config.sampling.max_tokens, target.config.sampling.temperature) == (9, 0.5)


@pytest.mark.parametrize(
    "chosen", [["settings.data=a.jsonl"], ["settings={data: a.jsonl}"], ["settings={test: a.jsonl}"]]
)
def test_a_setting_that_the_experiment_changes_on_held_out_tasks_is_refused(chosen: list[str], tmp_path: Path) -> None:
    """Mistake: it is taken, and the held-out tasks are those of before."""
    changed = "evaluate: {settings: {test: b.jsonl, held_out: 3}}"
    (tmp_path / "mine.yaml").write_text(f"env: maths\nteam: seed\nalgorithm: grpo\n{changed}\n")
    with pytest.raises(ConfigError, match=r"Set evaluate\.settings\.test in its place"):
        find_target(str(tmp_path / "mine.yaml"), chosen)
    found = find_target(str(tmp_path / "mine.yaml"), ["evaluate.settings.test=a.jsonl"])
    assert found.config.evaluate.settings == {"test": "a.jsonl", "held_out": 3}


@pytest.mark.parametrize("broken", ["settings={a", "settings=]", "settings=*x", "settings=!foo 3"])
def test_settings_that_are_no_yaml_are_told_in_a_paragraph(broken: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "env: maths\nteam: seed\nalgorithm: grpo\nevaluate: {settings: {test: b.jsonl}}\n"
    )
    with pytest.raises(ConfigError, match="settings"):
        find_target(str(tmp_path / "mine.yaml"), [broken])


def test_a_model_plays_every_role_of_an_environment(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in (str(tmp_path), "Qwen/Qwen3-1.7B"):
        target = find_target(name, ["env=plan-path", "team.policies.*.dtype=bfloat16"])
        (policy,) = target.config.team.policies.values()
        assert (policy.model, policy.dtype) == (name, "bfloat16")
        assert (target.run, list(target.config.team.roles)) == (None, ["tool", "planner"])
        with pytest.raises(ConfigError, match=r"is taken for a model.*expected the environment"):
            find_target(name)


def test_a_recipe_is_as_it_stands(tmp_path: Path) -> None:
    assert find_target("plan-path").config == load("plan-path")
    (tmp_path / "mine.yaml").write_text(dump(load("sudoku")))
    assert find_target(str(tmp_path / "mine.yaml")).config.env == "sudoku"
    for wrong in ("plan-pth", "recipes/none.yaml", str(tmp_path / "none"), "./none/here"):
        with pytest.raises(ConfigError, match="neither a bundled recipe nor a file"):
            find_target(wrong)
