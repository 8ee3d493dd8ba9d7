"""The recipes of coding agents, and the judge of what they leave; a slow test plays mini-swe-agent, if it is there."""

import asyncio
import importlib
import json
import sys
from pathlib import Path

import pytest

from cadre_programs.settings import InstanceLimits, make_launch
from tests.helpers.extras import skip_without

HARNESSES = Path(__file__).parents[2] / "examples" / "harnesses"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(HARNESSES))
    yield
    for name in ("judge", "try_harness", "small_model", "make_tasks"):
        sys.modules.pop(name, None)


def rows():
    return [json.loads(line) for line in (HARNESSES / "tasks.jsonl").read_text().splitlines()]


def test_a_program_is_not_given_the_hidden_calls():
    assert [set(row) for row in rows()] == [{"name", "issue", "files"}] * 8


def test_the_judge_rewards_the_hidden_calls_that_are_right():
    judge = importlib.import_module("judge")
    (row, *_), success = rows(), []
    fixed = json.loads((HARNESSES / "hidden" / f"{row['name']}.json").read_text())["fixed"]
    for files in (row["files"] | fixed, row["files"], {}):
        success.append(asyncio.run(judge.score(row, [], {"files": files})))
    assert [outcome["success"] for outcome in success] == [True, False, False]
    assert success[0]["team"] == 1.0 > success[1]["team"]
    assert success[2]["team"] == 0.0


@pytest.mark.parametrize("name", ["mini_swe_agent", "codex", "opencode", "qwen_code", "terminus"])
def test_every_harness_has_a_recipe_that_names_its_function(name):
    settings, tasks = importlib.import_module("try_harness").load(name, [])
    file, _, function = settings["run"].rpartition(":")
    assert f"def {function}(task)" in Path(file).read_text()
    assert make_launch(settings["run"], "fork", InstanceLimits(), "", {}).is_function
    assert tasks


@pytest.mark.slow
def test_mini_swe_agent_solves_a_task_and_is_replayed():
    skip_without("minisweagent")
    harness = importlib.import_module("try_harness")
    settings, tasks = harness.load("mini_swe_agent", [])
    assert asyncio.run(harness.episode("mini_swe_agent", settings, tasks[0])) == 1.0


def test_a_repository_for_testing_shares_no_name_with_training_and_a_new_bug_no_bug(monkeypatch):
    small_model = importlib.import_module("small_model")
    monkeypatch.setattr(small_model, "SPLITS", {"train": 20, "test": 5, "new_bugs": 5})
    repositories = {split: [*small_model.draw_repositories(split)] for split in small_model.SPLITS}

    def bugs(split):
        return {
            edit for data in repositories[split] for edit in small_model.find_right_edits(data["files"], data["fixed"])
        }

    names = {split: {data["package"] for data in drawn} for split, drawn in repositories.items()}
    assert not names["train"] & (names["test"] | names["new_bugs"])
    assert not bugs("train") & bugs("new_bugs")


def test_an_edit_is_a_text_that_a_rule_may_have_written_and_what_stood_there():
    small_model = importlib.import_module("small_model")
    files = {"oak/main.py": "def run(a):\n    return a[0] + max(a)\n", "test_run.py": "run(1 < 2)\n"}
    assert small_model.find_edits(files) == [("a[0]", "a[-1]"), (" + max", " - max"), ("max(a", "min(a")]
