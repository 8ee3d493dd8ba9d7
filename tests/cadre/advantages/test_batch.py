"""The data of one update, from trees to sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from bench.parity.critics import (
    Learner,
    named,
    node,
    one_answer,
    team_of,
)
from bench.parity.trees import leaf
from cadre.advantages.batch import build_batch, is_useful
from cadre.advantages.groups import compare_samples
from cadre.advantages.returns import samples_of
from cadre.errors import ConfigError
from cadre.settings import CreditConfig, LossConfig
from cadre.types import Message, Task, Tree


def test_the_penalty_is_taken_from_the_return_before_the_comparison() -> None:
    """Rewards 1 and 1; one sample is surer than the reference by 0.5 nats, so it earns 0.05 less."""
    root = node(0, {"a": 2}, [leaf({"a": i}, 1.0) for i in range(2)], "p")
    surer = iter([(0.0, 0.0, 0.0, -0.75, -0.5), (0.0, 0.0, 0.0, -0.5, -0.25)])
    learner = Learner(reference=lambda datum: next(surer))
    batch = build_batch([Tree(Task("t", {}), root)], named("magrpo", kl=0.1), team_of(learner))
    assert [datum.advantages[-1] for datum in batch.sequences] == pytest.approx([-0.025, 0.025])
    assert batch.metrics["a/kl_penalty"] == pytest.approx(0.5 / 4)
    plain = build_batch([Tree(Task("t", {}), root)], named("magrpo"), team_of(learner))
    assert [datum.advantages[-1] for datum in plain.sequences] == [0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-8, 1.0])
def test_a_penalty_is_not_divided_by_a_deviation_that_it_made_itself(scale: float) -> None:
    """Mistake: rewards and penalties in one standard deviation, so that of equal rewards rounding alone decides, at
    full size. The first sample is surer than the reference by half a nat times `scale`, and the other is not."""
    reference = {"a0": (-0.5 - 0.25 * scale, -0.25 - 0.25 * scale), "a1": (-0.5, -0.25)}

    def trained(first: float, second: float, **selection: str) -> list[float]:
        root = node(0, {"a": 2}, [leaf({"a": 0}, first), leaf({"a": 1}, second)], "p")
        text = iter(reference.values())
        learner = Learner(reference=lambda datum: (0.0, 0.0, 0.0, *next(text)))
        plan = replace(named("grpo", kl=0.1), selection=CreditConfig(**selection))
        batch = build_batch([Tree(Task("t", {}), root)], plan, team_of(learner))
        return [datum.advantages[-1] for datum in batch.sequences]

    # 0.05 and 0, 0.025 on either side of their mean; rewards 0 and 1 are -1 and 1 by their deviation
    assert trained(1.0, 1.0) == pytest.approx([-0.025 * scale, 0.025 * scale], rel=1e-6)
    assert trained(0.0, 1.0) == pytest.approx([-1 - 0.025 * scale, 1 + 0.025 * scale], rel=1e-9)
    assert trained(1.0, 1.0, without_std="drop") == []


def test_a_frozen_role_in_the_group_does_not_make_penalties_a_loss_for_all() -> None:
    """Both of a planner's answers are as far from the reference; the tool beside it is frozen and pays nothing."""
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, float(i)) for i in range(2)], "p")
    samples = [
        replace(scored, penalties=(0.1, 0.1) if scored.sample.role == "a" else ())
        for scored in samples_of([Tree(Task("t", {}), root)])
    ]
    (group,) = compare_samples(samples, named("grpo").credit)
    assert [(sample.sample.role, sample.advantages[0]) for sample in group.samples] == [
        ("a", -1.0),
        ("a", 1.0),
        ("b", -1.0),
        ("b", 1.0),
    ]


def test_the_loss_gets_its_reference_only_where_it_asks() -> None:
    plan = named("grpo")
    assert build_batch([one_answer(1.0)], plan, team_of(Learner())).sequences[0].reference == ()
    asks = replace(plan, loss=LossConfig(kl=0.1))
    (datum,) = build_batch([one_answer(1.0)], asks, team_of(Learner())).sequences
    assert datum.reference == (0.0, 0.0, 0.0, -0.5, -0.25, -1.0)


@dataclass
class ByLength:
    calls: list[tuple[Sequence[Message], str]] = field(default_factory=list)

    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        self.calls += zip(prompts, completions, strict=True)
        return [float(len(text)) for text in completions]


def test_a_reward_model_pays_in_place_of_the_environment() -> None:
    judge = ByLength()
    plan = named("rlhf", kl=0.0, gae_lambda=1.0, whiten=False, reward_model="scorer")
    batch = build_batch([one_answer(100.0)], plan, replace(team_of(Learner()), reward_model=judge))
    assert batch.sequences[0].advantages[3:] == pytest.approx((5.0,) * 3)  # "p a 0"
    assert batch.metrics["reward_model/score"] == 5.0
    assert judge.calls == [((Message("user", "p a"),), "p a 0")]
    with pytest.raises(ConfigError, match="without one"):
        build_batch([one_answer(1.0)], plan, team_of(Learner()))


def test_what_is_selected_holds_for_critics_too() -> None:
    """A cut answer trains the critic and no policy; an overlong one pays with its last token; a role weighs more."""
    root = one_answer(1.0)
    (sample,) = root.root.samples["a"]
    cut = replace(sample, finish="length")
    tree = replace(root, root=replace(root.root, samples={"a": (cut,)}))
    plan = named("rlhf", kl=0.0, gae_lambda=1.0, whiten=False)
    masked = replace(plan, selection=CreditConfig(truncated="mask"))
    batch = build_batch([tree], masked, team_of(Learner()))
    assert batch.metrics["rollout/dropped"] == 1
    assert [any(datum.mask) for datum in batch.sequences] == [False]
    assert batch.sequences[0].targets is not None
    late = replace(plan, selection=CreditConfig(overlong_buffer=1, overlong_factor=0.25, role_weights={"a": 2.0}))
    (datum,) = build_batch([tree], late, team_of(Learner())).sequences
    assert datum.advantages[3:] == pytest.approx((2.0 * 0.75,) * 3)


def test_the_distance_to_the_reference_saves_no_tree_of_equal_rewards() -> None:
    """Its groups are dropped where trees are replaced, and no reference log-probability is computed."""
    learner = Learner()
    for first, teaches in ((1.0, False), (0.0, True)):
        tree = Tree(Task("t", {}), node(0, {"a": 2}, [leaf({"a": i}, pay) for i, pay in enumerate((first, 1.0))], "p"))
        assert is_useful(named("magrpo", kl=0.1), team_of(learner))(tree) is teaches
    assert learner.referred == []


def test_a_tree_teaches_where_the_reward_model_tells_its_siblings_apart() -> None:
    """The environment's rewards do not matter, equal or unequal, where the reward model gives equal scores."""

    class Judge:
        def __init__(self, *scores: float) -> None:
            self.scores = list(scores)

        def score(self, prompts: Sequence[object], completions: Sequence[str]) -> list[float]:
            return [self.scores[number % len(self.scores)] for number in range(len(completions))]

    plan = named("magrpo", reward_model="scorer")
    for reward, scores, teaches in (((1.0, 1.0), (1.0, 2.0), True), ((0.0, 1.0), (3.0, 3.0), False)):
        tree = Tree(Task("t", {}), node(0, {"a": 2}, [leaf({"a": i}, reward[i]) for i in range(2)], "p"))
        assert is_useful(plan, replace(team_of(Learner()), reward_model=Judge(*scores)))(tree) is teaches


def test_a_tree_teaches_where_length_alone_tells_its_siblings_apart() -> None:
    root = node(0, {"a": 2}, [leaf({"a": i}, 1.0) for i in range(2)], "p")
    siblings = (root.samples["a"][0], replace(root.samples["a"][1], finish="length"))
    tree = Tree(Task("t", {}), replace(root, samples={"a": siblings}))
    assert not is_useful(named("grpo"), team_of(Learner()))(tree)
    assert is_useful(replace(named("grpo"), selection=CreditConfig(overlong_buffer=1)), team_of(Learner()))(tree)


def test_the_reference_is_asked_once_where_both_the_reward_and_the_loss_want_it() -> None:
    learner = Learner()
    plan = replace(named("grpo", kl=0.1), loss=LossConfig(kl=0.1))
    (datum,) = build_batch([one_answer(1.0)], plan, team_of(learner)).sequences
    assert datum.reference == (0.0, 0.0, 0.0, -0.5, -0.25, -1.0)
    assert len(learner.referred) == 1


def test_the_running_means_move_with_a_batch() -> None:
    state: dict[str, float] = {}
    build_batch([one_answer(4.0)], named("spiral", decay=0.75), team_of(Learner()), state)
    assert state == {"a": 1.0}
