"""pass@k and avg@k by hand, and on a scripted team whose chance of success is known."""

import asyncio
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.evaluation.evaluate import Repeats, evaluate_sampled, interval_over_tasks, pass_at_k
from cadre.rollout import shapes
from cadre.rollout.grow import Rollout
from cadre.settings import EpisodesConfig
from cadre.types import Request, Reward
from tests.helpers.games import Digit, scripted_team


@pytest.mark.parametrize(
    ("samples", "right", "k", "value"),
    [
        (4, 0, 1, 0.0),
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 3 of 6 pairs hold the right one
        (4, 2, 2, 5 / 6),  # one pair of six holds none
        (4, 2, 3, 1.0),  # there are only two wrong ones
        (10, 3, 5, 1 - 21 / 252),
        (4, 4, 4, 1.0),
        (1, 1, 1, 1.0),
    ],
)
def test_pass_at_k_by_hand(samples: int, right: int, k: int, value: float) -> None:
    assert pass_at_k(samples, right, k) == pytest.approx(value)


@pytest.mark.parametrize(("samples", "right", "k"), [(5, 2, 3), (6, 1, 4), (6, 3, 2)])
def test_pass_at_k_equals_counting(samples: int, right: int, k: int) -> None:
    sampled = list(itertools.combinations([True] * right + [False] * (samples - right), k))
    assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, sampled)) / len(sampled))


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over all outcomes of 4 samples with chance 0.3 each is 1 - 0.7 ** 2 for k = 2, which 1 - (1 - c/n)^k is
    not."""
    mean = sum(math.comb(4, c) * 0.3**c * 0.7 ** (4 - c) * pass_at_k(4, c, 2) for c in range(5))
    assert mean == pytest.approx(1 - 0.7**2)


def test_intervals_by_hand() -> None:
    square = 1.96**2
    # 2 of 4, Wilson's: 0.5 -+ z / (4 + z^2) * sqrt(4 * 0.5 * 0.5 + z^2 / 4)
    half = 1.96 / (4 + square) * math.sqrt(1 + square / 4)
    assert interval_over_tasks([1.0, 0.0, 1.0, 0.0]) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    # rates of 1, 1 and 1/2: mean 5/6, squares 1/36 + 1/36 + 4/36
    centre, half = (2.5 + square / 2) / (3 + square), 1.96 / (3 + square) * math.sqrt(1 / 6 + square / 4)
    assert interval_over_tasks([1.0, 1.0, 0.5]) == pytest.approx((5 / 6, centre - half, centre + half))
    # all alike: Wilson's of 3 in 3, which begins at 3 / (3 + 1.96^2), and its mirror
    assert interval_over_tasks([1.0, 1.0, 1.0]) == pytest.approx((1.0, 3 / (3 + 1.96**2), 1.0))
    assert interval_over_tasks([0.0, 0.0, 0.0]) == pytest.approx((0.0, 0.0, 1.96**2 / (3 + 1.96**2)))
    assert interval_over_tasks([0.25]) == (0.25, 0.0, 1.0)


@pytest.mark.parametrize("rate", [0.0, 0.125, 0.5, 0.9, 1.0])
def test_no_interval_of_equal_values_has_width_zero(rate: float) -> None:
    """Mistake: twenty tasks of one rate have no spread, so that the rate of all tasks is known for certain."""
    widths = []
    for count in (2, 5, 20, 80, 2000):
        value, low, high = interval_over_tasks([rate] * count)
        assert 0.0 <= low <= value <= high <= 1.0
        assert value == pytest.approx(rate)
        widths.append(high - low)
    assert widths[0] > widths[1] > widths[2] > widths[3] > widths[4] > 0.0005
    _, low, high = interval_over_tasks([0.5] * 20)
    assert (low, high) == pytest.approx((0.5 - 1.96**2 / 2 / (20 + 1.96**2), 0.5 + 1.96**2 / 2 / (20 + 1.96**2)))
    # and one task that is a little different from the others does not make it certain either
    _, nearly_low, nearly_high = interval_over_tasks([0.5] * 19 + [0.51])
    assert nearly_high - nearly_low == pytest.approx(high - low, rel=0.01)


def test_intervals_cover_the_mean_as_often_as_they_say() -> None:
    """Tasks of rates from a beta distribution, eight samples each, 400 draws; skewed rates are the hardest."""
    generator = random.Random(3)
    for alpha, beta in ((0.5, 0.5), (2.0, 2.0), (30.0, 30.0), (1.0, 9.0)):
        mean, inside = alpha / (alpha + beta), 0
        for _ in range(400):
            rates = [generator.betavariate(alpha, beta) for _ in range(24)]
            played = [sum(generator.random() < rate for _ in range(8)) / 8 for rate in rates]
            _, low, high = interval_over_tasks(played)
            inside += low <= mean <= high
        assert inside >= (345 if alpha < beta else 370)


def answers_in_turn(answer: Callable[[str, int], str]) -> Callable[[Request, int], str]:
    """Return a scripted answer by what is shown, and by how often that was shown before."""
    seen = Counter[str]()

    def answered(request: Request, index: int) -> str:
        shown = request.messages[-1].content
        seen[shown] += 1
        return answer(shown, seen[shown] - 1)

    return answered


def digits(shown: str, number: int) -> str:
    """Right in the first episode of every digit, and in the first three of digit 3."""
    return shown if number == 0 or (shown == "3" and number < 3) else "9"


def sampled(**options: object) -> tuple:
    team, sampler = scripted_team(Digit, answers_in_turn(digits))
    game = EnvSpec("tests/helpers/games.py:Digit", {})
    tasks = game.tasks("test")[:4]
    rollout = Rollout(game.make, team, shapes.independent(1), 1.0)
    report, trees = asyncio.run(evaluate_sampled(rollout, tasks, Repeats(**options)))  # type: ignore[arg-type]
    return report, trees, sampler


def test_several_episodes_a_task() -> None:
    report, trees, sampler = sampled(samples=4, temperature=0.6)
    assert len(trees) == 16
    assert {request.sampling.temperature for request in sampler.requests} == {0.6}
    assert {(request.sampling.top_p, request.sampling.top_k) for request in sampler.requests} == {(1.0, 0)}
    assert (report.samples, report.temperature, report.max_tokens) == (4, 0.6, {"speaker": 512})
    # 1, 1, 1 and 3 of 4 are right
    assert report.average[0] == pytest.approx(6 / 16)
    assert report.passing[1] == pytest.approx(report.average)
    assert report.passing[2][0] == pytest.approx((3 * 0.5 + 1.0) / 4)
    assert report.passing[4] == pytest.approx((1.0, 4 / (4 + 1.96**2), 1.0))
    assert list(report.passing) == [1, 2, 4]
    assert report.reward == pytest.approx(6 / 16)
    assert report.tokens == 1.0
    assert report.parts == {}


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="every sample is the same"):
        sampled(samples=4, temperature=0.0)
    with pytest.raises(ConfigError, match="expected each from 1 to 4"):
        sampled(samples=4, temperature=1.0, ks=(8,))
    report, _, _ = sampled(samples=4, temperature=1.0, ks=(3,))
    assert list(report.passing) == [3]


def test_an_episode_that_fails_is_one_that_is_not_solved() -> None:
    """One of four episodes per task is right and one fails: 1 of 4, and not 0."""

    class Touchy(Digit):
        async def step(self, actions: dict[str, str]) -> Reward:
            if actions["speaker"] == "fail":
                raise ValueError("touched")
            return await super().step(actions)

    team, _ = scripted_team(Touchy, answers_in_turn(lambda shown, number: [shown, "fail", "9", "9"][number]))
    limits = EpisodesConfig(retries=0, failed_fraction=0.25)
    rollout = Rollout(Touchy, team, shapes.independent(1), 1.0, limits)
    report, trees = asyncio.run(evaluate_sampled(rollout, list(Touchy.tasks("test"))[:4], Repeats(4, temperature=0.6)))
    assert (report.tasks, report.failures, len(trees)) == (4, 4, 12)
    assert report.average[0] == pytest.approx(1 / 4)
    assert report.passing[4][0] == 1.0
    assert report.reward == pytest.approx(1 / 3)  # of the episodes that ended


def test_means_that_are_no_rates_have_an_interval_around_them() -> None:
    """Mistake: bounds of 0 and 1 for the means of a reward of another scale."""
    # equal values: one task more, of the size of the largest, might move the mean by 2.5 / 21
    assert interval_over_tasks([2.5] * 20) == pytest.approx((2.5, 2.5 - 2.5 / 21, 2.5 + 2.5 / 21))
    # mean 1, deviation 2 of the sample, standard error 2 / sqrt(2), which is beyond the floor 3 / 3
    half = 1.96 * math.sqrt(8) / math.sqrt(2)
    assert interval_over_tasks([-1.0, 3.0]) == pytest.approx((1.0, 1.0 - half, 1.0 + half))
    assert interval_over_tasks([2.5]) == (2.5, -math.inf, math.inf)
    assert interval_over_tasks([1.0]) == (1.0, 0.0, 1.0)


def test_a_rate_that_exceeds_one_by_rounding_is_a_rate() -> None:
    assert interval_over_tasks([1.0 + 2**-52] * 3) == interval_over_tasks([1.0] * 3)


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_no_values_and_values_that_are_not_finite_have_no_interval(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"needs one or more finite values, one a task; got \["):
        interval_over_tasks(values)
