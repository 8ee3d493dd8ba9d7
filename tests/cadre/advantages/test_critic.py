"""Values are given numbers and every advantage is worked out by hand, so that a wrong sign or place cannot pass."""

from dataclasses import replace

import pytest

from bench.parity.critics import (
    Learner,
    asked,
    chain,
    crossed,
    judged,
    named,
    node,
    one_answer,
    played_by,
    rule,
    sequential,
    taught,
    team_of,
)
from bench.parity.trees import inner, leaf
from cadre.advantages.batch import build_batch
from cadre.advantages.critic import Reads, explained_variance
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import reward_to_go, samples_of
from cadre.errors import ConfigError
from cadre.rollout import walk
from cadre.types import Node, Task, TrainingSequence, Tree

THREE = {"0 a": 0.5, "1 a": 1.0, "2 a": 1.5}


def test_gae_over_three_turns() -> None:
    got = taught(chain(1.0, 0.0, 2.0), THREE, rule(gae_lambda=0.5), gamma=0.9)
    # delta: 2 - 1.5 = 0.5; 0 + 0.9 * 1.5 - 1 = 0.35; 1 + 0.9 * 1 - 0.5 = 1.4; each adds 0.9 * 0.5 of the next
    assert got["2 a 0"] == pytest.approx((0.5, 2.0))
    assert got["1 a 0"] == pytest.approx((0.575, 1.575))
    assert got["0 a 0"] == pytest.approx((1.65875, 2.15875))


def test_reward_to_go_minus_the_value_is_lambda_one() -> None:
    got = taught(chain(1.0, 0.0, 2.0), THREE, rule(gae_lambda=1.0), gamma=0.9)
    # returns 2; 0.9 * 2 = 1.8; 1 + 0.9 * 1.8 = 2.62
    assert got["2 a 0"] == pytest.approx((0.5, 2.0))
    assert got["1 a 0"] == pytest.approx((0.8, 1.8))
    assert got["0 a 0"] == pytest.approx((2.12, 2.62))


def test_roles_that_act_in_turn_are_paid_until_they_act_again() -> None:
    values = {"early a": 1.0, "late a": 2.0, "early b": 0.5, "late b": 3.0}
    got = taught(sequential(), values, rule(gae_lambda=0.5), gamma=0.5)
    # a: then 1 - 1 + 4 - 2 = 2; first 1 + 2 + 0.5 * 2 - 1 = 3, and 0.5 * 0.5 * 2 more
    assert got["late a 0"] == pytest.approx((2.0, 4.0))
    assert got["early a 0"] == pytest.approx((3.5, 4.5))
    # b: then 4 - 3 = 1; first 2 + 0.5 * 1 (its team's, when a acts) + 0.5 * 3 - 0.5 = 3.5, and 0.5 * 0.5 * 1 more
    assert got["late b 0"] == pytest.approx((1.0, 4.0))
    assert got["early b 0"] == pytest.approx((3.75, 4.25))


def test_alpha_weighs_the_team_between_decisions_too() -> None:
    values = {"early a": 0.0, "late a": 0.0, "early b": 0.0, "late b": 0.0}
    got = taught(sequential(), values, rule(gae_lambda=0.0), alpha=0.5)
    assert got["early a 0"][0] == pytest.approx(1.0 + 0.5 * 2.0)
    assert got["late a 0"][0] == pytest.approx(0.5 * 1.0 - 1.0 + 0.5 * 4.0)


def test_roles_at_once_in_a_tree_of_unequal_depths() -> None:
    values = {"early a": 1.0, "early b": 0.0, "late a": 2.0, "late b": 1.0}
    got = taught(crossed(), values, rule(gae_lambda=0.5), gamma=0.5)
    # late: a earns 2 and 6 against 2, mean advantage 2; b the same against 1, mean advantage 3
    assert [got[f"late a {i}"][0] for i in range(2)] == pytest.approx([0.0, 4.0])
    assert [got[f"late b {i}"][0] for i in range(2)] == pytest.approx([1.0, 5.0])
    # one of the two pairs that hold a's first goes on, which halves 0.5: (1 + 3) / 2 + 0.25 * 2 - 1 + 0.5 * 0.25 * 2;
    # its second earns (0 + 2) / 2 - 1
    assert got["early a 0"] == pytest.approx((1.75, 2.75))
    assert got["early a 1"] == pytest.approx((0.0, 1.0))
    # b's first: (1 + 0) / 2 + 0.25 * 1 - 0 + 0.5 * 0.25 * 3; its second (3 + 2) / 2
    assert got["early b 0"] == pytest.approx((1.125, 1.125))
    assert got["early b 1"] == pytest.approx((2.5, 2.5))


def fanned() -> Node:
    """a acts, then b twice from the same place, and a again after either, for 2 and 6."""
    ends = [node(1, {"a": 1}, [leaf({"a": 0}, pay)], f"end{pay}") for pay in (2.0, 6.0)]
    middle = node(0, {"b": 2}, [inner({"b": i}, end, 1.0 + 2 * i) for i, end in enumerate(ends)], "mid")
    return node(0, {"a": 1}, [inner({"a": 0}, middle)], "start")


def test_a_decision_that_others_fan_out_is_followed_by_the_mean() -> None:
    values = {"start a": 1.0, "mid b": 0.0, "end2.0 a": 1.0, "end6.0 a": 3.0}
    got = taught(fanned(), values, rule(gae_lambda=0.5), gamma=0.5)
    # the pay (1 + 3) / 2, then 0.25 of each of V 1 and 3 and of A 1 and 3
    assert got["start a 0"] == pytest.approx((2.0 + 1.0 - 1.0 + 0.5 * 1.0, 3.5))


def trio() -> Node:
    """a, then b and c at once, then a; c pays b nothing locally, and only two of three of a's go on."""
    ends = [node(1, {"a": 1}, [leaf({"a": 0}, pay, a=0.5)], f"end{pay}") for pay in (2.0, 6.0)]
    pairs = [
        node(0, {"b": 1, "c": 1}, [inner({"b": 0, "c": 0}, end, 1.0, b=0.25, c=-1.0)], f"pair{index}")
        for index, end in enumerate(ends)
    ]
    branches = [inner({"a": 0}, pairs[0]), inner({"a": 1}, pairs[1]), leaf({"a": 2}, 9.0)]
    return node(0, {"a": 3}, branches, "start")


def test_three_roles_that_act_unequally_often() -> None:
    values = {"start a": 2.0, "end2.0 a": 1.0, "end6.0 a": 2.0}
    values |= {"pair0 b": 1.0, "pair1 b": 2.0, "pair0 c": 0.0, "pair1 c": 1.0}
    got = taught(trio(), values, rule(gae_lambda=0.5), gamma=0.5)
    # a at the end: 2.5 - 1 and 6.5 - 2; before: team 1 while the pair acts, 0.5 V, 0.25 A
    assert got["start a 0"] == pytest.approx((1.0 + 0.5 * 1.0 - 2.0 + 0.25 * 1.5, 1.875))
    assert got["start a 1"] == pytest.approx((1.0 + 0.5 * 2.0 - 2.0 + 0.25 * 4.5, 3.125))
    assert got["start a 2"] == pytest.approx((7.0, 9.0))
    # b and c act once: what follows is all theirs, the other's local is not
    assert got["pair0 b 0"] == pytest.approx((1.25 + 0.5 * 2.0 - 1.0, 2.25))
    assert got["pair1 c 0"] == pytest.approx((1.0 - 1.0 + 0.5 * 6.0 - 1.0, 3.0))


@pytest.mark.parametrize("tree", [chain(1.0, 0.0, 2.0), sequential(), crossed(), fanned(), trio()])
def test_lambda_one_without_values_is_the_reward_to_go_of_the_groups(tree: Node) -> None:
    credit = comparison_of("reward_to_go", "node", "none", "none", gamma=0.7)
    expected = {
        scored.sample.text: reward_to_go(scored.tree_sample, credit)
        for scored in samples_of([Tree(Task("t", {}), tree)])
    }
    prompts = {bytes(sample.prompt_ids).decode(): 0.0 for sample in walk.samples(tree)}
    got = taught(tree, prompts, rule(gae_lambda=1.0), gamma=0.7)
    assert {text: pair[0] for text, pair in got.items()} == pytest.approx(expected)


def test_one_member_and_equal_rewards_still_learn_from_the_value() -> None:
    root = node(0, {"a": 1}, [leaf({"a": 0}, 3.0)], "one")
    assert taught(root, {"one a": 1.0}, rule()) == {"one a 0": (2.0, 3.0)}
    root = node(0, {"a": 2}, [leaf({"a": i}, 3.0) for i in range(2)], "two")
    assert taught(root, {"two a": 4.0}, rule()) == {"two a 0": (-1.0, 3.0), "two a 1": (-1.0, 3.0)}


def test_whitening_is_over_the_batch_of_a_policy() -> None:
    pays = {"a": (0.0, 2.0), "b": (5.0, 5.0)}
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, a=pays["a"][i], b=pays["b"][i]) for i in range(2)], "x")
    second = {
        role: tuple(replace(sample, policy=role) for sample in siblings) for role, siblings in root.samples.items()
    }
    root = replace(root, samples=second)
    chosen = replace(rule(), whiten=True)
    credit = comparison_of("reward_to_go", "node", "none", "none")
    learner = Learner(("a", "b"))
    data, figures = judged(root, credit, chosen, team_of(learner, a="a", b="b"))
    assert [datum.advantages[-1] for datum in data] == pytest.approx([-1.0, 1.0, 0.0, 0.0])
    assert figures["a/advantage_std"] == pytest.approx(1.0)
    shared, _ = judged(
        node(0, {"a": 2}, [leaf({"a": i}, 4.0 * i) for i in range(2)], "y"),
        credit,
        chosen,
        team_of(Learner()),
    )
    assert [datum.advantages[-1] for datum in shared] == pytest.approx([-1.0, 1.0])
    assert [datum.targets.returns for datum in shared] == [(0.0,), (4.0,)]  # targets are never whitened


def test_roles_of_a_shared_policy_are_whitened_apart() -> None:
    """Mistake: b earns more than a, so that a's better answer becomes less likely and b's worse one likelier."""
    pays = {"a": (0.0, 0.2), "b": (0.8, 1.0)}
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, a=pays["a"][i], b=pays["b"][i]) for i in range(2)], "x")
    team = team_of(Learner(("shared",)), a="shared", b="shared")
    data, _ = judged(root, comparison_of("reward_to_go", "node", "none", "none"), replace(rule(), whiten=True), team)
    got = {(datum.role, number % 2): datum.advantages[-1] for number, datum in enumerate(data)}
    assert got == pytest.approx({("a", 0): -1.0, ("a", 1): 1.0, ("b", 0): -1.0, ("b", 1): 1.0})


def test_branches_left_behind_are_refused() -> None:
    root = node(0, {"a": 2}, [replace(leaf({"a": 0}), selected=False), leaf({"a": 1})], "x")
    with pytest.raises(ConfigError, match="left behind"):
        judged(root, comparison_of("reward_to_go", "node", "none", "none"), rule(), team_of(Learner()))


def test_gae_over_tokens_with_a_penalty_on_each() -> None:
    """gaps 0.5, 0, -0.5 at beta 0.1; values 1, 1.5, 2; the score 2 on the last token."""
    text = {2: 1.0, 3: 1.5, 4: 2.0}
    learner = Learner(
        says=lambda datum, position: text[position], reference=lambda datum: (0.0, 0.0, 0.0, -1.0, -0.25, -0.5)
    )
    plan = named("rlhf", kl=0.1, gae_lambda=0.5, whiten=False)
    batch = build_batch([one_answer(2.0)], plan, team_of(learner))
    (datum,) = batch.sequences
    # last: 2 + 0.05 - 2; middle: 0 + 2 - 1.5 + 0.5 * 0.05; first: -0.05 + 1.5 - 1 + 0.5 * 0.525
    assert datum.advantages == pytest.approx((0.0, 0.0, 0.0, 0.7125, 0.525, 0.05))
    assert datum.targets.at == (2, 3, 4)
    assert datum.targets.values == (1.0, 1.5, 2.0)
    assert datum.targets.returns == pytest.approx((1.7125, 2.025, 2.05))
    assert datum.targets.head == "a"
    assert datum.mask == (False, False, False, True, True, True)
    assert datum.temperature == 0.7
    assert batch.metrics["a/kl_penalty"] == pytest.approx(0.0)
    assert batch.groups == []


def test_the_discount_of_a_token_is_its_own() -> None:
    learner = Learner()
    plan = named("rlhf", kl=0.0, gae_lambda=1.0, token_gamma=0.5, whiten=False)
    (datum,) = build_batch([one_answer(2.0)], plan, team_of(learner)).sequences
    assert datum.advantages[3:] == pytest.approx((0.5, 1.0, 2.0))
    assert learner.referred == []
    learner.says = lambda datum, position: {2: 1.0, 3: 2.0, 4: 3.0}[position]
    (datum,) = build_batch(
        [one_answer(2.0)], replace(plan, critic=replace(plan.critic, gae_lambda=0.0)), team_of(learner)
    ).sequences
    assert datum.advantages[3:] == pytest.approx((0.5 * 2.0 - 1.0, 0.5 * 3.0 - 2.0, 2.0 - 3.0))


def test_token_values_bridge_decisions_by_the_discount_of_a_turn() -> None:
    """Two turns of two tokens each: values 1 and 2 in each, 4 paid at the end."""
    learner = Learner(says=lambda datum, position: 1.0 if position == 2 else 2.0)
    chosen = rule(gae_lambda=0.5, level="token", token_gamma=1.0)
    credit = comparison_of("reward_to_go", "node", "none", "none", gamma=0.9)
    data, _ = judged(chain(0.0, 4.0), credit, chosen, team_of(learner))
    early, late = data
    # late: 4 - 2 = 2; 2 - 1 + 0.5 * 2 = 2. early: 0.9 * 1 - 2 + 0.5 * 0.9 * 2 = -0.2; 2 - 1 + 0.5 * -0.2 = 0.9
    assert late.advantages[-2:] == pytest.approx((2.0, 2.0))
    assert early.advantages[-2:] == pytest.approx((0.9, -0.2))


def test_a_penalty_on_a_decision_is_the_sum_over_its_tokens() -> None:
    learner = Learner(reference=lambda datum: (0.0, 0.0, 0.0, -1.0, -0.25, -0.25))
    plan = named("ippo", kl=0.1, whiten=False)
    (datum,) = build_batch([one_answer(2.0)], plan, team_of(learner)).sequences
    assert datum.advantages[3:] == pytest.approx((2.025,) * 3)  # gaps 0.5 + 0 - 0.75, so it gains


def test_mappo_and_ippo_differ_where_the_others_matter() -> None:
    """The critic knows that what a said is worth 3; the critic of b alone cannot see it."""

    def says(datum: TrainingSequence, position: int) -> float:
        return 3.0 if "a said" in bytes(datum.token_ids).decode() else 0.0

    def advantages(reads: Reads) -> dict[str, float]:
        credit = comparison_of("reward_to_go", "node", "none", "none")
        data, _ = judged(sequential(), credit, rule(reads, gae_lambda=1.0), team_of(Learner(says=says)))
        return {bytes(datum.token_ids[:-2]).decode(): datum.advantages[-1] for datum in data if any(datum.mask)}

    own_advantages, joint = advantages("own"), advantages("joint")
    assert own_advantages == pytest.approx({"early a": 7.0, "early b": 7.0, "late a": 4.0, "late b": 4.0})
    assert joint == pytest.approx({"early a": 7.0, "early b": 4.0, "late a": 4.0, "late b": 1.0})


def test_a_frozen_role_pays_and_is_not_trained() -> None:
    root = sequential()
    data, _ = asked(played_by(root, a="shared", b="frozen"), rule(gae_lambda=1.0), team_of(Learner(), b="frozen"))
    assert [datum.role for datum in data] == ["a", "a"]
    assert [datum.advantages[-1] for datum in data] == pytest.approx([7.0, 4.0])


def test_explained_variance() -> None:
    assert explained_variance([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert explained_variance([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]) == pytest.approx(0.0)
    assert explained_variance([1.0, 3.0], [3.0, 1.0]) == pytest.approx(-3.0)  # errors -2 and 2 on a variance of 1
    assert explained_variance([0.0, 4.0], [1.0, 3.0]) == pytest.approx(0.75)  # errors -1 and 1 on a variance of 4
    assert explained_variance([2.0, 2.0], [0.0, 1.0]) == 0.0
    assert explained_variance([2.0], [7.0]) == 0.0


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_actor_critics_whiten_unless_told_otherwise(name: str) -> None:
    root = node(0, {"a": 2}, [leaf({"a": i}, 4.0 * i) for i in range(2)], "x")
    for whiten, expected in ((None, [-1.0, 1.0]), (True, [-1.0, 1.0]), (False, [0.0, 4.0])):
        plan = named(name) if whiten is None else named(name, whiten=whiten)
        data = build_batch([Tree(Task("t", {}), root)], plan, team_of(Learner())).sequences
        assert [datum.advantages[-1] for datum in data if any(datum.mask)] == pytest.approx(expected)


def test_advantages_as_small_as_numbers_get_are_whitened_to_finite_ones() -> None:
    """Mistake: to multiply by the reciprocal of a deviation below 1e-308, which is infinite."""
    root = node(0, {"a": 2}, [leaf({"a": i}, 1e-309 * i) for i in range(2)], "x")
    chosen = replace(rule(), whiten=True)
    data, _ = judged(root, comparison_of("reward_to_go", "node", "none", "none"), chosen, team_of(Learner()))
    assert [datum.advantages[-1] for datum in data] == pytest.approx([-1.0, 1.0])


def test_a_role_with_one_sample_has_no_deviation_to_whiten_by() -> None:
    pays = {"a": (0.0, 2.0), "b": (5.0,)}
    root = node(0, {"a": 2, "b": 1}, [leaf({"a": i, "b": 0}, a=pays["a"][i], b=5.0) for i in range(2)], "x")
    team = team_of(Learner(("shared",)), a="shared", b="shared")
    data, _ = judged(root, comparison_of("reward_to_go", "node", "none", "none"), replace(rule(), whiten=True), team)
    got = {datum.role: [item.advantages[-1] for item in data if item.role == datum.role] for datum in data}
    assert got == {"a": [-1.0, 1.0], "b": [0.0]}
