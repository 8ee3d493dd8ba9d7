"""One token a row from the logits, with the log-probability of the distribution that it was really drawn from.

Rows of one batch may have different settings. The noise of a row is one uniform number a position, a hash of the row's
own key, so a row's tokens do not depend on its neighbours. Letters: B rows, V vocabulary.
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
class Settings:
    """The rows' distributions as tensors: `temperature` and `top_p` float32 [B], `top_k` int64 [B] (V where off).

    `all_greedy`, `any_greedy` and `any_filtered` are facts about the rows, kept so that a step needs no look at them.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    all_greedy: bool
    any_greedy: bool
    any_filtered: bool

    @staticmethod
    def of(rows: Sequence[Sampling], vocabulary: int, device: torch.device) -> Settings:
        temperature = torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=device)
        top_p = torch.tensor([row.top_p for row in rows], dtype=torch.float32, device=device)
        top_k = torch.tensor([min(row.top_k or vocabulary, vocabulary) for row in rows], device=device)
        return Settings._with_facts(temperature, top_p, top_k, vocabulary)

    @staticmethod
    def _with_facts(temperature: Tensor, top_p: Tensor, top_k: Tensor, vocabulary: int) -> Settings:
        greedy = temperature == 0.0
        filtered = bool(((top_p < 1.0) | (top_k < vocabulary)).any())
        return Settings(temperature, top_p, top_k, bool(greedy.all()), bool(greedy.any()), filtered)

    def select(self, rows: Tensor, vocabulary: int) -> Settings:
        """The settings of some of the rows."""
        return Settings._with_facts(self.temperature[rows], self.top_p[rows], self.top_k[rows], vocabulary)


def keep_top_k(scores: Tensor, top_k: Tensor) -> Tensor:
    """Scores [B, V] with all but each row's `top_k` [B] highest at minus infinity (Fan et al. 2018, 1805.04833).

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


def adjusted(logits: Tensor, settings: Settings) -> Tensor:
    """Scores float32 [B, V] of the distribution that is drawn from: temperature, then top-k, then top-p.

    Rows at temperature 0 are left as they are: they are not drawn.
    """
    divisor = settings.temperature.masked_fill(settings.temperature == 0.0, 1.0)
    scores = logits.float() / divisor.unsqueeze(1)
    if settings.any_filtered:
        scores = keep_top_p(keep_top_k(scores, settings.top_k), settings.top_p)
    return scores


def draw(logits: Tensor, settings: Settings, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens int64 [B] and their log-probabilities float32 [B], by inverse CDF in token order.

    `logits` [B, V] and `noise` float64 [B] in [0, 1). At temperature 0 the distribution is the point mass on the
    likeliest token (the lowest id among equals), whose log-probability is 0.
    """
    if settings.all_greedy:
        token = logits.argmax(dim=-1)
        return token, torch.zeros_like(token, dtype=torch.float32)
    scores = adjusted(logits, settings)
    highest = scores.max(dim=-1, keepdim=True).values
    mass = (scores - highest).exp().cumsum(dim=-1, dtype=torch.float64)
    total = mass[:, -1:]
    token = torch.searchsorted(mass, noise.unsqueeze(1) * total, right=True)
    token = token.clamp(max=logits.shape[1] - 1)
    logprob = scores.gather(1, token) - highest - total.log().float()
    token, logprob = token.squeeze(1), logprob.squeeze(1)
    if settings.any_greedy:
        greedy = settings.temperature == 0.0
        token = torch.where(greedy, logits.argmax(dim=-1), token)
        logprob = logprob.masked_fill(greedy, 0.0)
    return token, logprob
