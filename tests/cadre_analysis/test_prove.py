"""`cadre prove`: the plan, that it goes on where it stopped, what it writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cadre
from cadre.api import resolve_sections
from cadre.errors import ConfigError, RunError
from cadre.files import OpenRecord
from cadre.settings.yaml_file import read_yaml
from cadre.types import Branch, Node, Reward, Sample
from cadre_analysis import prove
from cadre_analysis.prove_report import Plan, Result, plan_lines, result_notes, verdict_line
from cadre_analysis.trainings import claim
from cadre_analysis.verdict import decide
from tests.cadre.cli.calling import call
from tests.helpers.coordination import write_speaker
from tests.helpers.games import Digit, Relay

METHODS = ["team-L0", "team-L2", "agent", "agent-grpo"]
SIZE: dict[str, Any] = {"seeds": 2, "tokens": 60, "held_out_tasks": 4, "rates": (1.0, 3.0), "quiet": True}


def recipe(model: Path) -> dict[str, Any]:
    return {
        "team": {"policies": {"shared": str(model)}, "roles": {"scout": "shared", "runner": "shared"}},
        "algorithm": {"name": "at_grpo", "k": 2},
        "credit": {"role_weights": {"scout": 0.5}},
        "sampling": {"max_tokens": 1},
        "train": {"tasks_per_step": 2, "trees_kept": 0, "checkpoint_minutes": 0.0},
        "trackers": {"names": []},
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speaker(tmp_path_factory.mktemp("model") / "speaker")


@pytest.fixture(scope="module")
def result(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """An experiment that is interrupted after its ninth training, and goes on."""
    folder, patch, trained = tmp_path_factory.mktemp("prove") / "x", pytest.MonkeyPatch(), []
    train_to_end = prove.train_to_end

    def interrupted(console: Any, method: Any, sections: Any, run: Path) -> Any:
        trained.append(str(run.relative_to(folder)))
        if len(trained) == 10:
            raise KeyboardInterrupt("stopped")
        return train_to_end(console, method, sections, run)

    patch.setattr(prove, "train_to_end", interrupted)
    arguments: dict[str, Any] = {"run": folder, "settings": {"turns": 1}, **SIZE, **recipe(model)}
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        cadre.prove(Relay, **arguments)
    planned = (folder / "plan.json").read_text()
    done = cadre.prove(Relay, **arguments)
    patch.undo()
    assert (folder / "plan.json").read_text() == planned
    # Each method is searched for, and all are trained with a seed before the next one; what was interrupted is begun
    # again, and nothing else.
    assert [run.rpartition("/")[0] for run in trained if trained.count(run) > 1] == ["team-L2"] * 2
    searched = [run.partition("/rate-")[0] for run in dict.fromkeys(trained) if "/rate-" in run]
    assert searched == [name for name in METHODS for _ in range(2)]
    assert [run for run in dict.fromkeys(trained) if "/rate-" not in run] == [
        f"{name}/seed-{seed}" for seed in range(2) for name in METHODS
    ]
    return done


def test_what_is_written(result: Result) -> None:
    written = json.loads((result.folder / "result.json").read_text())
    assert list(written["methods"]) == [*METHODS, "best-of-n", "vote"]
    assert written["verdict"]["word"] == result.verdict.word
    assert [one["agent"] for one in written["verdict"]["comparisons"]] == ["agent", "agent-grpo"]
    team = written["methods"]["team-L0"]
    assert len(team["by_seed"]) == 2
    assert team["tokens"] >= 60
    episodes = (result.folder / "team-L0" / "seed-0.episodes.jsonl").read_text().splitlines()
    assert len(episodes) == 4
    page = (result.folder / "index.html").read_text()
    assert "Is a team worth its tokens?" in page
    assert (result.folder / "verdict.svg").read_text() in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_the_agent_plays_the_same_tasks_for_all_roles(result: Result) -> None:
    methods = result.plan.methods
    assert methods["agent"]["env"] == "one-agent"
    assert methods["team-L0"]["credit"] == {"role_weights": {"scout": 0.5}}
    assert methods["agent"]["credit"] == {}  # the agent has no such role
    assert methods["agent"]["settings"]["settings"] == {"turns": 1}
    assert (methods["agent"]["algorithm"]["name"], methods["agent-grpo"]["algorithm"]) == (
        "at_grpo",
        {"name": "grpo", "k": 2},
    )
    reports = [json.loads((result.folder / name / "seed-0.json").read_text()) for name in METHODS]
    assert len({report["tasks_sha256"] for report in reports}) == 1


def test_a_plan_does_not_change(result: Result, model: Path) -> None:
    with pytest.raises(RunError, match="has tokens: 60, and this one 70; expected the same"):
        cadre.prove(Relay, run=result.folder, settings={"turns": 1}, **(SIZE | {"tokens": 70}), **recipe(model))


def test_a_plan_keeps_the_code_that_it_was_written_with(tmp_path: Path) -> None:
    """Mistake: a page that names commits by which most seeds were not trained."""
    first, again = (OpenRecord(tokens=60, code={"cadre": commit}) for commit in "ab")
    assert claim(tmp_path / "x", first) is first
    assert claim(tmp_path / "x", again).model_dump() == first.model_dump()


def test_a_folder_of_something_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    plan = Plan.model_construct()
    with pytest.raises(RunError, match=r"exists and has no plan\.json"):
        claim(tmp_path, plan)


def test_an_agent_with_optimised_prompts_is_one_to_beat(model: Path, tmp_path: Path) -> None:
    """GEPA finds no better prompt for a model of one word, so that its outcomes are those of the untrained agent."""
    pytest.importorskip("gepa", reason="gepa is not installed")
    arguments: dict[str, Any] = {"settings": {"turns": 1}, **(SIZE | {"rates": (1.0,)}), **recipe(model)}
    done = cadre.prove(Relay, run=tmp_path / "x", without=("agent", "team-L2"), prompts=True, **arguments)
    assert [one.agent for one in done.verdict.comparisons] == ["agent-grpo", "agent-gepa"]
    found = done.methods["agent-gepa"]
    assert found.rate is None
    assert found.tokens is not None
    assert found.tokens >= 60
    assert found.by_seed == (done.before["agent"][0],) * 2
    assert "Methods: team-L0, agent-grpo, agent-gepa, best-of-n, vote." in plan_lines(done.plan)
    with pytest.raises(RunError, match=r"has prompted: .*, and this one \{\}; expected the same"):
        cadre.prove(Relay, run=tmp_path / "x", without=("agent", "team-L2"), **arguments)


def test_a_task_of_one_role_is_no_team(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has the one role speaker; expected a team of two or more"):
        cadre.prove(Digit, run=tmp_path / "x", model=str(model), algorithm="at_grpo", **SIZE)
    with pytest.raises(ConfigError, match="expected two seeds and two tasks or more"):
        cadre.prove(Relay, run=tmp_path / "x", **(SIZE | {"seeds": 1}), **recipe(model))
    with pytest.raises(ConfigError, match=r"expected no more\. Lower --held-out"):
        cadre.prove(Relay, run=tmp_path / "x", **(SIZE | {"held_out_tasks": 5_000}), **recipe(model))
    assert not (tmp_path / "x").exists()


def test_policies_that_are_unlike_are_no_method(model: Path, tmp_path: Path) -> None:
    frozen = {"a": str(model), "b": {"model": str(model), "frozen": True}}
    team = {"team": {"policies": frozen, "roles": {"scout": "a", "runner": "b"}}}
    with pytest.raises(ConfigError, match="the policies a, b, some of them frozen or of other models"):
        cadre.prove(Relay, run=tmp_path / "x", **SIZE, **(recipe(model) | team))
    for changed in ({"test_tokens": 0}, {"rates": ()}, {"rates": (float("inf"),)}):
        with pytest.raises(
            ConfigError, match="expected two seeds and two tasks or more, a token or more, and one or more"
        ):
            cadre.prove(Relay, run=tmp_path / "x", **(SIZE | changed), **recipe(model))


def test_all_methods_are_tested_on_the_same_tasks(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"held-out task 0 of plan-path-single-agent is .*; expected"):
        cadre.prove(Relay, run=tmp_path / "x", agent="plan-path-single-agent", **SIZE, **recipe(model))


def plan_of(**sections: Any) -> Plan:
    request = prove.Request(2, 100, 4, 0, (1.0, 3.0), None, None)
    return prove.make_plan(resolve_sections("plan-path", sections), request)


def test_one_rate_needs_no_search_and_a_method_can_be_left_out(model: Path, tmp_path: Path) -> None:
    asked = {"rates": (1.0,), "without": ("team-L2", "agent")}
    result = cadre.prove(Relay, run=tmp_path / "x", settings={"turns": 1}, **(SIZE | asked), **recipe(model))
    assert list(result.plan.methods) == ["team-L0", "agent-grpo"]
    assert result.plan.left_out == {"team-L2": "As --without asks.", "agent": "As --without asks."}
    assert (
        sorted(path.name for path in (tmp_path / "x").glob("*/*") if path.is_dir()) == ["seed-0"] * 2 + ["seed-1"] * 2
    )
    assert "Training: 4 trainings; 2 seeds of 60 sampled tokens for each method, at the learning rate 1e-06." in (
        " ".join(plan_lines(result.plan))
    )
    for name in ("team-L0", "agent-grpo", "nobody"):
        with pytest.raises(ConfigError, match=f"--without: got '{name}'; expected one of team-L2, agent"):
            cadre.prove(Relay, run=tmp_path / "y", without=[name], **SIZE, **recipe(model))


def test_a_schedule_needs_the_number_of_updates_though_there_is_one_rate() -> None:
    policy = {"model": "seed", "learner": {"learning_rate": 0.5, "schedule": "cosine"}}
    request = prove.Request(2, 1_000, 4, 0, (1.0,), None, None)
    sections: dict[str, Any] = {"team": {"policies": {"shared": policy}}}
    assert prove.make_plan(resolve_sections("plan-path", sections), request).search_tokens == 500
    assert prove.make_plan(resolve_sections("plan-path", {}), request).search_tokens == 0


def test_the_rate_of_a_policy_is_searched_for_too() -> None:
    policy = {"model": "seed", "learner": {"learning_rate": 0.5, "schedule": "cosine"}}
    plan = plan_of(team={"policies": {"shared": policy}})
    assert plan.rates == [0.5, 1.5]
    for method in plan.methods.values():
        assert {str(p["learner"]) for p in method["team"]["policies"].values()} == {"{'schedule': 'cosine'}"}


def test_widths_by_decision_are_of_the_team() -> None:
    methods = plan_of(algorithm={"k": [4, 2]}).methods
    assert methods["team-L0"]["algorithm"]["k"] == [4, 2]
    assert (methods["agent"]["algorithm"]["k"], methods["agent-grpo"]["algorithm"]["k"]) == (4, 4)


def test_a_team_that_is_trained_by_grpo_is_compared_with_one_agent() -> None:
    assert list(plan_of(algorithm={"name": "grpo", "k": 2}).methods) == ["team-L0", "team-L2", "agent-grpo"]


def test_a_loss_is_printed_with_the_interval_that_counts(result: Result) -> None:
    team, better = np.zeros((4, 40)), np.ones((4, 40))
    line = verdict_line(replace(result, verdict=decide(team, {"agent": team, "agent-grpo": better})))
    # Wilson's of differences from -1 to 1 of 40 tasks: -1 + 2 * 3.8415 / 43.8415 = -0.8248, and -0.7768 with 5.0239.
    assert (
        "(agent +0.0 points [-8.8, +8.8], agent-grpo -100.0 points [-100.0, -82.5], at 97.5% [-100.0, -77.7])" in line
    )


def test_without_schedules_only_tokens_end_a_training(result: Result) -> None:
    config = read_yaml(result.folder / "agent" / "seed-0" / "config.yaml")
    assert config["train"]["steps"] == prove.MAX_STEPS
    short = replace(result, plan=result.plan.model_copy(update={"tokens": 10**9}))
    assert "Trained with fewer tokens than the 1,000,000,000 planned: team-L0" in result_notes(short)[0]
    assert "fewer tokens" not in " ".join(result_notes(result))


def test_the_command_prints_its_plan(tmp_path: Path) -> None:
    printed = call("prove", "plan-path", "--run", str(tmp_path / "x"), "--tokens", "5000", "--plan")
    assert printed.code == 0
    assert "Methods: team-L0, team-L2, agent, agent-grpo, best-of-n, vote." in printed.out
    assert "40 trainings; 8 seeds of 5,000 sampled tokens" in " ".join(printed.out.split())
    assert not (tmp_path / "x").exists()
    assert call("prove", "plan-path", "--run", str(tmp_path / "x"), "--rates", "a,b").code == 2
    printed = call("prove", "plan-path", "--run", str(tmp_path / "x"), "--plan", "--json")
    assert json.loads(printed.out)["seeds"] == list(range(8))


def test_an_interrupt_leaves_the_output_to_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prove.Work, "run", stop)
    printed = call("prove", "plan-path", "--run", str(tmp_path / "x"), "--json")
    assert (printed.code, printed.out) == (130, "")
    assert "the same command goes on" in " ".join(printed.err.split())


def episode(text: str, wins: bool) -> Any:
    sample = Sample("runner", "shared", text, (1,), (1,), (0.0,), "stop", 0)
    branch = Branch({"runner": 0}, Reward(), over=True, success=wins)
    return ((Node({}, {}, {"runner": (sample,)}, (branch,)), branch),)


def test_the_most_frequent_answer_wins_the_vote() -> None:
    votes = [episode("up  left", True), episode("down", False), episode("up left\n", True)]
    assert prove.vote(votes) == 1.0
    assert prove.vote(votes[:2]) == 1.0  # of equally frequent ones the first
    assert prove.vote([votes[1], votes[0]]) == 0.0
    assert prove.vote([]) == 0.0
