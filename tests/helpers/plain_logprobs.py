"""Log-probabilities of a completion by the plain forward of transformers."""

from __future__ import annotations

import torch


def plain_logprobs(reference, completion, temperature: float) -> torch.Tensor:
    """Return log-probabilities of one forward over the sequence, without padding, cache or batch."""
    ids = torch.tensor([completion.prompt_ids + completion.token_ids])
    with torch.no_grad():
        scores = reference(ids).logits[0].float() / temperature
    start = len(completion.prompt_ids)
    return scores.log_softmax(dim=-1)[start - 1 : -1].gather(1, ids[0, start:, None]).squeeze(1)
