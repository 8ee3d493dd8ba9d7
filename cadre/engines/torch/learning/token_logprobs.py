"""What is read off hidden states: log-probabilities of tokens and entropies, a chunk of the scores at a time.

No tensor of all tokens times the vocabulary is kept: where there are several chunks, the backward pass computes each
again. Letters: M tokens, S distinct pairs of a state and a temperature, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cadre.engines.torch.learning.lm_head import project
from cadre.learn.repeatable import add_at, sum_at, take

# Scores that are computed at once; each pass over them holds two or three tensors of this size. Smaller ones would be
# taken from the memory that is kept (see malloc.py), where blocks as alike as these leave holes: gigabytes of them.
CHUNK = 1 << 24
# Scores whose probabilities are kept for the backward pass, and they themselves where the entropy has a gradient; those
# beyond are computed again there.
KEPT = 1 << 27
# As many tokens as any vocabulary has.
ALL = 1 << 62


@dataclass(frozen=True)
class LogprobQuery:
    """Which log-probabilities are asked for, sorted by the distribution that they are read in.

    The M `tokens` int64 are read in the distributions `which` int64 [M], of which s is that after state `states[s]` at
    `temperatures[s]`; `order` int64 [M] has the place of each token in what was asked for.
    """

    states: Tensor
    temperatures: Tensor
    which: Tensor
    tokens: Tensor
    order: Tensor

    @staticmethod
    def of(states: Tensor, temperatures: Tensor, tokens: Tensor) -> LogprobQuery:
        """Of M tokens, each read after a state (its number) at a temperature; all [M]."""
        kinds, kind = torch.unique(temperatures, return_inverse=True)
        distinct, which = torch.unique(states * len(kinds) + kind, return_inverse=True)
        order = which.argsort(stable=True)
        count = max(1, len(kinds))
        return LogprobQuery(distinct // count, kinds[distinct % count], which[order], tokens[order], order)

    def chunks(self, size: int) -> Iterator[LogprobQuery]:
        """The same in parts of at most `size` distributions, numbered from 0 in each."""
        for start in range(0, len(self.states), size):
            bounds = torch.tensor([start, start + size], device=self.states.device)
            first, last = torch.searchsorted(self.which, bounds).tolist()
            yield LogprobQuery(
                states=self.states[start : start + size],
                temperatures=self.temperatures[start : start + size],
                which=self.which[first:last] - start,
                tokens=self.tokens[first:last],
                order=self.order[first:last],
            )


def token_logprobs(model: Any, states: Tensor, query: LogprobQuery, entropy_tokens: int = 0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies float32 [M] in the order asked for, by the model's own vocabulary projection.

    `states` [N, H]. Entropies are those of the `entropy_tokens` likeliest and carry a gradient; with 0 they are those
    of all tokens, without one.
    """
    vocabulary = model.config.get_text_config().vocab_size
    size = max(1, CHUNK // vocabulary)
    parts = []
    for number, chunk in enumerate(query.chunks(size), 1):
        arguments = (model, take(states, chunk.states), chunk, entropy_tokens)
        kept = number * size * vocabulary <= KEPT
        parts.append(_read(*arguments) if kept else checkpoint(_read, *arguments, use_reentrant=False))
    blank = torch.zeros(len(query.tokens), device=states.device)
    if not parts:
        return blank, blank
    chosen, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
    return blank.index_put((query.order,), chosen), blank.index_put((query.order,), entropy)


def _read(model: Any, states: Tensor, chunk: LogprobQuery, entropy_tokens: int) -> tuple[Tensor, Tensor]:
    scores = project(model, states).float()
    if not bool((chunk.temperatures == 1.0).all()):
        scores = scores / chunk.temperatures.unsqueeze(1)
    whole = entropy_tokens >= scores.shape[1]
    chosen, entropy = SelectedLogprobs.apply(scores, chunk.which, chunk.tokens, whole)  # type: ignore[no-untyped-call]
    if entropy_tokens and not whole:
        entropy = likeliest_entropy(scores, entropy_tokens)
    return chosen, take(entropy, chunk.which)


def likeliest_entropy(scores: Tensor, tokens: int) -> Tensor:
    """Entropy [S] of the so many likeliest tokens under scores [S, V], their probabilities renormalised.

    A bonus for the entropy of a whole vocabulary goes mostly to tokens that mean nothing (arXiv 2509.03493).
    """
    logprobs = scores.topk(tokens, dim=-1).values.log_softmax(dim=-1)
    return -torch.linalg.vecdot(logprobs.exp(), logprobs)


class SelectedLogprobs(torch.autograd.Function):
    """Of scores [S, V] the log-probabilities [M] of `tokens` in the distributions `which`, and the entropies [S].

    One tensor of probabilities serves both and the backward pass: a log-probability's gradient in the scores is the
    token's one less the probabilities, an entropy's -p (log p + H), taken only where `entropy_gradient` says so.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, which: Tensor, tokens: Tensor, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        probabilities = scores.softmax(dim=-1)
        # The denominators' logarithms, read off the likeliest tokens, as logsumexp holds one more tensor of this size.
        highest, likeliest = scores.max(dim=-1)
        total = highest - probabilities.gather(1, likeliest.unsqueeze(1)).squeeze(1).log()
        entropy = total - torch.linalg.vecdot(probabilities, scores)
        ctx.save_for_backward(probabilities, which, tokens, total, entropy, *([scores] if entropy_gradient else []))
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return scores[which, tokens] - total[which], entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, which, tokens, total, entropy, *kept = ctx.saved_tensors
        of_logprobs, of_entropy = gradients
        of_scores = probabilities * -sum_at(which, of_logprobs, len(total)).unsqueeze(1)
        for scores in kept:
            logs = scores - (total - entropy).unsqueeze(1)
            of_scores.addcmul_(probabilities.mul(logs), of_entropy.unsqueeze(1), value=-1.0)
        add_at(of_scores.view(-1), which * of_scores.shape[1] + tokens, of_logprobs)
        return of_scores, None, None, None
