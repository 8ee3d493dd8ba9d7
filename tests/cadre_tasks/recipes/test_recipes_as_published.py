"""Recipes as published beside ours: the settings in which they differ, by the paper and its authors' code."""

import pytest

from cadre.config.experiment import load
from cadre.settings.yaml_file import flatten

# In the paper or the code of AT-GRPO, and in our recipe.
DIFFERENCES = {
    "algorithm.lookahead": (0, 2),
    "loss.dual_clip": (3.0, None),
    "learner.minibatch_size": (64, None),
    "learner.minibatches": (1, 2),
    "learner.weight_decay": (0.01, 0.0),
}
SHARED = {
    "algorithm.k": 4,
    "algorithm.alpha": 1.0,
    "learner.learning_rate": 1e-6,
    "train.tasks_per_step": 128,
    "loss.kl": 0.0,
}


@pytest.mark.parametrize("task", ["plan-path", "sokoban", "sudoku", "code", "maths"])
def test_at_grpo_as_published_differs_from_ours_as_the_page_says(task: str) -> None:
    published, actual = (
        dict(flatten(load(f"{name}-qwen3-1.7b-L0").model_dump(mode="json"))) for name in (f"{task}-as-published", task)
    )
    rates = ("algorithm.", "loss.", "learner.", "train.", "credit.")
    names = [name for name in {**actual, **published} if name.startswith(rates)]
    pairs = {name: (published.get(name), actual.get(name)) for name in names}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    assert differing == DIFFERENCES
    assert {name: published.get(name, 0.0) for name in SHARED} == SHARED
