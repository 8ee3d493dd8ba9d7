"""One token a sequence from the logits, with the log-probability of the distribution that it was really drawn from.

Sequences of one batch may have different settings. The noise of a sequence is one uniform number a position, a hash of
its own key, so its tokens do not depend on its neighbours. Letters: B sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cadre.types import Sampling

# The constants of SplitMix64 (Steele et al. 2014) as signed 64-bit integers; int64 arithmetic wraps around.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _wrapped(value: int) -> int:
    """A Python integer as int64 arithmetic would have it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def uniform(keys: Tensor, position: int) -> Tensor:
    """float64 [B] in [0, 1): one SplitMix64 round of `keys` (int64 [B]) and the position in the completion."""
    mixed = keys + _wrapped(GOLDEN * (position + 1))
    mixed = (mixed ^ _shift(mixed, 30)) * FIRST
    mixed = (mixed ^ _shift(mixed, 27)) * SECOND
    return _shift(mixed ^ _shift(mixed, 31), 11).to(torch.float64) * 2.0**-53


@dataclass(frozen=True)
class SamplingTensors:
    """The sequences' settings: `temperature` and `top_p` float32 [B], `top_k` int64 [B] (V where off).

    `all_greedy`, `any_greedy` and `any_filtered` are facts about them, so that a step needs no look at the tensors.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    all_greedy: bool
    any_greedy: bool
    any_filtered: bool

    @staticmethod
    def of(settings: Sequence[Sampling], vocabulary: int, device: torch.device) -> SamplingTensors:
        temperature = torch.tensor([each.temperature for each in settings], dtype=torch.float32, device=device)
        top_p = torch.tensor([each.top_p for each in settings], dtype=torch.float32, device=device)
        top_k = torch.tensor([min(each.top_k or vocabulary, vocabulary) for each in settings], device=device)
        return SamplingTensors._with_facts(temperature, top_p, top_k, vocabulary)

    @staticmethod
    def _with_facts(temperature: Tensor, top_p: Tensor, top_k: Tensor, vocabulary: int) -> SamplingTensors:
        greedy = temperature == 0.0
        filtered = bool(((top_p < 1.0) | (top_k < vocabulary)).any())
        return SamplingTensors(temperature, top_p, top_k, bool(greedy.all()), bool(greedy.any()), filtered)

    def select(self, kept: Tensor, vocabulary: int) -> SamplingTensors:
        """The settings of some of the sequences."""
        return SamplingTensors._with_facts(self.temperature[kept], self.top_p[kept], self.top_k[kept], vocabulary)


def keep_top_k(scores: Tensor, top_k: Tensor) -> Tensor:
    """Scores [B, V] with all but the `top_k` [B] highest of each at minus infinity (Fan et al. 2018, 1805.04833).

    Tokens that tie with the k-th are kept, so the result does not depend on a sorting order.
    """
    ordered = scores.sort(dim=-1, descending=True).values
    least = ordered.gather(1, (top_k - 1).unsqueeze(1))
    return scores.masked_fill(scores < least, -torch.inf)


def keep_top_p(scores: Tensor, top_p: Tensor) -> Tensor:
    """Scores [B, V] with all but the nucleus at minus infinity (Holtzman et al. 2020, 1904.09751).

    The nucleus is the smallest set of likeliest tokens whose probabilities sum to at least `top_p` [B]; among equally
    likely tokens the lower id is taken first. The likeliest token is always kept.
    """
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1, dtype=torch.float64)
    before = probabilities.cumsum(dim=-1) - probabilities
    outside = (before >= top_p.unsqueeze(1)) & (top_p < 1.0).unsqueeze(1)
    outside[:, 0] = False
    return scores.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)


def adjusted(logits: Tensor, settings: SamplingTensors) -> Tensor:
    """Scores float32 [B, V] of the distribution that is drawn from: temperature, then top-k, then top-p.

    Those at temperature 0 are left as they are: nothing is drawn from them.
    """
    divisor = settings.temperature.masked_fill(settings.temperature == 0.0, 1.0)
    scores = logits.float() / divisor.unsqueeze(1)
    if settings.any_filtered:
        scores = keep_top_p(keep_top_k(scores, settings.top_k), settings.top_p)
    return scores


def sample_tokens(logits: Tensor, settings: SamplingTensors, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens int64 [B] and their log-probabilities float32 [B], by inverse CDF in token order.

    `logits` [B, V] and `noise` float64 [B] in [0, 1). At temperature 0 the distribution is the point mass on the
    likeliest token (the lowest id among equals), whose log-probability is 0. Where a model says nothing that is finite,
    neither is the log-probability.
    """
    if settings.all_greedy:
        return _likeliest(logits)
    token, logprob = _by_inverse_cdf(adjusted(logits, settings), noise)
    if settings.any_greedy:
        greedy = settings.temperature == 0.0
        likeliest, certain = _likeliest(logits)
        token, logprob = torch.where(greedy, likeliest, token), torch.where(greedy, certain, logprob)
    return token, logprob


def _likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The token of the highest logit, and 0 where that is finite; NaN counts as the highest."""
    highest, token = logits.max(dim=-1)
    return token, (highest - highest).float()


def _by_inverse_cdf(scores: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    highest = scores.max(dim=-1, keepdim=True).values
    mass = (scores - highest).exp().cumsum(dim=-1, dtype=torch.float64)
    total = mass[:, -1:]
    token = torch.searchsorted(mass, noise.unsqueeze(1) * total, right=True)
    token = token.clamp(max=scores.shape[1] - 1)
    logprob = scores.gather(1, token) - highest - total.log().float()
    return token.squeeze(1), logprob.squeeze(1)
