"""Comparisons of two learners' gradients and metrics."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from tests.cadre.engines.tiny import update
from tests.cadre.learn.sequences import sequence


def apart(first, second):
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def caught(learner, data):
    """Return the gradients that the optimisers of all policies and heads receive, with the losses."""
    results = {}
    pairs = learner.rank._optimisers.items()
    optimisers = {name: pair.weights for name, pair in pairs}
    optimisers |= {f"{name}.head": pair.heads for name, pair in pairs if pair.heads}

    def catcher(name, optimiser):
        def catch(loss, norm):
            gradients = {key: weight.grad for key, weight in optimiser._parameters.items() if weight.grad is not None}
            results.update({f"{name}.{key}": value.clone() for key, value in gradients.items()})
            results[f"{name}.loss"] = torch.tensor(loss)
            optimiser.clear()
            return 1.0

        return catch

    with pytest.MonkeyPatch.context() as patch:
        for name, optimiser in optimisers.items():
            patch.setattr(optimiser, "step", catcher(name, optimiser))
        update(learner, data)
    return results


def check_bfloat16(learner, architecture, seed, form):
    """Compare a tree in bfloat16 with padding in bfloat16, both by their distance from float32.

    A tree rounds what attention gives at most twice, as a part and merged, where padding rounds it once. So its
    errors have at most twice the variance, whatever the processor; all else is rounded alike. The largest error of all
    would vary with how sums are ordered, and a ratio at a bound of the clip would jump: so means, and data on policy.
    """
    ids = [(*range(60), *range(70 + 9 * k, 79 + 9 * k)) for k in range(4)]
    draw, plain = random.Random(seed), learner(architecture, pack="padded")
    data = [sequence(row, (False,) * 60 + (True,) * 9, draw=draw) for row in ids]
    logprobs = plain.reference_logprobs(data)
    data = [dataclasses.replace(datum, logprobs=values) for datum, values in zip(data, logprobs, strict=True)]
    exact = caught(plain, data)
    shared, padded = (
        bfloat16_errors(learner(architecture, pack=packing, dtype="bfloat16"), data, exact, form)
        for packing in ("prefix_tree", "padded")
    )
    for gap, reference in zip(shared, padded, strict=True):
        assert 0.0 < gap < 2.0**0.5 * reference


def bfloat16_errors(half, data, exact, form):
    """The root mean squares by which log-probabilities and gradients are off those in float32."""
    half.rank._runner._precision = dataclasses.replace(half.rank._runner._precision, form=form)
    logprobs, gradients = torch.tensor(half.reference_logprobs(data)), caught(half, data)
    assert logprobs.dtype == torch.float32
    off = torch.cat([(gradients[name] - value).flatten() for name, value in exact.items()])
    difference = logprobs - torch.tensor([datum.logprobs for datum in data])
    return float(difference.square().mean().sqrt()), float(off.square().mean().sqrt())
