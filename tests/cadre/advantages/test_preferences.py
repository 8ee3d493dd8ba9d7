"""Multi-agent DPO: its advantages give the gradient of the loss as it is written."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from bench.parity.critics import Learner, named, team_of
from bench.parity.trees import inner, leaf, node, two_turns
from cadre.advantages.batch import build_batch
from cadre.advantages.groups import comparison_of
from cadre.advantages.preferences import preference_advantages, team_return
from cadre.advantages.returns import samples_of
from cadre.types import Task, Tree

CREDIT = comparison_of("reward_to_go", "node", "mean", "none")


def test_two_joint_actions_by_hand() -> None:
    """One pair: agent a is surer of the better one than the reference by 1 nat, b less sure by 0.5."""
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, float(i)) for i in range(2)])
    samples = samples_of([Tree(Task("t", {}), root)])
    sums = {("a", 1): 1.0, ("b", 1): -0.5}
    referred = [with_gap(scored, sums.get((scored.sample.role, scored.tree_sample.index), 0.0)) for scored in samples]
    judged, metrics = preference_advantages(referred, CREDIT, beta=2.0)
    push = 2.0 / (1.0 + math.exp(2.0 * 0.5))
    got = {(scored.sample.role, scored.tree_sample.index): scored.advantages[0] for scored in judged}
    assert got == pytest.approx({("a", 0): -push, ("a", 1): push, ("b", 0): -push, ("b", 1): push})
    assert metrics["preference/loss"] == pytest.approx(math.log(1.0 + math.exp(-1.0)))
    assert (metrics["preference/accuracy"], metrics["preference/pairs"]) == (1.0, 1)


def with_gap(scored, gap: float):
    """The sample whose log-probabilities are above the reference by so much in all."""
    return replace(scored, reference=tuple(now - gap / 2 for now in scored.sample.logprobs))


@pytest.mark.parametrize("joint", ["aligned", "cross"])
def test_parity_with_the_loss_differentiated_agent_by_agent(joint: str) -> None:
    """L = -log sigmoid(beta * sum of margins), the other agent's margin detached; the mean over the pairs of a node."""
    torch.manual_seed(1)
    now = {role: torch.randn(2, dtype=torch.float64, requires_grad=True) for role in "ab"}
    reference = {role: torch.randn(2, dtype=torch.float64) for role in "ab"}
    joint_actions = [(i, i) for i in range(2)] if joint == "aligned" else [(i, j) for i in range(2) for j in range(2)]
    pays = [3.0, 1.0, 2.0, 2.0][: len(joint_actions)]
    pairs = [pair for pair in itertools.permutations(range(len(pays)), 2) if pays[pair[0]] > pays[pair[1]]]

    def margin(learner: str, better: int, worse: int) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for position, role in enumerate("ab"):
            gap = now[role] - reference[role]
            part = gap[joint_actions[better][position]] - gap[joint_actions[worse][position]]
            total = total + (part if role == learner else part.detach())
        return 0.3 * total

    for role in "ab":
        loss = -sum(torch.nn.functional.logsigmoid(margin(role, *pair)) for pair in pairs) / len(pairs)
        loss.backward()
    root = node(
        0, {"a": 2, "b": 2}, [leaf({"a": i, "b": j}, pay) for (i, j), pay in zip(joint_actions, pays, strict=True)]
    )
    samples = [
        with_gap(item, float((now[item.sample.role] - reference[item.sample.role]).detach()[item.tree_sample.index]))
        for item in samples_of([Tree(Task("t", {}), root)])
    ]
    judged, _ = preference_advantages(samples, CREDIT, beta=0.3)
    for scored in judged:
        # the policy gradient raises advantage * log pi; the loss falls
        gradient = now[scored.sample.role].grad
        assert gradient is not None
        assert scored.advantages[0] == pytest.approx(-float(gradient[scored.tree_sample.index]), abs=1e-12)


def test_what_follows_decides_and_equal_joint_actions_say_nothing() -> None:
    late = node(1, {"a": 2}, [leaf({"a": 0}, 4.0), leaf({"a": 1}, 4.0)], tag="late-")
    root = node(0, {"a": 2}, [inner({"a": 0}, late), leaf({"a": 1}, 1.0)])
    judged, metrics = preference_advantages(samples_of([Tree(Task("t", {}), root)]), CREDIT, beta=1.0)
    assert [scored.advantages[0] for scored in judged] == [0.5, -0.5, 0.0, 0.0]
    assert metrics["preference/pairs"] == 1


def test_the_batch_asks_the_reference_and_gives_the_loss_none() -> None:
    root = node(0, {"a": 2}, [leaf({"a": i}, float(i)) for i in range(2)])
    learner = Learner()
    batch = build_batch([Tree(Task("t", {}), root)], named("ma_dpo", beta=0.2), team_of(learner))
    assert len(learner.referred) == 2
    assert [datum.advantages[-1] for datum in batch.sequences] == pytest.approx([-0.1, 0.1])
    assert {datum.reference for datum in batch.sequences} == {()}


def test_a_lenient_team_prefers_by_the_best_that_follows() -> None:
    """1 + 0.5 * (2 + 4) / 2 against 1 + 0.5 * 4."""
    root = two_turns()
    assert team_return(root.branches[0], 0, replace(CREDIT, gamma=0.5)) == pytest.approx(2.5)
    assert team_return(
        root.branches[0], 0, comparison_of("best_to_go", "node", "mean", "none", gamma=0.5)
    ) == pytest.approx(3.0)
