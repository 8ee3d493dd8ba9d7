"""A curriculum: when it moves, what it trains on, that a resume goes on exactly, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cadre.config.experiment import Config, parse
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from cadre.settings.run import CurriculumConfig
from cadre.training.checkpoint import latest_checkpoint, read_state
from cadre.training.loop import count_solved
from cadre.types import Branch, Node, Reward, Task, Tree
from tests.helpers.training import lines, play, weights

LEVELS = [{"size": 3}, {"size": 4}, {"size": 5}]


def tree(*successes: bool) -> Tree:
    """Return the tree of a task with an episode for each."""
    branches = tuple(Branch({}, Reward(), over=True, success=success) for success in successes)
    return Tree(Task("t", {}), Node(0, {}, {}, branches))


def test_the_level_moves_by_the_success_of_full_windows() -> None:
    config = CurriculumConfig(levels=LEVELS, up=0.75, down=0.25, window=4)
    state: dict[str, float] = {}
    solved, failed, half = tree(True), tree(False), tree(True, False)
    steps = [
        ([solved, solved], 0, 1.0),  # the window is not full
        ([solved, failed], 0, 0.75),  # 3 of 4: up
        ([half] * 4, 1, 0.5),  # between the bounds the level stays, and a window begins anew
        ([solved] * 5, 1, 1.0),  # up: a step may be longer than what is left of its window
        ([solved] * 4, 2, 1.0),  # there is no higher level
        ([failed, failed, failed, solved], 2, 0.25),  # down
        ([failed] * 4, 1, 0.0),
        ([failed] * 4, 0, 0.0),  # there is no lower level
        ([], 0, 0.0),
    ]
    for trees, level, success in steps:
        assert count_solved(state, config, trees) == {"curriculum/level": level, "curriculum/success": success}
    assert state["level"] == 0


def configured(steps: int, **changes: Any) -> Config:
    return parse(
        {
            "env": "plan-path-no-tool",
            "settings": {"prompts": "compact", "turns": 1, "size": 6},
            "team": "seed",
            "algorithm": {"name": "at_grpo", "k": 8},
            "sampling": {"max_tokens": 16},
            "learner": {"learning_rate": 1e-3},
            "curriculum": {"levels": LEVELS, "up": 0.3, "down": 0.0, "window": 4},
            "train": {"steps": steps, "tasks_per_step": 2},
            "evaluate": {"tasks": 1},
            **changes,
        }
    )


def test_a_run_moves_between_levels_and_resumes_in_the_middle_of_a_window(tmp_path: Path, quiet: Console) -> None:
    team, whole = play(configured(5), tmp_path / "whole", quiet)
    team.close()
    metrics = lines(whole.folder, "metrics.jsonl")
    expected = [0, 0]
    for line in metrics[1::2]:  # a window is two steps of two tasks
        moved = expected[-1] + (line["curriculum/success"] >= 0.3) - (line["curriculum/success"] <= 0.0)
        expected += [min(max(moved, 0), 2)] * 2
    levels = [line["curriculum/level"] for line in metrics]
    assert levels == expected[:5]
    assert len(set(levels)) > 1
    sizes = {line["step"]: line["task"]["id"].split("-")[1] for line in lines(whole.folder, "trees.jsonl")}
    assert [int(sizes[step]) for step in range(5)] == [LEVELS[level]["size"] for level in levels]
    assert all(name.startswith("test-6-") for report in whole.evaluations() for name in report["outcomes"])

    team, parted = play(configured(3), tmp_path / "parted", quiet)
    team.close()
    assert read_state(latest_checkpoint(parted.folder / "checkpoints")).curriculum["tasks"] == 2
    team, _ = play(configured(5), parted.folder, quiet, resume=True)
    team.close()
    assert lines(parted.folder, "metrics.jsonl") == metrics
    assert weights(parted.folder, "shared") == weights(whole.folder, "shared")


@pytest.mark.slow
def test_the_embedded_model_climbs_three_levels(tmp_path: Path, quiet: Console) -> None:
    changes = {"env": "plan-path", "sampling": {"max_tokens": 96}, "train": {"steps": 10, "tasks_per_step": 16}}
    changes["curriculum"] = {"levels": LEVELS, "up": 0.5, "down": 0.1, "window": 16}
    team, run = play(configured(10, **changes), tmp_path / "run", quiet)
    team.close()
    assert [line["curriculum/level"] for line in lines(run.folder, "metrics.jsonl")][-1] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curriculum": {"levels": LEVELS[:1]}}, "curriculum.levels: got .* expected 2 or more"),
        ({"curriculum": {"levels": LEVELS, "down": 0.8}}, "curriculum.down: got 0.8 with up=0.8; expected less"),
        ({"curriculum": {"levels": [{}, {"sice": 3}]}}, "settings.sice: unknown to PlanPathNoTool.*Did you mean size"),
        ({"train": {"max_staleness": 1}}, "curriculum: got it with train.max_staleness"),
        (
            {"env": "mixture", "settings": {"envs": ["plan-path", "sokoban"]}}
            | {"curriculum": {"levels": [{}, {"envs": ["plan-path"]}]}},
            "curriculum.levels: number 2 has other roles than settings, or no tasks",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(configured(2, **changes))


def test_levels_of_weights_leave_environments_out() -> None:
    levels = [{"weights": {"sokoban": 0}}, {"weights": {"sokoban": 3}}]
    settings = {"envs": ["plan-path", "sokoban"]}
    experiment = resolve(configured(2, env="mixture", settings=settings, curriculum={"levels": levels}))
    easy, hard = (level.training_tasks for level in experiment.levels)
    assert [task.id.partition("/")[0] for task in easy[:4]] == ["plan-path"] * 4
    assert sorted(task.id.partition("/")[0] for task in hard[:4]) == ["plan-path", *["sokoban"] * 3]
