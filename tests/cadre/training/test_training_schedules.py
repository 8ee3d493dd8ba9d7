"""Schedules over policies: who learns at a step, that others stay as they are, and that a resumed run is the same."""

from pathlib import Path

import pytest
from rich.console import Console

from cadre.algorithms.schedules import learning_policies
from cadre.config.checks import find_training_warnings
from cadre.config.resolve import resolve
from cadre.errors import ConfigError, ContractError
from cadre.training.checkpoint import checkpoint_name
from tests.helpers.training import configured, lines, play, weights

TWO = ("one", "two")
OWN = """
def both_then_two(step, policies):
    return policies if step < 1 else ["two"]

def fails(step, policies):
    return [policies[step]]

def stranger(step, policies):
    return ["tow"]
"""


def test_whose_turn_it_is_by_hand() -> None:
    def turns(name: str, period: int) -> list[list[str]]:
        return [sorted(learning_policies(name, period, step, ["b", "a", "c"])) for step in range(6)]

    assert turns("together", 1) == [["a", "b", "c"]] * 6
    assert turns("round_robin", 1) == [["b"], ["a"], ["c"], ["b"], ["a"], ["c"]]
    assert turns("round_robin", 2) == [["b"], ["b"], ["a"], ["a"], ["c"], ["c"]]


def small(speaker: Path, policies: tuple[str, ...] = TWO, steps: int = 3, **train: object):
    loop = {"steps": steps, "tasks_per_step": 2, "checkpoint_every": 1, **train}
    sections = {"algorithm": {"name": "at_grpo", "k": 4}, "train": loop, "evaluate": {"tasks": 0}}
    return configured(speaker, "Pair", policies, **sections)


@pytest.mark.slow  # a schedule of one's own, below, looks at the same of two steps
def test_one_policy_learns_at_a_time_and_a_resumed_run_is_the_same_to_the_bit(
    speaker: Path, tmp_path: Path, quiet: Console
) -> None:
    full, half = (small(speaker, steps=steps, schedule="round_robin") for steps in (3, 2))
    play(full, tmp_path / "whole", quiet)
    play(half, tmp_path / "half", quiet)
    play(full, tmp_path / "half", quiet, resume=True)
    assert [weights(tmp_path / "half", name) for name in TWO] == [weights(tmp_path / "whole", name) for name in TWO]

    steps = lines(tmp_path / "whole", "metrics.jsonl")
    assert lines(tmp_path / "half", "metrics.jsonl") == steps
    assert [(line["one/learned"], line["two/learned"]) for line in steps] == [(1, 0), (0, 1), (1, 0)]
    for line, learner, frozen in zip(steps, ("one", "two", "one"), ("two", "one", "two"), strict=True):
        assert f"{learner}/grad_norm" in line
        assert f"{frozen}/grad_norm" not in line
        # The frozen role is sampled and rewarded as ever.
        assert line["left/tokens"] > 0
        assert line["right/tokens"] > 0
        assert "right/reward" in line

    assert moved(tmp_path / "whole", 3) == [[True, False], [False, True], [True, False]]


def moved(run: Path, steps: int) -> list[list[bool]]:
    """Return for each step whether each policy's weights changed, by the checkpoints."""

    def saved(step: int, policy: str) -> bytes:
        return (run / "checkpoints" / checkpoint_name(step) / policy / "model.safetensors").read_bytes()

    return [[saved(step, name) != saved(step + 1, name) for name in TWO] for step in range(steps)]


def test_a_schedule_of_the_users_own(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    play(small(speaker, steps=2, schedule=f"{tmp_path}/mine.py:both_then_two"), tmp_path / "run", quiet)
    steps = lines(tmp_path / "run", "metrics.jsonl")
    assert [(line["one/learned"], line["two/learned"]) for line in steps] == [(1, 1), (0, 1)]
    assert moved(tmp_path / "run", 2) == [[True, True], [False, True]]
    assert ("one/grad_norm" in steps[1], "left/reward" in steps[1]) == (False, True)
    with pytest.raises(ContractError, match=r"train\.schedule: mine\.py:fails.*IndexError.*at line 6 of mine\.py"):
        resolve(small(speaker, schedule=f"{tmp_path}/mine.py:fails"))
    with pytest.raises(ContractError, match=r"returned \['tow'\] for step 0.*one, two.*Did you mean two"):
        resolve(small(speaker, schedule=f"{tmp_path}/mine.py:stranger"))


@pytest.mark.parametrize(
    ("policies", "train", "expected"),
    [
        (
            ("shared",),
            {"schedule": "round_robbin"},
            r"train\.schedule: got 'round_robbin'; .* Did you mean round_robin\?",
        ),
        (TWO, {"schedule": "in_turn"}, r"train\.schedule: got 'in_turn'; expected one of together, round_robin"),
    ],
)
def test_what_cannot_take_turns_is_refused(speaker: Path, policies: tuple, train: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        resolve(small(speaker, policies, **{"schedule": "round_robin", **train}))


def test_teamtr_takes_turns_within_a_bound(speaker: Path) -> None:
    def teamtr(**sections: object):
        return resolve(configured(speaker, "Pair", TWO, algorithm="teamtr", **sections))

    experiment = teamtr()
    assert [sorted(experiment.frozen_at(step)) for step in range(2)] == [["two"], ["one"]]
    assert (experiment.plan.loss.kl_bound, experiment.plan.credit.first.group.name) == (0.05, "task_role")
    assert [text for text in find_training_warnings(experiment) if "loss.kl_bound" in text]
    several = teamtr(learner={"epochs": 2})
    assert not [text for text in find_training_warnings(several) if "loss.kl_bound" in text]
    with pytest.raises(ConfigError, match=r"train\.max_staleness: got 1 with teamtr"):
        teamtr(train={"steps": 4, "max_staleness": 1})
