"""A program that cannot be played again is refused the trees that would play it again, before a model loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cadre.config.experiment import parse
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from tests.helpers.programs import AGENTS, ROLES


def resolved(folder: Path, algorithm: Any, **settings: Any) -> Any:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"word": word}) + "\n" for word in ("fox", "owl", "cat")))
    arguments = {"run": f"{AGENTS}:odd", "roles": ROLES, "tasks": str(tasks), "held_out": 0.0, **settings}
    team = {"policies": {"shared": "seed"}, "roles": dict.fromkeys(ROLES, "shared")}
    chosen = {"env": "program", "settings": arguments, "team": team, "algorithm": algorithm, "evaluate": {"tasks": 0}}
    return resolve(parse(chosen))


@pytest.mark.parametrize("algorithm", ["at_grpo", "magrpo", "tree_rl", {"name": "at_grpo", "k": [1, 4]}])
def test_trees_that_branch_later_are_refused(tmp_path: Path, algorithm: Any) -> None:
    with pytest.raises(ConfigError, match=r"settings.replayable: got false .*Use algorithm=grpo") as caught:
        resolved(tmp_path, algorithm, replayable=False)
    assert "\n" not in str(caught.value)


def test_episodes_side_by_side_and_answers_that_are_paid_at_once_are_not(tmp_path: Path) -> None:
    resolved(tmp_path, "grpo", replayable=False)
    resolved(tmp_path, {"name": "ma_reinforce", "k": 1}, replayable=False)
    resolved(tmp_path, "at_grpo", replayable=False, turn_reward=f"{AGENTS}:score_turn")
    with pytest.raises(ConfigError, match=r"settings\.replayable"):
        resolved(tmp_path, "magrpo", replayable=False, turn_reward=f"{AGENTS}:score_turn")


def test_a_program_that_can_be_played_again_may_branch_anywhere(tmp_path: Path) -> None:
    resolved(tmp_path, "at_grpo")
