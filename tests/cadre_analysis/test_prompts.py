"""`cadre optimise-prompts`: better prompts are found by training tasks alone, and a call goes on where it stopped.

The policy is a script that answers by its system message; the package gepa itself chooses.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import cadre
from cadre.api import resolve_sections
from cadre.engines.openai import OpenAISampler
from cadre.engines.scripted import ScriptedSampler
from cadre.errors import ConfigError, EngineError, PromptError, RunError
from cadre.evaluation.loaded_team import LoadedTeam
from cadre.settings.yaml_file import read_yaml
from cadre.team import Team
from cadre.types import Branch, Message, Node, Observation, Request, Reward, Sample
from cadre_analysis import prompts
from tests.cadre.cli.calling import call
from tests.helpers.games import Relay

SIZE: dict[str, Any] = {"tokens": 2_000, "training_tasks": 4, "held_out_tasks": 4, "quiet": True}
RECIPE: dict[str, Any] = {
    "team": {"policies": {"both": "seed"}, "roles": {"scout": "both", "runner": "both"}},
    "algorithm": "at_grpo",
    "settings": {"turns": 1},
}


class Script:
    """The runner repeats the note if it is told to, and whoever is asked for instructions says so. Counts requests, and
    fails as an endpoint does that is down after `most` of them."""

    def __init__(self, most: int = 10**9) -> None:
        self.most, self.written, self.played = most, 0, 0

    def __call__(self, request: Request) -> list[str]:
        if self.written + self.played >= self.most:
            raise EngineError("the endpoint is down")
        first, last = request.messages[0], request.messages[-1].content
        if "write a new instruction" in last:
            self.written += 1
            return ["Think.\n```\nRepeat the note.\n```"]
        self.played += 1
        is_told = first.role == "system" and "Repeat the note." in first.content
        note = last.partition("note=")[2].partition(" ")[0]
        return [note if is_told and request.role == "runner" else "hm" if request.role == "scout" else "no"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Give the team a script in place of its model."""
    chosen = Script()

    def load(experiment: Any, run: Path | None) -> LoadedTeam:
        samplers = dict.fromkeys(experiment.policies, ScriptedSampler(chosen))
        return LoadedTeam(experiment, Team(experiment.roles, samplers, experiment.sampling))

    monkeypatch.setattr(prompts, "load_team", load)
    return chosen


needs_gepa = pytest.mark.skipif(find_spec("gepa") is None, reason="gepa is not installed")


@needs_gepa
def test_a_prompt_that_earns_more_is_found_with_training_tasks_alone(script: Script, tmp_path: Path) -> None:
    found = cadre.optimise_prompts(Relay, run=tmp_path / "x", **SIZE, **RECIPE)
    assert found.prompts == {"runner": "Repeat the note."}  # and none for the scout, which earns no more by it
    # Wilson's interval of 4 of 4 begins at 4 / (4 + 1.96^2) = 0.5101.
    assert (found.before[0], found.after[0], found.difference[0]) == (0.0, 1.0, 1.0)
    assert found.after[1] == pytest.approx(0.5101, abs=1e-4)
    assert found.tokens >= 2_000
    assert script.written == found.rounds > 1
    assert "test-" not in (tmp_path / "x" / "sampled.jsonl").read_text()
    assert read_yaml(found.recipe)["team"]["prompts"] == found.prompts
    assert json.loads((tmp_path / "x" / "result.json").read_text())["after"] == list(found.after)
    planned = resolve_sections(found.recipe, {}).env_spec
    shown = planned.make(planned.tasks("test")[0]).observe()["scout"].messages
    assert [message.role for message in shown] == ["user"]
    assert planned.prompts == found.prompts


@needs_gepa
def test_what_was_sampled_before_a_failure_is_not_sampled_again(script: Script, tmp_path: Path) -> None:
    whole = cadre.optimise_prompts(Relay, run=tmp_path / "whole", **SIZE, **RECIPE)
    played, written, script.played, script.written = script.played, script.written, 0, 0
    script.most = 40
    with pytest.raises(EngineError, match="the endpoint is down"):
        cadre.optimise_prompts(Relay, run=tmp_path / "parts", **SIZE, **RECIPE)
    script.most = 10**9
    parts = cadre.optimise_prompts(Relay, run=tmp_path / "parts", **SIZE, **RECIPE)
    lost = script.played + script.written - played - written
    assert 0 <= lost <= 4  # of the episodes that were not over
    for name in ("sampled.jsonl", "before.json", "after.json"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert (parts.prompts, parts.difference, parts.tokens) == (whole.prompts, whole.difference, whole.tokens)
    with pytest.raises(RunError, match="has tokens: 2000, and this one 3000; expected the same"):
        cadre.optimise_prompts(Relay, run=tmp_path / "parts", **(SIZE | {"tokens": 3_000}), **RECIPE)


@needs_gepa
def test_an_endpoint_writes_where_it_is_named(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def endpoint(**arguments: Any) -> ScriptedSampler:
        asked.append(tuple(arguments.values()))
        return ScriptedSampler(lambda request: ["```\nNothing.\n```"])

    monkeypatch.setattr(prompts, "OpenAISampler", endpoint)
    writer = {"model": "large", "url": "http://localhost:1/v1"}
    found = cadre.optimise_prompts(Relay, run=tmp_path / "x", writer=writer, **SIZE, **RECIPE)
    assert set(asked) == {("OPENAI_API_KEY", "large", "http://localhost:1/v1")}
    assert (script.written, found.prompts, found.difference[0]) == (0, {}, 0.0)
    assert not (tmp_path / "x" / "after.json").exists()
    # GEPA itself would go on without.
    monkeypatch.setattr(prompts, "OpenAISampler", OpenAISampler)
    with pytest.raises(EngineError, match="Check the url, the model's name and the key"):
        cadre.optimise_prompts(Relay, run=tmp_path / "y", writer=writer, **SIZE, **RECIPE)


@needs_gepa
def test_a_prompt_that_leaves_no_room_earns_as_little_as_any(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(self: Script, request: Request) -> list[str]:
        if request.messages[0].role == "system":
            raise PromptError("the prompt exceeds the context")
        return ["```\nToo long.\n```" if "write a new instruction" in request.messages[-1].content else "hm"]

    monkeypatch.setattr(Script, "__call__", answer)
    found = cadre.optimise_prompts(Relay, run=tmp_path / "x", **(SIZE | {"tokens": 800}), **RECIPE)
    lines = [json.loads(line) for line in (tmp_path / "x" / "sampled.jsonl").read_text().splitlines()]
    failed = [line for line in lines if line.get("roles", {}).get("scout") == []]
    # The scout earns 2 for two letters, and the team 1 for the runner's, which are the same.
    assert {line["reward"] for line in lines if "reward" in line} == {3.0}
    assert (len(failed) > 0, {line["tokens"] for line in failed}, found.prompts) == (True, {0}, {})


@needs_gepa
def test_the_command(script: Script, tmp_path: Path) -> None:
    arguments = ("plan-path", "--run", str(tmp_path / "x"), "--tasks", "4", "--held-out", "4", "--tokens", "300")
    assert call("optimise-prompts", *arguments, "--writer", "{model: m}").code == 2
    printed = call("optimise-prompts", *arguments, "sampling.max_tokens=8")
    assert printed.code == 0, printed.err
    assert "round 0: " in printed.out
    assert "held-out success before 0.0% [" in printed.out
    assert f"{tmp_path / 'x' / 'recipe.yaml'} has the prompts" in " ".join(printed.out.split())


def test_without_gepa_the_error_has_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gepa", None)
    with pytest.raises(ConfigError, match=r"optimise-prompts: needs the package gepa.*pip install .*\[prompts\]"):
        cadre.optimise_prompts(Relay, run=tmp_path / "x", **SIZE, **RECIPE)
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_is_refused_before_anything_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gepa", pytest)
    for changed in ({"tokens": 0}, {"training_tasks": 1}, {"training_tasks": 5}, {"held_out_tasks": 1}):
        with pytest.raises(ConfigError, match=r"expected a token .* two tasks .* at most 4 to train on"):
            cadre.optimise_prompts(Relay, run=tmp_path / "x", **(SIZE | changed), **RECIPE)
    with pytest.raises(ConfigError, match=r"writer: got \{'model': 'm'\}; expected the model and the url"):
        cadre.optimise_prompts(Relay, run=tmp_path / "x", writer={"model": "m"}, **SIZE, **RECIPE)
    assert not (tmp_path / "x").exists()


def test_an_episode_as_the_writer_is_shown_it() -> None:
    def said(role: str, text: str, tokens: int) -> tuple[Sample, ...]:
        return (Sample(role, "both", text, (), (1,) * tokens, (), "stop", 0),)

    shown = Observation("left", (Message("system", "Be brief."), Message("user", "Which side?")))
    samples = {"left": said("left", "Left.", 3), "right": said("right", "Right, as I am ben.", 0)}
    branch = Branch({"left": 0, "right": 0}, Reward(team=1.0, local={"left": 0.25}), over=True, success=True)
    node = Node(0, {"left": shown, "right": shown}, samples, (branch,))
    assert prompts.describe(((node, branch),), "left", "Be brief.") == {
        "role": "left, one of a team",
        "turns": [
            {
                "shown": "Which side?",
                "answer": "Left.",
                "answers of the others at once": {"right": "Right, as I am ben."},
                "reward of this turn": "1.25",
            }
        ],
        "feedback": "solved; the rewards sum to 1.25",
    }
    # An endpoint's tokens are not known: a quarter of 19 characters, and one.
    assert [prompts.count_tokens(sample) for (sample,) in samples.values()] == [3, 5]
