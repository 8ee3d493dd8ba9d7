"""The named algorithms on one small tree, worked out by hand: a return is one thing, a baseline another."""

import itertools
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from bench.parity.critics import Learner, team_of
from bench.parity.trees import assign, inner, leaf, node
from cadre.advantages.batch import build_batch
from cadre.algorithms import ALGORITHMS, Algorithm, plan_of
from cadre.rollout import walk
from cadre.rollout.shapes import full
from cadre.settings import CreditConfig
from cadre.types import Node, Reward, Task, Tree


def named(name: str, **options):
    return plan_of(TypeAdapter(Algorithm).validate_python({"name": name, **options}))


def joint_tree() -> Node:
    """Two agents at once, three aligned joint actions paying 0, 1 and 2; the last goes on to 4, 6 and 8."""
    late = node(1, {"a": 3, "b": 3}, [leaf({"a": i, "b": i}, 4.0 + 2 * i) for i in range(3)], tag="late-")
    tries = [
        leaf({"a": 0, "b": 0}, 0.0),
        leaf({"a": 1, "b": 1}, 1.0),
        inner({"a": 2, "b": 2}, late, 2.0),
    ]
    return node(0, {"a": 3, "b": 3}, tries)


def central_tree() -> Node:
    """The same game, in which one role writes both parts: the same returns, half as many samples."""
    late = node(1, {"team": 3}, [leaf({"team": i}, 4.0 + 2 * i) for i in range(3)], tag="late-")
    tries = [leaf({"team": 0}, 0.0), leaf({"team": 1}, 1.0), inner({"team": 2}, late, 2.0)]
    return node(0, {"team": 3}, tries)


def advantages(name: str, root: Node, **options) -> dict[str, float]:
    groups = assign([Tree(Task("t", {}), root)], named(name, **options).credit)
    return {scored.sample.text: scored.advantages[0] for group in groups for scored in group.samples}


# Returns of the root with gamma 0.5: 0, 1 and 2 + 0.5 * (4 + 6 + 8) / 3 = 5; below: 4, 6, 8.
FAMILY = {
    "magrpo": ([-2.0, -1.0, 3.0], [-2.0, 0.0, 2.0]),  # means 2 and 6
    "ma_reinforce": ([0.0, 1.0, 5.0], [4.0, 6.0, 8.0]),
    "ma_rloo": ([-3.0, -1.5, 4.5], [-3.0, 0.0, 3.0]),  # others: 3, 2.5, 0.5 and 7, 6, 5
    "ma_remax": ([-5.0, -4.0, 0.0], [-4.0, -2.0, 0.0]),
}


@pytest.mark.parametrize("name", FAMILY)
def test_the_magrpo_family_by_hand(name: str) -> None:
    got = advantages(name, joint_tree(), gamma=0.5)
    early, late = FAMILY[name]
    for agent in ("a", "b"):
        assert [got[f"{agent}{i}"] for i in range(3)] == pytest.approx(early)
        assert [got[f"late-{agent}{i}"] for i in range(3)] == pytest.approx(late)


def test_central_magrpo_gives_the_one_role_the_advantages_of_a_joint_action() -> None:
    got = advantages("magrpo_central", central_tree(), gamma=0.5)
    early, late = FAMILY["magrpo"]
    assert [got[f"team{i}"] for i in range(3)] == pytest.approx(early)
    assert [got[f"late-team{i}"] for i in range(3)] == pytest.approx(late)
    assert (named("magrpo_central").loss.ratio, named("magrpo_central").loss.aggregate) == ("none", "sequence_sum")


def test_gamma_is_not_ignored() -> None:
    assert advantages("magrpo", joint_tree(), gamma=1.0)["a2"] == pytest.approx(8.0 - 3.0)  # 0, 1, 8
    assert advantages("magrpo", joint_tree(), gamma=0.0)["a2"] == pytest.approx(1.0)  # 0, 1, 2


@pytest.mark.parametrize(("name", "early"), [("magrpo", [-7 / 3, -4 / 3, 11 / 3]), ("ma_remax", [-6.0, -5.0, 0.0])])
def test_a_lenient_learner_counts_the_best_that_follows(name: str, early: list[float]) -> None:
    """Returns of the root 0, 1 and 2 + 0.5 * 8 = 6, mean 7/3; what follows is compared as ever."""
    got = advantages(name, joint_tree(), gamma=0.5, lenient=True)
    _, late = FAMILY[name]
    for agent in "ab":
        assert [got[f"{agent}{i}"] for i in range(3)] == pytest.approx(early)
        assert [got[f"late-{agent}{i}"] for i in range(3)] == pytest.approx(late)


def judged(name: str, root: Node) -> dict[str, float]:
    """Advantages under a critic whose values grow with what it has read."""
    learner = Learner(says=lambda datum, position: (position + 1) / 10)
    lesson = build_batch([Tree(Task("t", {}), root)], named(name), team_of(learner))
    actors = [datum for datum in lesson.sequences if any(datum.mask)]
    return {sample.text: datum.advantages[-1] for sample, datum in zip(walk.samples(root), actors, strict=True)}


# The same credit, which these have under another loss, another weight, another shape or for another team, and dr_mamr
# where no step is followed by one that quotes it.
SAME_CREDIT = [
    {"ma_rloo", "c3"},
    {"magrpo", "ma_dpo", "bpo"},
    {"grpo_by_role", "flow_grpo", "m_grpo", "teamtr", "dr_mamr"},
    {"grpo", "matpo", "arpo"},
]


def test_the_variants_differ_pairwise() -> None:
    plain = ALGORITHMS.keys() - {"custom", "ippo", "mappo", "rlhf", "magrpo_central"}
    result = {name: advantages(name, own_rewards()) for name in sorted(plain)}
    result |= {name: judged(name, own_rewards()) for name in ("ippo", "mappo", "rlhf")}
    result["magrpo_central"] = advantages("magrpo_central", central_tree())
    for first, second in itertools.combinations(result, 2):
        same = any({first, second} <= names for names in SAME_CREDIT)
        assert (result[first] == pytest.approx(result[second])) == same, (first, second)


def test_those_of_the_same_credit_differ_elsewhere() -> None:
    for names in SAME_CREDIT:
        plans = {name: named(name) for name in names}
        for first, second in itertools.combinations(sorted(names), 2):
            elsewhere = [
                (plan.loss, plan.tree_weight, plan.shape.name, plan.preference, ALGORITHMS[name].policies)
                for name, plan in ((first, plans[first]), (second, plans[second]))
            ]
            assert elsewhere[0] != elsewhere[1], (first, second)


def own_rewards() -> Node:
    """`joint_tree` with rewards of the roles' own, so that it matters whether roles are compared with each other, and
    with steps without some of them; the second turn shows each role what the first did."""
    baseline = {"a": Reward(1.0), "b": Reward(0.5, {"b": 1.0}), "a b": Reward(0.25)}
    late_tries = [leaf({"a": i, "b": i}, 4.0 + 2 * i, b=5.0 * i) for i in range(3)]
    late = node(1, {"a": 3, "b": 3}, [replace(branch, ablated=baseline) for branch in late_tries], tag="late-")
    tries = [leaf({"a": 0, "b": 0}, 0.0, b=3.0), leaf({"a": 1, "b": 1}, 1.0), inner({"a": 2, "b": 2}, late, 2.0)]
    return node(0, {"a": 3, "b": 3}, [replace(branch, ablated=baseline) for branch in tries])


def test_cross_and_aligned_differ() -> None:
    pays = {(0, 0): 0.0, (0, 1): 2.0, (1, 0): 4.0, (1, 1): 10.0}
    crossed = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": j}, pay) for (i, j), pay in pays.items()])
    assert advantages("magrpo", crossed, joint="cross") == pytest.approx({"a0": -3.0, "a1": 3.0, "b0": -2.0, "b1": 2.0})
    assert named("magrpo", joint="cross").shape.joint == "cross"
    assert named("magrpo").shape.joint == "aligned"


def test_unequally_many_siblings_crossed_by_hand() -> None:
    pays = {(0, 0): 0.0, (0, 1): 2.0, (0, 2): 4.0, (1, 0): 6.0, (1, 1): 1.0, (1, 2): 5.0}
    crossed = node(0, {"a": 2, "b": 3}, [leaf({"a": i, "b": j}, pay) for (i, j), pay in pays.items()])
    # a: (0 + 2 + 4) / 3 = 2 and (6 + 1 + 5) / 3 = 4; b: 3, 1.5 and 4.5; the mean of both is 3
    expected = {"a0": -1.0, "a1": 1.0, "b0": 0.0, "b1": -1.5, "b2": 1.5}
    assert advantages("magrpo", crossed, joint="cross", k={"a": 2, "b": 3}) == pytest.approx(expected)
    chosen = named("magrpo", joint="cross", k={"a": 2, "b": [3, 1]}).shape
    assert [chosen.count("b", turn, turn) for turn in range(3)] == [3, 1, 1]
    assert chosen.count("a", 5, 5) == 2


def test_three_agents_at_once() -> None:
    agents = {"a": 2, "b": 2, "c": 2}
    root = node(0, agents, [leaf(dict.fromkeys(agents, i), 3.0 * i, c=float(i)) for i in range(2)])
    got = advantages("magrpo", root)
    assert got == pytest.approx({"a0": -1.5, "a1": 1.5, "b0": -1.5, "b1": 1.5, "c0": -2.0, "c1": 2.0})


def test_a_tree_weighs_the_same_however_far_it_fans_out() -> None:
    """One task is played out (3 samples, then 9), the other solved at once (3): each is half of the update."""
    late = [
        replace(node(1, {"a": 3}, [leaf({"a": i}, float(i)) for i in range(3)], tag=f"late{branch}-"), weight=1 / 3)
        for branch in range(3)
    ]
    out = node(0, {"a": 3}, [inner({"a": i}, child, float(i)) for i, child in enumerate(late)])
    solved = node(0, {"a": 3}, [leaf({"a": i}, float(i)) for i in range(3)])
    trees = [Tree(Task(str(number), {}), root) for number, root in enumerate((out, solved))]
    data = build_batch(trees, named("magrpo"), team_of(Learner())).sequences
    # 15 sequences, so 7.5 a tree: two depths of the first share 3.75 among 3 and among 9, the second 7.5 among 3
    # the root's returns are 1, 2, 3 and all others 0, 1, 2, so that the advantages are -1, 0 and 1 everywhere
    weights = [abs(datum.advantages[-1]) for datum in data if datum.advantages[-1]]
    assert weights == pytest.approx([3.75 / 3] * 2 + [3.75 / 9] * 6 + [7.5 / 3] * 2)
    by_decision = replace(named("magrpo"), selection=CreditConfig(tree_weight="by_decision"))
    weights = [abs(datum.advantages[-1]) for datum in build_batch(trees, by_decision, team_of(Learner())).sequences]
    assert sorted({round(weight, 6) for weight in weights}) == pytest.approx([0.0, 5 / 9, 5 / 3], abs=1e-6)


def test_growth_stops_where_the_mean_passes_the_threshold() -> None:
    shape = full(2, stop_at=0.5)
    assert list(shape.select([0.0, 1.0], None)) == [0, 1]  # type: ignore[arg-type]
    assert list(shape.select([0.5, 1.0], None)) == []  # type: ignore[arg-type]
    assert list(full(2).select([9.0, 9.0], None)) == [0, 1]  # type: ignore[arg-type]


def test_losses_of_the_presets() -> None:
    assert named("at_grpo").loss.ratio == named("grpo").loss.ratio == named("dr_mas").loss.ratio == "token"
    for name in FAMILY:
        assert (named(name).loss.ratio, named(name).loss.aggregate) == ("none", "sequence_sum")
    critics = {"ippo", "mappo", "rlhf"}
    assert {named(name).loss.ratio for name in critics} == {"token"}
    assert (named("sirius").loss.ratio, named("ma_dpo").loss.aggregate) == ("none", "sequence_sum")
    assert named("flow_grpo").loss.aggregate == "sequence_mean"
