"""The logged metrics of an update."""

from dataclasses import replace

import pytest

from cadre.engines.torch.trainer import UpdateMetrics
from tests.cadre.engines.tiny import datum, request, sample, update


def test_the_mismatch_is_a_mean_by_role_over_the_first_optimiser_step_alone():
    metrics = UpdateMetrics()
    metrics.add_logprob_diff("tool", 0.6, 3)
    metrics.add_logprob_diff("planner", 0.5, 1)
    metrics.add_logprob_diff("tool", 0.2, 1)
    metrics.norms.append(1.0)
    metrics.add_logprob_diff("tool", 100.0, 1)
    means = metrics.means()
    assert means["logprob_diff/tool"] == pytest.approx(0.2)
    assert means["logprob_diff/planner"] == 0.5


def test_the_mismatch_of_roles_that_share_a_policy_is_told_apart(learner):
    torch_learner = learner()
    ((first, second),) = sample(torch_learner, request("x", 2, max_tokens=4))
    shifted = replace(second, role="other", logprobs=tuple(value - 0.25 for value in second.logprobs))
    text = update(torch_learner, [datum(first, 1.0), datum(shifted, 1.0)])["p"]
    assert text["logprob_diff/r"] == pytest.approx(0.0, abs=1e-5)
    assert text["logprob_diff/other"] == pytest.approx(0.25, abs=1e-5)
