"""Comparisons of two learners' gradients and metrics."""

from __future__ import annotations

import pytest
import torch

from tests.cadre.engines.tiny import update


def apart(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def caught(learner, data):
    """What the optimisers of all policies and heads are given, in place of a step, with the losses."""
    found = {}
    pairs = learner._optimisers.items()
    optimisers = {name: pair.weights for name, pair in pairs}
    optimisers |= {f"{name}.head": pair.heads for name, pair in pairs if pair.heads}

    def catcher(name, optimiser):
        def catch(loss, norm):
            gradients = {key: weight.grad for key, weight in optimiser._parameters.items() if weight.grad is not None}
            found.update({f"{name}.{key}": value.clone() for key, value in gradients.items()})
            found[f"{name}.loss"] = torch.tensor(loss)
            optimiser.clear()
            return 1.0

        return catch

    with pytest.MonkeyPatch.context() as patch:
        for name, optimiser in optimisers.items():
            patch.setattr(optimiser, "step", catcher(name, optimiser))
        update(learner, data)
    return found
