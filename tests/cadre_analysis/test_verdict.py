"""The rule of `cadre prove`: spreads and numbers of seeds by hand, and that equal methods are seldom told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cadre_analysis.verdict import Spread, decide, measure_spread

SOLVED, HALF, FAILED = np.ones((4, 40)), np.tile([1.0, 0.0], (4, 20)), np.zeros((4, 40))


def test_a_spread_by_hand() -> None:
    # Means of the seeds 0.25 and 0.75: variance 0.125. Of the tasks 0.5 and 0.5: 0. The residuals are 0.25 or -0.25
    # each, so that the noise is 4 * 0.0625 / (1 * 1) = 0.25, and of the tasks max(0, 0 - 0.25 / 2) = 0.
    spread = measure_spread(np.array([[0.5, 0.0], [0.5, 1.0]]))
    assert (spread.of_seeds, spread.of_tasks, spread.tasks) == (pytest.approx(0.125), 0.0, 2)
    # Tasks that differ alike for both seeds: means 0.2 and 0.8, variance 0.18, and no noise.
    spread = measure_spread(np.array([[0.2, 0.8], [0.2, 0.8]]))
    assert (spread.of_seeds, spread.of_tasks) == (pytest.approx(0.0), pytest.approx(0.18))


def test_the_seeds_that_would_show_a_difference_by_hand() -> None:
    # With S seeds half of the interval is t * 0.1 / sqrt(S); t(17) * 0.1 / sqrt(18) = 2.1098 * 0.02357 = 0.0497, and
    # t(16) * 0.1 / sqrt(17) = 2.1199 * 0.02425 = 0.0514.
    spread = Spread(of_seeds=0.01, of_tasks=0.0, tasks=1000)
    assert spread.half_width(18) == pytest.approx(0.04973, abs=1e-5)
    assert spread.seeds_for(0.05) == spread.seeds_for(-0.05) == 18
    # No number of seeds makes up for 40 tasks: 1.96 * sqrt(0.16 / 40) = 0.124.
    assert Spread(of_seeds=0.01, of_tasks=0.16, tasks=40).seeds_for(0.1) is None
    # (2.3646 + 1.8946) * 0.1 / sqrt(8): Student's quantiles with seven degrees of freedom at 97.5% and at 95%.
    assert spread.resolution(8) == pytest.approx(4.2592 * 0.1 / math.sqrt(8), rel=1e-4)


def test_every_agent_has_to_be_beaten() -> None:
    assert decide(SOLVED, {"a": HALF, "b": FAILED}).word == "wins"
    verdict = decide(SOLVED, {"a": HALF, "b": SOLVED})
    # Equal outcomes of 40 tasks have Wilson's interval: 3.8415 / 43.8415 on either side.
    assert (verdict.word, verdict.comparisons[1].difference) == (
        "undecided",
        pytest.approx((0.0, -0.08762, 0.08762), abs=1e-5),
    )
    assert verdict.seeds_needed is None


def test_one_better_agent_is_enough_to_lose() -> None:
    verdict = decide(HALF, {"a": FAILED, "b": SOLVED})
    assert verdict.word == "loses"
    worse = verdict.comparisons[1]
    assert worse.difference[0] == -0.5
    # At 97.5% for each of two agents the interval is wider than at 95%.
    assert worse.corrected[1] < worse.difference[1] < worse.difference[2] < worse.corrected[2] < 0.0


def test_the_seeds_to_lose_are_of_the_corrected_confidence() -> None:
    # The seeds' differences have the mean -0.1 and the variance 0.02 / 3, and tasks add nothing.
    worse = np.full((4, 40), 0.5) + np.array([[-0.2], [0.0], [-0.1], [-0.1]])
    verdict = decide(worse, {"a": np.full((4, 40), 0.5), "b": np.full((4, 40), 0.5)})
    # At 95% t(5) * 0.08165 / sqrt(6) = 0.0857, and t(4) * 0.08165 / sqrt(5) = 0.1014. At 97.5% no interval is narrower
    # than Wilson's of 40 tasks: 5.024 / 45.024 = 0.1116.
    spread = measure_spread(worse - 0.5)
    assert verdict.word == "undecided"
    assert verdict.seeds_needed == spread.seeds_for(-0.1, 0.975) is None
    assert spread.seeds_for(-0.1) == 6


def test_what_is_not_shown_needs_more_seeds() -> None:
    for gap in (0.05, 0.15, 0.25, 0.35):
        generator = np.random.default_rng(3)
        base = generator.random((1, 40))
        team, agent = ((generator.random((3, 40)) < base + shift).astype(float) for shift in (gap, 0.0))
        verdict = decide(team, {"a": agent}, resamples=400)
        assert verdict.word != "undecided" or verdict.seeds_needed is None or verdict.seeds_needed > 3


def test_one_seed_or_one_task_decides_nothing() -> None:
    for table in (np.ones((1, 40)), np.ones((4, 1))):
        with pytest.raises(ValueError, match="two seeds and two tasks"):
            decide(table, {"a": table})


@pytest.mark.parametrize("experiments", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_equal_methods_are_seldom_told_apart(experiments: int) -> None:
    """Experiments of three equal methods with effects of seeds and tasks: wins or loses in at most 5%, and of a
    method that is better by more than the resolution in most."""
    generator = np.random.default_rng(1)

    def outcomes(seeds: int, gain: float, tasks: np.ndarray) -> np.ndarray:
        chance = np.clip(tasks + gain + generator.normal(0, 0.06, (seeds, 1)), 0.0, 1.0)
        return (generator.random((seeds, tasks.shape[1])) < chance).astype(float)

    told, found = 0, 0
    for number in range(experiments):
        tasks = generator.uniform(0.1, 0.6, (1, 60))
        agents = {"a": outcomes(4, 0.0, tasks), "b": outcomes(4, 0.0, tasks)}
        told += decide(outcomes(4, 0.0, tasks), agents, number, 400).word != "undecided"
        found += decide(outcomes(4, 0.35, tasks), agents, number, 400).word == "wins"
    assert told <= 0.05 * experiments
    assert found >= 0.8 * experiments
