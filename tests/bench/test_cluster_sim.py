"""The simulation against times worked out by hand."""

import pytest

from cluster_sim import Costs, Simulation, Work, non_negative

np = pytest.importorskip("numpy")
# A round takes a second, an update two: no lengths.
COSTS = Costs(round=1.0, depth=0.0, width=0.0, update=2.0, token=0.0)
STEPS = [Work([[[1]], [[1]], [[1]]])] * 4  # three rounds: 3 s to sample, 2 s to learn


@pytest.mark.parametrize(("ahead", "seconds"), [(0, 4 * 5.0), (1, 4 * 3.0 + 2.0), (2, 4 * 3.0 + 2.0)])
def test_one_step_after_the_other_or_beside_it(ahead: int, seconds: float) -> None:
    busy = Simulation(STEPS, COSTS, samplers=1, learners=1, ahead=ahead).run()
    assert busy.seconds == seconds
    assert (busy.sampling, busy.learning) == (12.0 / seconds, 8.0 / seconds)


def test_a_learner_that_is_slower_sets_the_pace_and_staleness_bounds_the_lead() -> None:
    slow = Costs(round=1.0, depth=0.0, width=0.0, update=5.0, token=0.0)
    assert Simulation(STEPS, slow, samplers=1, learners=1, ahead=1).run().seconds == 3.0 + 4 * 5.0


def test_samplers_share_a_round_and_wait_for_the_longest() -> None:
    costs = Costs(round=0.0, depth=1.0, width=0.0, update=0.0, token=1.0)
    busy = Simulation([Work([[[4], [1], [2]]])], costs, samplers=2, learners=7, ahead=0).run()
    assert busy.seconds == 4.0 + 7 / 7  # (4, 2) and (1): the second waits; then 7 tokens on 7 cards
    assert busy.samplers == (4.0 + 1.0) / 2 / 5.0


def test_costs_are_fitted_without_negative_ones() -> None:
    terms = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 6.0]])
    assert non_negative(terms, [5.0, 9.0, 13.0]) == pytest.approx([1.0, 2.0])
    assert non_negative(terms, [2.0, 8.0, 14.0])[0] == 0.0
