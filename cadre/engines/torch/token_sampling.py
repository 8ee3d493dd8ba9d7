"""Draw one token a sequence from the logits, with its log-probability under the distribution that it was drawn from.

Sequences of one batch may have different settings. The noise of a sequence is one uniform number a position, a hash of
its own key, so its tokens do not depend on its neighbours. Letters: B sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from cadre.types import Sampling

# The constants of SplitMix64 (Steele et al. 2014) as signed 64-bit integers; int64 arithmetic wraps around.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)

BLOCK = 128  # tokens whose mass is summed at once


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right logically; torch's own shift keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def draw_uniform(keys: Tensor, position: int | Tensor) -> Tensor:
    """Return float64 [B] in [0, 1): one SplitMix64 round of `keys` (int64 [B]) and the position in the completion. The
    position is a number, or an int64 tensor of one where a recorded step counts it."""
    increment = GOLDEN * (position + 1)
    if not isinstance(increment, Tensor):
        increment = (increment + (1 << 63)) % (1 << 64) - (1 << 63)  # as int64 arithmetic would have it
    mixed = keys + increment
    mixed = (mixed ^ _shift(mixed, 30)) * FIRST
    mixed = (mixed ^ _shift(mixed, 27)) * SECOND
    return _shift(mixed ^ _shift(mixed, 31), 11).to(torch.float64) * 2.0**-53


@dataclass(frozen=True)
class SamplingTensors:
    """The sequences' settings: `temperature` and `top_p` float32 [B], `top_k` int64 [B] (V if off). `all_greedy`,
    `any_greedy` and `any_filtered` are computed once, so that a step need not read the tensors."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    all_greedy: bool
    any_greedy: bool
    any_filtered: bool

    @staticmethod
    def make(temperature: Tensor, top_p: Tensor, top_k: Tensor, vocabulary: int) -> SamplingTensors:
        """Return the settings with the facts that are computed from them."""
        greedy = temperature == 0.0
        filtered = bool(((top_p < 1.0) | (top_k < vocabulary)).any())
        return SamplingTensors(temperature, top_p, top_k, bool(greedy.all()), bool(greedy.any()), filtered)

    @staticmethod
    def from_settings(settings: Sequence[Sampling], vocabulary: int, device: torch.device) -> SamplingTensors:
        """Return the settings of one sequence each as tensors."""
        temperature = torch.tensor([item.temperature for item in settings], dtype=torch.float32, device=device)
        top_p = torch.tensor([item.top_p for item in settings], dtype=torch.float32, device=device)
        top_k = torch.tensor([min(item.top_k or vocabulary, vocabulary) for item in settings], device=device)
        return SamplingTensors.make(temperature, top_p, top_k, vocabulary)

    def select(self, rows: Tensor, vocabulary: int) -> SamplingTensors:
        """Return the settings of some of the sequences."""
        return SamplingTensors.make(self.temperature[rows], self.top_p[rows], self.top_k[rows], vocabulary)


def keep_top_k(scores: Tensor, top_k: Tensor) -> Tensor:
    """Set all but the `top_k` [B] highest scores [B, V] to minus infinity (Fan et al. 2018, arXiv 1805.04833). Tokens
    that tie with the k-th are kept, so the result does not depend on a sorting order."""
    ordered = scores.sort(dim=-1, descending=True).values
    threshold = ordered.gather(1, (top_k - 1).unsqueeze(1))
    return scores.masked_fill(scores < threshold, -torch.inf)


def keep_top_p(scores: Tensor, top_p: Tensor) -> Tensor:
    """Set all scores [B, V] outside the nucleus to minus infinity (Holtzman et al. 2020, arXiv 1904.09751).

    The nucleus is the smallest set of likeliest tokens whose probabilities sum to at least `top_p` [B]; among equally
    likely tokens the lower id is taken first. The likeliest token is always kept.
    """
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1, dtype=torch.float64)
    sum_before = probabilities.cumsum(dim=-1) - probabilities
    outside = (sum_before >= top_p.unsqueeze(1)) & (top_p < 1.0).unsqueeze(1)
    outside[:, 0] = False
    return scores.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)


def adjust_logits(logits: Tensor, settings: SamplingTensors) -> Tensor:
    """Return the scores float32 [B, V] of the distribution that is drawn from: temperature, then top-k, then top-p.
    Rows at temperature 0 are not divided: nothing is drawn from them."""
    divisor = settings.temperature.masked_fill(settings.temperature == 0.0, 1.0)
    scores = logits.float() / divisor.unsqueeze(1)
    if settings.any_filtered:
        scores = keep_top_p(keep_top_k(scores, settings.top_k), settings.top_p)
    return scores


def sample_tokens(logits: Tensor, settings: SamplingTensors, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tokens int64 [B] and return them with their log-probabilities float32 [B].

    `logits` [B, V] and `noise` float64 [B] in [0, 1). Tokens are drawn by inverse CDF in token order. At temperature 0
    the distribution is the point mass on the likeliest token (the lowest id among equals), whose log-probability is 0.
    If a row of logits is not finite, neither is the log-probability.
    """
    if settings.all_greedy:
        return _take_likeliest(logits)
    scores = adjust_logits(logits, settings)
    highest = scores.amax(dim=-1, keepdim=True)
    # First a block of tokens and then one of its tokens: running sums take many times as long as sums.
    blocks = pad((scores - highest).exp_(), (0, -scores.shape[1] % BLOCK)).view(len(scores), -1, BLOCK)
    sums = blocks.sum(dim=-1).double()
    block, total, rest = _find_interval(sums, noise.unsqueeze(1))
    masses = blocks[torch.arange(len(blocks), device=block.device), block.squeeze(1)].double()
    token, _, _ = _find_interval(masses, rest / sums.gather(1, block))
    token += block * BLOCK
    logprob = (scores.gather(1, token) - highest - total.log().float()).squeeze(1)
    token = token.squeeze(1)
    if settings.any_greedy:
        greedy = settings.temperature == 0.0
        likeliest, certain = _take_likeliest(logits)
        token, logprob = torch.where(greedy, likeliest, token), torch.where(greedy, certain, logprob)
    return token, logprob


def _find_interval(masses: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return in which of some masses float64 [B, N] a share [B, 1] of their sum lies, int64 [B, 1], the sum, and how
    far into that mass. It is never an empty one, whatever the rounding."""
    ends = masses.cumsum(dim=-1)
    total = ends[:, -1:]
    point = share * total
    last = (ends < total).sum(dim=-1, keepdim=True)
    index = torch.searchsorted(ends, point, right=True).minimum(last)
    return index, total, (point - (ends - masses).gather(1, index)).clamp(min=0.0)


def _take_likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token of the highest logit, and 0 if that is finite, else NaN; NaN counts as the highest."""
    highest, token = logits.max(dim=-1)
    return token, (highest - highest).float()
