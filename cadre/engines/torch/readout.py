"""What is read off hidden states: log-probabilities of tokens and entropies, a chunk of the scores at a time.

No tensor of all tokens times the vocabulary is kept: where there are several chunks, the backward pass computes each
again. Letters: M tokens, S distinct pairs of a state and a temperature, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cadre.engines.torch.packed import project

# Scores that are computed at once; each pass over them holds two or three tensors of this size. Smaller ones would be
# taken from the memory that is kept (see memory.py), where blocks as alike as these leave holes: gigabytes of them.
CHUNK = 1 << 24
# Scores whose probabilities are kept for the backward pass, and they themselves where the entropy has a gradient; those
# beyond are computed again there.
KEPT = 1 << 27


@dataclass(frozen=True)
class Wanted:
    """M tokens sorted by the distribution they are read in: `tokens` int64 [M] of the distributions `which` int64 [M].

    Distribution s is that after state `states[s]` at `temperatures[s]`; `order` int64 [M] has the place of each token
    in what was asked for.
    """

    states: Tensor
    temperatures: Tensor
    which: Tensor
    tokens: Tensor
    order: Tensor

    @staticmethod
    def of(states: Tensor, temperatures: Tensor, tokens: Tensor) -> Wanted:
        """Of M tokens, each read after a state (its number) at a temperature; all [M]."""
        kinds, kind = torch.unique(temperatures, return_inverse=True)
        distinct, which = torch.unique(states * len(kinds) + kind, return_inverse=True)
        order = which.argsort(stable=True)
        at = (distinct // max(1, len(kinds)), kinds[distinct % max(1, len(kinds))])
        return Wanted(*at, which[order], tokens[order], order)


def read(model: Any, states: Tensor, wanted: Wanted, spread: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies float32 [M] in the order asked for, by the model's own vocabulary projection.

    `states` [N, H]. Entropies carry a gradient where `spread` says so.
    """
    vocabulary = model.config.get_text_config().vocab_size
    count, size = len(wanted.states), max(1, CHUNK // vocabulary)
    parts = []
    for start in range(0, count, size):
        first, last = torch.searchsorted(
            wanted.which, torch.tensor([start, start + size], device=states.device)
        ).tolist()
        own = slice(first, last)
        hidden = states[wanted.states[start : start + size]]
        rest = (wanted.temperatures[start : start + size], wanted.which[own] - start, wanted.tokens[own], spread)
        if (start + size) * vocabulary > KEPT:
            parts.append(checkpoint(_chunk, model, hidden, *rest, use_reentrant=False))
        else:
            parts.append(_chunk(model, hidden, *rest))
    blank = torch.zeros(len(wanted.tokens), device=states.device)
    if not parts:
        return blank, blank
    chosen, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
    return blank.index_put((wanted.order,), chosen), blank.index_put((wanted.order,), entropy)


def _chunk(
    model: Any, hidden: Tensor, temperature: Tensor, which: Tensor, tokens: Tensor, spread: bool
) -> tuple[Tensor, Tensor]:
    scores = project(model, hidden).float()
    if not bool((temperature == 1.0).all()):
        scores = scores / temperature.unsqueeze(1)
    chosen, entropy = Reading.apply(scores, which, tokens, spread)  # type: ignore[no-untyped-call]
    return chosen, entropy[which]


class Reading(torch.autograd.Function):
    """Of scores [S, V] the log-probabilities [M] of `tokens` in the rows `which`, and the rows' entropies [S].

    One tensor of probabilities serves both and the backward pass: a log-probability's gradient in the scores is the
    token's one less the probabilities, an entropy's -p (log p + H), taken only where `spread` says so.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, which: Tensor, tokens: Tensor, spread: bool) -> tuple[Tensor, Tensor]:
        probabilities = scores.softmax(dim=-1)
        # The denominators' logarithms, read off the likeliest tokens, as logsumexp holds one more tensor of this size.
        highest, likeliest = scores.max(dim=-1)
        total = highest - probabilities.gather(1, likeliest.unsqueeze(1)).squeeze(1).log()
        entropy = total - torch.linalg.vecdot(probabilities, scores)
        ctx.save_for_backward(probabilities, which, tokens, total, entropy, *([scores] if spread else []))
        if not spread:
            ctx.mark_non_differentiable(entropy)
        return scores[which, tokens] - total[which], entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, which, tokens, total, entropy, *spread = ctx.saved_tensors
        chosen, surprise = gradients
        found = probabilities * -chosen.new_zeros(len(total)).index_add(0, which, chosen).unsqueeze(1)
        for scores in spread:
            logs = scores - (total - entropy).unsqueeze(1)
            found.addcmul_(probabilities.mul(logs), surprise.unsqueeze(1), value=-1.0)
        found.index_put_((which, tokens), chosen, accumulate=True)
        return found, None, None, None
