"""Changes that have no effect are refused where they are made, and only there."""

import pytest

from cadre.cli.terminal import reject_unused
from cadre.config.experiment import load
from cadre.errors import ConfigError


def test_what_another_setting_turns_off_is_refused_with_that() -> None:
    pairs = ["evaluate.every=5", "evaluate.tasks=0"]
    with pytest.raises(ConfigError, match=r"evaluate.every: got 5 with evaluate.tasks=0, .* change evaluate.tasks\."):
        reject_unused(pairs, load("plan-path", pairs))


@pytest.mark.parametrize(
    ("recipe", "pairs"),
    [
        ("kuhn-poker", ["evaluate.tasks=0"]),  # whose recipe says how often
        ("plan-path", ["evaluate.every=0", "evaluate.tasks=0"]),
        ("plan-path", ["evaluate.every=5"]),
        ("plan-path", ["train.trees_megabytes=0", "train.trees_kept=0"]),
        ("plan-path", ["trackers.names=[tensorboard, wandb]", "trackers.project=foo"]),
    ],
)
def test_what_has_an_effect_or_turns_itself_off_is_taken(recipe: str, pairs: list[str]) -> None:
    reject_unused(pairs, load(recipe, pairs))
