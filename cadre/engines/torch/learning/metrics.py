"""What one policy's update comes to, as the logs show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from cadre.engines.torch.learning.ranks import Ranks

# What the loss calls a sum over tokens, and what the logs call its mean.
TOKEN_MEANS = {
    "entropy": "entropy",
    "kl3": "kl_to_sampler",
    "kl1": "kl_to_sampler_k1",
    "kl_reference": "kl_to_reference",
    "clipped": "clip_share",
    "corrected": "correction_share",
    "ratio": "ratio",
}


@dataclass
class UpdateMetrics:
    """What one policy's update added up to so far; lives as long as the update.

    Losses are sums over its minibatches, `sums` those over its tokens.
    """

    loss: float = 0.0
    value_loss: float = 0.0
    tokens: int = 0
    values: int = 0
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    gap_max: float = 0.0
    gaps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    norms: list[float] = field(default_factory=list)

    def add_tokens(self, loss: float, tokens: int, sums: Mapping[str, Tensor]) -> None:
        """The loss of so many tokens of one forward, and what `cadre.learn.loss.token_metrics` says of them."""
        self.loss += loss
        self.tokens += tokens
        self.gap_max = max(self.gap_max, float(sums["gap_max"]))
        for name in TOKEN_MEANS:
            self.sums[name] += float(sums[name])

    def add_gap(self, role: str, total: float, tokens: int) -> None:
        """|learner's - sampler's log-probability|, summed over so many tokens of a role; those of the first optimiser
        step count alone, as later ones are of weights that the sampler never had."""
        if not self.norms:
            self.gaps[role][0] += total
            self.gaps[role][1] += tokens

    def add_values(self, loss: float, count: int) -> None:
        """The loss of so many values of one forward."""
        self.value_loss += loss
        self.values += count

    def over(self, ranks: Ranks, roles: Sequence[str]) -> UpdateMetrics:
        """Those of all ranks of a group together, which have data of these roles; every rank has the same norms."""
        counts = (self.loss, self.value_loss, self.tokens, self.values)
        loss, value_loss, tokens, values, *sums = ranks.total([*counts, *(self.sums[name] for name in TOKEN_MEANS)])
        (gap_max,) = ranks.highest([self.gap_max])
        named = defaultdict(float, zip(TOKEN_MEANS, sums, strict=True))
        gaps = {role: ranks.total(self.gaps[role]) for role in roles}
        return UpdateMetrics(loss, value_loss, int(tokens), int(values), named, gap_max, gaps, self.norms)

    def means(self) -> dict[str, float]:
        """Means a token and a minibatch; without those that have no value because nothing was run."""
        minibatches = len(self.norms)
        means = {"loss": self.loss / max(1, minibatches)}
        if self.values:
            means |= {"value_loss": self.value_loss / minibatches}
        if self.tokens:
            means |= {name: self.sums[summed] / self.tokens for summed, name in TOKEN_MEANS.items()}
            means |= {"logprob_gap_max": self.gap_max}
        means |= {f"mismatch/{role}": total / tokens for role, (total, tokens) in self.gaps.items() if tokens}
        if self.norms:
            means |= {"grad_norm": sum(self.norms) / minibatches}
        return means
