"""Drawing tokens: the filters by hand, the noise, the frequencies."""

import math

import pytest
import torch

from cadre.engines.torch.token_sampling import (
    SamplingTensors,
    adjust_logits,
    draw_uniform,
    keep_top_k,
    keep_top_p,
    sample_tokens,
)
from cadre.random_keys import MASK
from cadre.types import Sampling

CPU = torch.device("cpu")


def settings(*rows: Sampling, vocabulary: int = 4) -> SamplingTensors:
    return SamplingTensors.from_settings(rows, vocabulary, CPU)


def logits(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def splitmix(state: int) -> int:
    """The generator as published, on Python's unbounded integers."""
    mixed = (state + 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


def test_noise_is_splitmix():
    keys = [0, 1, 12345678901234567, (1 << 63) - 1]
    for position in (0, 1, 500):
        states = [(key + position * 0x9E3779B97F4A7C15) & MASK for key in keys]
        expected = [(splitmix(state) >> 11) / 2**53 for state in states]
        assert draw_uniform(torch.tensor(keys), position).tolist() == expected


def test_noise_is_uniform():
    samples = draw_uniform(torch.arange(20_000), 3)
    counts = torch.histc(samples.float(), bins=20, min=0.0, max=1.0)
    # Chi-squared with 19 degrees of freedom stays below 43.8 in 999 of 1,000 cases.
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8


def test_top_k_by_hand():
    stored = keep_top_k(torch.tensor([[3.0, 1.0, 2.0, 2.0], [3.0, 1.0, 2.0, 0.0]]), torch.tensor([2, 1]))
    inf = math.inf
    assert stored.tolist() == [[3.0, -inf, 2.0, 2.0], [3.0, -inf, -inf, -inf]]


@pytest.mark.parametrize(
    ("top_p", "stored"),
    [
        (1.0, [True, True, True, True]),
        (0.95, [True, True, True, True]),
        # 0.5, then 0.3, then of the two equal ones the lower id.
        (0.85, [True, True, False, True]),
        (0.75, [False, True, False, True]),
        (0.45, [False, False, False, True]),
        (0.01, [False, False, False, True]),
    ],
)
def test_top_p_by_hand(top_p, stored):
    scores = keep_top_p(logits(0.1, 0.3, 0.1, 0.5), torch.tensor([top_p]))
    assert scores.isfinite().tolist() == [stored]


def test_temperature_then_top_k_then_top_p():
    # At temperature 1/2 probabilities are squared: 16, 9, 4, 1 of 30. Of the best three 16/29 < 0.8 <= 25/29.
    scores = adjust_logits(logits(0.4, 0.3, 0.2, 0.1), settings(Sampling(0.5, 0.8, 3)))
    assert scores.softmax(dim=-1).tolist()[0] == pytest.approx([16 / 25, 9 / 25, 0.0, 0.0])


def test_frequencies_and_logprobs_are_of_the_distribution_drawn_from():
    count = 20_000
    rows = logits(0.4, 0.3, 0.2, 0.1).expand(count, 4)
    token, logprob = sample_tokens(
        rows, settings(*[Sampling(0.5, 0.8, 3)] * count), draw_uniform(torch.arange(count), 0)
    )
    share = torch.bincount(token, minlength=4) / count
    # Five standard deviations of a frequency near 1/2 in 20,000 draws.
    assert share.tolist() == pytest.approx([16 / 25, 9 / 25, 0.0, 0.0], abs=5 * 0.5 / math.sqrt(count))
    assert torch.allclose(logprob.exp(), torch.tensor([16 / 25, 9 / 25])[token])


def test_rows_keep_their_own_settings():
    rows = logits(0.4, 0.3, 0.2, 0.1).expand(3, 4)
    mixed = settings(Sampling(0.0), Sampling(1.0), Sampling(1.0, 1.0, 1))
    token, logprob = sample_tokens(rows, mixed, torch.tensor([0.95, 0.95, 0.95], dtype=torch.float64))
    assert token.tolist() == [0, 3, 0]
    assert logprob.tolist() == pytest.approx([0.0, math.log(0.1), 0.0])


@pytest.mark.parametrize("noise", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_interval_give_likely_tokens(noise):
    rows = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]])
    token, logprob = sample_tokens(rows, settings(Sampling(1.0)), torch.tensor([noise], dtype=torch.float64))
    assert token.tolist() == [1 if noise == 0.0 else 2]
    assert float(logprob) == pytest.approx(math.log(0.5))


def test_greedy_is_the_point_mass_on_the_first_of_the_likeliest():
    token, logprob = sample_tokens(torch.tensor([[1.0, 2.0, 2.0, 0.0]]), settings(Sampling(0.0)), torch.zeros(1))
    assert (token.tolist(), logprob.tolist()) == ([1], [0.0])


@pytest.mark.parametrize("vocabulary", [1, 127, 128, 129, 1000])
def test_tokens_are_those_of_running_sums_over_the_whole_vocabulary(vocabulary):
    count, generator = 400, torch.Generator().manual_seed(vocabulary)
    rows = 4.0 * torch.randn(count, vocabulary, generator=generator)
    rows[:, 1::3] = -math.inf  # of no mass, at the ends of blocks, too
    rows[:, -1] = rows[:, -1].clamp(max=-200.0) if vocabulary > 1 else 0.0
    noise = draw_uniform(torch.arange(count), 7)
    noise[0], noise[1] = 0.0, 1.0 - 2.0**-53
    token, logprob = sample_tokens(rows, settings(*[Sampling(1.0)] * count, vocabulary=vocabulary), noise)
    ends = rows.double().softmax(dim=-1).cumsum(dim=-1)
    expected = torch.searchsorted(ends, noise.unsqueeze(1) * ends[:, -1:], right=True).squeeze(1)
    # Two draws in a thousand may lie between sums in one and in two precisions.
    assert int((token != expected.clamp(max=vocabulary - 1)).sum()) <= 1
    assert logprob.isfinite().all()
    assert torch.allclose(logprob, rows.log_softmax(dim=-1).gather(1, token.unsqueeze(1)).squeeze(1), atol=1e-5)
