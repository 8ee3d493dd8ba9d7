"""Scored samples become training sequences."""

from bench.parity.trees import assign, credit_of, sequential
from cadre.advantages.batch import make_sequences
from cadre.types import Sampling, Task, Tree


def test_a_datum_trains_the_completion_with_its_end_and_never_the_prompt() -> None:
    groups = assign([Tree(Task("t", {}), sequential())], credit_of("step", "node", "mean", "none"))
    first = make_sequences(groups[0].samples, {"tool": Sampling(0.7), "planner": Sampling()})[0]
    assert first.token_ids == (1, 2, 3, 0)
    assert first.mask == (False, False, True, True)
    assert first.logprobs == (0.0, 0.0, -0.5, -0.25)
    assert first.advantages == (0.0, 0.0, -1.0, -1.0)
    assert first.temperature == 0.7


def test_every_sibling_is_trained_not_only_the_winner() -> None:
    groups = assign([Tree(Task("t", {}), sequential())], credit_of("step", "node", "mean", "none"))
    samples = make_sequences(
        [scored for group in groups for scored in group.samples], {"tool": Sampling(), "planner": Sampling()}
    )
    assert sorted(datum.role for datum in samples) == ["planner"] * 3 + ["tool"] * 3
    assert sum(not group.has_variance for group in groups) / len(groups) == 0.0
