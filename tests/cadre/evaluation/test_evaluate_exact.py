"""Exact figures of a game from the embedded model's own probabilities."""

import json
from pathlib import Path

import pytest

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.evaluation.evaluate import exact_field, exact_game_values
from cadre.evaluation.loaded_team import load_team
from tests.cadre.cli.calling import call
from tests.helpers.games import Relay, scripted_team

pytest.importorskip("pyspiel", reason="the extra openspiel is not installed")


@pytest.mark.parametrize(
    ("recipe", "figure", "low", "high"),
    [
        ("kuhn-poker", "exploitability", 0.4, 0.75),
        ("tiny-hanabi", "value", 3.0, 4.5),
        ("coordination-matrix", "value", 0.4, 0.6),
    ],
)
def test_the_model_of_games_plays_at_random(recipe: str, figure: str, low: float, high: float) -> None:
    experiment = resolve(load(recipe))
    loaded = load_team(experiment, None)
    assert low < exact_game_values(loaded.team, experiment.env_spec)[figure] < high
    loaded.close()


def test_the_figures_are_those_of_the_prompts_that_the_roles_see() -> None:
    text = [f"team.prompts.player_{number}=Answer the second action." for number in range(2)]
    plain, prompted = (resolve(load("tiny-hanabi", changes)).env_spec.choices() for changes in ([], text))
    assert [item.observation.messages[-1] for item in prompted] == [item.observation.messages[-1] for item in plain]
    assert {item.observation.messages[0].content for item in prompted} == {"Answer the second action."}
    assert (
        resolve(load("tiny-hanabi", ["algorithm={name: magrpo_central, k: 2}", "team=games"])).env_spec.choices() == ()
    )


def test_eval_prints_them(tmp_path: Path) -> None:
    result = call("eval", "kuhn-poker", "--tasks", "2", "--json")
    assert result.code == 0
    assert 0.4 < json.loads(result.out)["exact"]["exploitability"] < 0.75
    assert "exploitability 0.6" in call("eval", "kuhn-poker", "--tasks", "2").out


def test_others_have_none() -> None:
    team, _ = scripted_team(Relay, lambda request, index: "0")
    experiment = resolve(load("plan-path"))
    assert exact_field(team, experiment.env_spec) == {}
    assert exact_field(team, resolve(load("kuhn-poker")).env_spec) == {}
