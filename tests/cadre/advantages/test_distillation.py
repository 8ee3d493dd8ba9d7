"""A teacher's part in the advantages of tokens, by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from bench.parity.critics import Learner, named, node, played_by, team_of
from bench.parity.trees import leaf
from cadre.advantages.batch import build_batch
from cadre.errors import EngineError
from cadre.settings import TeacherConfig
from cadre.types import Node, Task, Tool, TrainingSequence, Tree

# Two samples of two tokens, which the policy gave -0.5 and -0.25, and what the teacher gives them.
TEACHER = [(-1.0, -0.25), (-0.5, -1.25)]


@dataclass
class Scorer:
    """Log-probabilities of the completions in order; remembers what it was asked."""

    numbers: Sequence[tuple[float, ...]]
    requests: list[TrainingSequence] = field(default_factory=list)

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        self.requests += data
        pairs = zip(data, self.numbers, strict=True)
        return [(0.0,) * (len(sample.token_ids) - len(numbers)) + numbers for sample, numbers in pairs]


def tree(*rewards: float, **shown: str) -> Node:
    return node(0, {"a": len(rewards)}, [leaf({"a": i}, reward) for i, reward in enumerate(rewards)], "p", **shown)


def learned(root: Node, scorer: Scorer | None, learner: Learner | None = None, **teacher: object):
    plan = replace(named("grpo"), teacher=TeacherConfig(**teacher))
    team = replace(team_of(learner or Learner()), teacher=scorer)
    return build_batch([Tree(Task("t", {}), root)], plan, team)


@pytest.mark.parametrize(
    ("rewards", "settings", "expected"),
    [
        # (R - mean) / std is -1 and 1; log pi - log teacher is 0.5, 0 and 0, 1.
        ((0.0, 1.0), {}, [(-1.5, -1.0), (1.0, 0.0)]),
        ((0.0, 1.0), {"coefficient": 2.0}, [(-2.0, -1.0), (1.0, -1.0)]),
        ((0.0, 1.0), {"coefficient": 2.0, "clip": 0.5}, [(-2.0, -1.0), (1.0, 0.0)]),
        ((0.0, 1.0), {"alone": True}, [(-0.5, 0.0), (0.0, -1.0)]),
        # Where rewards are equal, the teacher is all that there is.
        ((1.0, 1.0), {}, [(-0.5, 0.0), (0.0, -1.0)]),
    ],
)
def test_a_token_loses_what_the_policy_is_surer_of_than_the_teacher(
    rewards: tuple, settings: dict, expected: list
) -> None:
    scorer = Scorer(TEACHER)
    batch = learned(tree(*rewards), scorer, model="seed", **settings)
    assert [sequence.advantages[-2:] for sequence in batch.sequences] == [pytest.approx(pair) for pair in expected]
    assert [sequence.advantages[:-2] for sequence in batch.sequences] == [(0.0,) * 3] * 2
    assert batch.metrics["a/kl_to_teacher"] == pytest.approx(1.5 / 4)
    # The teacher is given what was sampled, at the temperature of the sampling.
    prompt = tuple(b"p a")
    assert [sequence.token_ids for sequence in scorer.requests] == [(*prompt, 3, 0)] * 2
    assert [(sequence.mask, sequence.temperature) for sequence in scorer.requests] == [
        ((False,) * 3 + (True,) * 2, 0.7)
    ] * 2


def test_in_expectation_it_is_the_gradient_of_the_reverse_kl() -> None:
    scores = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([0.0, 0.4, -0.7], dtype=torch.float64).log_softmax(0)
    own_log_softmax = scores.log_softmax(0)
    (expected,) = torch.autograd.grad(
        (own_log_softmax.exp() * (own_log_softmax - teacher)).sum(), scores, retain_graph=True
    )
    probabilities, advantages = own_log_softmax.exp().detach(), -(own_log_softmax - teacher).detach()
    (result,) = torch.autograd.grad(-(probabilities * advantages * own_log_softmax).sum(), scores)
    assert torch.allclose(result, expected, atol=1e-12)


def test_a_hint_comes_last_in_the_conversation_that_the_policy_itself_reads_then() -> None:
    """The text that no role sees changes the prompt alone, and the policy's present weights score the same tokens."""
    learner = Learner(present=lambda datum: (0.0,) * (len(datum.token_ids) - 2) + (-0.25, -0.5))
    batch = learned(tree(1.0, 1.0, privileged="It is 7."), None, learner, hint=True)
    assert [bytes(sequence.token_ids[:-2]).decode() for sequence in learner.referred] == ["p a\n\nIt is 7."] * 2
    assert [sequence.mask[-2:] for sequence in learner.referred] == [(True, True)] * 2
    # log pi - log pi(hint) is -0.25 and 0.25; the sequences that are trained have no hint.
    assert [sequence.advantages[-2:] for sequence in batch.sequences] == [pytest.approx((0.25, -0.25))] * 2
    assert [bytes(sequence.token_ids[:-2]) for sequence in batch.sequences] == [b"p a"] * 2
    silent = Learner()
    learned(tree(1.0, 1.0), None, silent, hint=True)
    assert [bytes(sequence.token_ids[:-2]) for sequence in silent.referred] == [b"p a"] * 2  # no text, no hint


def test_a_hint_is_read_with_the_tools_that_the_role_was_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    root, tools = tree(1.0, 1.0, privileged="It is 7."), (Tool("add"),)
    root = replace(root, observations={"a": replace(root.observations["a"], tools=tools)})
    arguments = []
    monkeypatch.setattr(
        Learner, "encode", lambda self, policy, messages, tools=(): (arguments.append(tools), (1, 2))[1]
    )
    learned(root, None, hint=True)
    assert arguments == [tools, tools]


def test_the_policy_before_training_may_teach() -> None:
    learner = Learner(reference=lambda datum: (0.0,) * 3 + (-0.5, -0.75), present=lambda datum: pytest.fail("present"))
    batch = learned(tree(1.0, 1.0), None, learner, weights="initial")
    assert [sequence.advantages[-2:] for sequence in batch.sequences] == [pytest.approx((0.0, -0.5))] * 2


def test_a_policy_teaches_the_others_and_not_itself() -> None:
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, float(i)) for i in range(2)], "p")
    learner = Learner(("one", "two"), present=lambda datum: (0.0,) * 3 + (-0.5, -1.25))
    team = team_of(learner, a="one", b="two")
    plan = replace(named("grpo"), teacher=TeacherConfig(policy="two", alone=True))
    batch = build_batch([Tree(Task("t", {}), played_by(root, a="one", b="two"))], plan, team)
    assert [(sequence.policy, sequence.advantages[-2:]) for sequence in batch.sequences] == [
        ("one", (0.0, -1.0)),
        ("one", (0.0, -1.0)),
        ("two", (-1.0, -1.0)),
        ("two", (1.0, 1.0)),
    ]
    assert {sequence.policy for sequence in learner.referred} == {"two"}
    assert {sequence.role for sequence in learner.referred} == {"a"}
    assert "b/kl_to_teacher" not in batch.metrics


def test_a_critic_gives_the_rest_of_the_advantage() -> None:
    root = tree(1.0, 0.0)
    plain, taught = (
        build_batch(
            [Tree(Task("t", {}), root)],
            replace(named("ippo", whiten=False), teacher=teacher),
            replace(team_of(Learner()), teacher=Scorer(TEACHER)),
        )
        for teacher in (None, TeacherConfig(model="seed"))
    )
    changes = [
        tuple(new - old for new, old in zip(first.advantages[-2:], second.advantages[-2:], strict=True))
        for first, second in zip(taught.sequences, plain.sequences, strict=True)
    ]
    assert changes == [pytest.approx((-0.5, 0.0)), pytest.approx((0.0, -1.0))]


def test_a_frozen_policy_is_not_taught_and_numbers_are_finite() -> None:
    scorer = Scorer([])
    plan = replace(named("grpo"), teacher=TeacherConfig(model="seed"))
    team = replace(team_of(Learner()), teacher=scorer, frozen=frozenset({"shared"}))
    build_batch([Tree(Task("t", {}), tree(0.0, 1.0))], plan, team)
    assert scorer.requests == []
    with pytest.raises(EngineError, match=r"Role 'a': the teacher's log-probabilities .* not finite"):
        learned(tree(0.0, 1.0), Scorer([(float("nan"), -1.0), (-1.0, -1.0)]), model="seed")
