"""Teams of adapters on one tiny model, and completions for them to learn from."""

from __future__ import annotations

from tests.cadre.engines.tiny import datum, request, sample


def rollouts(learner, policies, count=4):
    """Sequences of several lengths for each policy, alternately good and bad."""
    texts = ("go", "a longer prompt", "x")
    requests = [
        request(text * (1 + order), count, key, name, max_tokens=6 + 3 * key)
        for order, name in enumerate(policies)
        for key, text in enumerate(texts)
    ]
    samples = sample(learner, *requests)
    return [datum(sample, (-1.0) ** k) for siblings in samples for k, sample in enumerate(siblings)]
