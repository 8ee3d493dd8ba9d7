"""Dr. MAMR's causal influence: a step against the prompt of the next one without its text, by hand."""

from dataclasses import replace

import pytest

from bench.parity.critics import Learner, named, node, team_of
from bench.parity.trees import inner, leaf
from cadre.advantages.batch import TrainingBatch, build_batch
from cadre.errors import EngineError
from cadre.types import Message, Node, Observation, Task, TrainingSequence, Tree

# log pi of the second role's two tokens where its prompt lacks the plan; with it they are -0.5 and -0.25.
WITHOUT = {"p b:  now": (-2.0, -1.75), "q b:  now": (-0.5, -0.25), "r b:  now": (-1.0, -0.75)}


def present(sequence: TrainingSequence) -> tuple[float, ...]:
    prompt = bytes(sequence.token_ids[:-2]).decode()
    return (0.0,) * len(prompt) + WITHOUT[prompt]


def episodes(plans: tuple[str, ...], rewards: tuple[float, ...], shown: str = "{tag} b: {plan} now") -> list[Tree]:
    """Return episodes in which a says a plan, and b acts on a prompt that quotes it."""
    branches, samples = [], []
    root = node(0, {"a": len(plans)}, [], "p")
    for index, (plan, reward, tag) in enumerate(zip(plans, rewards, "pqr", strict=False)):
        below = node(0, {"b": 1}, [leaf({"b": 0}, reward)], tag)
        observation = Observation("b", (Message("user", shown.format(tag=tag, plan=plan)),))
        branches.append(inner({"a": index}, replace(below, observations={"b": observation})))
        samples.append(replace(root.samples["a"][index], text=plan))
    tree: Node = replace(root, samples={"a": tuple(samples)}, branches=tuple(branches))
    return [Tree(Task("t", {}), tree)]


def learned(trees: list[Tree], learner: Learner, **settings: float) -> TrainingBatch:
    return build_batch(trees, named("dr_mamr", **settings), team_of(learner))


def advantages(batch: TrainingBatch, role: str) -> list[float]:
    return [scored.advantages[0] for scored in batch.learned if scored.sample.role == role]


def test_a_plan_that_makes_the_next_answer_likelier_is_credited() -> None:
    """b's answer has -0.75 with the plan. Without it the plans lose 3, 0 and 1: mean 4/3, deviation sqrt(14)/3."""
    learner = Learner(present=present)
    batch = learned(episodes(("go", "stay", "turn"), (1.0, 0.0, 0.5)), learner, influence=0.5)
    reward = [6**0.5 / 2, -(6**0.5) / 2, 0.0]
    influence = [(number - 4 / 3) / (14**0.5 / 3) for number in (3.0, 0.0, 1.0)]
    assert advantages(batch, "a") == pytest.approx([r + 0.5 * c for r, c in zip(reward, influence, strict=True)])
    assert advantages(batch, "b") == pytest.approx(reward)  # nobody acts after it
    assert batch.metrics["a/influence"] == pytest.approx(4 / 3)
    assert "b/influence" not in batch.metrics
    assert [(sequence.policy, sequence.temperature) for sequence in learner.referred] == [("shared", 0.7)] * 3


def test_log_probabilities_that_are_no_numbers_are_named() -> None:
    broken = Learner(present=lambda sequence: (0.0,) * (len(sequence.token_ids) - 1) + (float("nan"),))
    with pytest.raises(EngineError, match="Role 'b': log-probabilities of a completion without the step before it"):
        learned(episodes(("go", "stay", "turn"), (1.0, 0.0, 0.5)), broken)


def test_equal_steps_share_the_mean_of_their_influence() -> None:
    """Two equal plans have 3 and 0, together 1.5, against 1 of the third: mean 4/3, deviation sqrt(2)/6."""
    batch = learned(episodes(("go", "go", "turn"), (1.0, 1.0, 1.0)), Learner(present=present), influence=1.0)
    assert advantages(batch, "a") == pytest.approx([2**-0.5, 2**-0.5, -(2**0.5)])


def test_a_step_that_is_not_quoted_word_for_word_has_no_influence_and_costs_no_pass() -> None:
    learner = Learner(present=lambda datum: pytest.fail("asked"))
    batch = learned(episodes(("1", "2"), (1.0, 0.0), shown="{tag} b: 10 {tag}{plan}"), learner)
    assert advantages(batch, "a") == [1.0, -1.0]
    assert batch.metrics["a/influence"] == 0.0
