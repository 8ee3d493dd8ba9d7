"""Zero variance is relative to the size of the rewards, everywhere that it is asked for."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from bench.parity.critics import Learner, named, team_of
from bench.parity.trees import advantages, assign, credit_of, inner, leaf, node
from cadre.advantages.batch import build_batch, is_useful
from cadre.advantages.critic import explained_variance
from cadre.advantages.groups import BASELINES, GroupReturns, no_signal_fractions
from cadre.algorithms.custom import Custom
from cadre.errors import ConfigError
from cadre.rollout.shapes import SELECTIONS, full
from cadre.settings import CreditConfig
from cadre.statistics import is_constant, is_rounding
from cadre.types import Node, Task, Tree
from cadre_analysis.audit import DecisionEffects, agreement_report, is_significant
from cadre_tasks.preference_pairs import make_joint_pairs, make_pairs

SCALES = [10.0**power for power in range(-12, 13, 3)]


def summed(parts: list[float], dtype: type) -> float:
    """The parts added up one after the other in that precision."""
    total = dtype(0)
    for part in parts:
        total = dtype(total + dtype(part))
    return float(total)


def equal(scale: float, dtype: type, count: int, terms: int = 12) -> list[float]:
    """One reward, computed in as many orders of its parts."""
    generator = random.Random(f"{scale} {dtype.__name__} {count}")
    parts = [scale * generator.random() for _ in range(terms)]
    return [summed(generator.sample(parts, len(parts)), dtype) for _ in range(count)]


def paid(values: list[float]) -> Node:
    return node(0, {"a": len(values)}, [leaf({"a": index}, value) for index, value in enumerate(values)])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("terms", [3, 12, 60])
def test_equal_rewards_that_were_computed_in_different_orders_have_no_advantage(
    scale: float, dtype: type, terms: int
) -> None:
    values = equal(scale, dtype, 8, terms)
    for baseline, division in itertools.product(("mean", "leave_one_out", "max"), ("std", "mean", "none")):
        got = advantages(paid(values), "step", "node", baseline, division)
        assert set(got.values()) == {0.0}, (baseline, division)
    (group,) = assign([Tree(Task("t", {}), paid(values))], credit_of("step", "node", "mean", "std"))
    assert (group.std, group.has_variance, not group.has_signal) == (0.0, False, True)
    assert no_signal_fractions([group]) == {("a", 0): 1.0}


@pytest.mark.parametrize("scale", [*SCALES, 1e-200, 1e200])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6])
def test_advantages_do_not_depend_on_the_scale_of_rewards(scale: float, offset: float) -> None:
    values = [scale * (offset + value) for value in (0.0, 1.0, 2.0, 3.0)]
    expected = [(value - 1.5) / math.sqrt(5 / 4) for value in range(4)]
    got = list(advantages(paid(values), "step", "node", "mean", "std").values())
    assert got == pytest.approx(expected, rel=1e-6)


def test_a_large_common_offset_is_no_reason_to_see_nothing_and_no_reason_to_see_its_rounding() -> None:
    assert list(advantages(paid([1e6, 1e6 + 1]), "step", "node", "mean", "std").values()) == [-1.0, 1.0]
    residue = [float(np.float32(1e6) + np.float32(0.0625) * step) for step in (0, 1, 2, 0)]
    assert set(advantages(paid(residue), "step", "node", "mean", "std").values()) == {0.0}


def test_one_better_sample_of_many_is_signal() -> None:
    values = [1e6] * 63 + [1e6 + 1]
    assert advantages(paid(values), "step", "node", "mean", "std")["a63"] == pytest.approx(math.sqrt(63))


def test_rewards_that_cancel_are_as_large_as_what_they_were_made_of() -> None:
    """0.1 + 0.2 - 0.3 is 5.6e-17 and 0.3 - 0.3 is 0: one return, in two orders of its steps."""

    def episode(index: int, *pays: float) -> Node:
        below = node(2, {"a": 1}, [leaf({"a": 0}, pays[2])], tag=f"{index}-2-")
        return node(1, {"a": 1}, [inner({"a": 0}, below, pays[1])], tag=f"{index}-1-")

    pays = [(0.1, 0.2, -0.3), (0.3, -0.3, 0.0), (-0.3, 0.1, 0.2)]
    root = node(0, {"a": 3}, [inner({"a": i}, episode(i, *pay), pay[0]) for i, pay in enumerate(pays)])
    for returns in ("episode", "reward_to_go"):
        got = advantages(root, returns, "node", "mean", "std")
        assert {text: value for text, value in got.items() if text in ("a0", "a1", "a2")} == {
            "a0": 0.0,
            "a1": 0.0,
            "a2": 0.0,
        }
    assert set(advantages(paid([0.0, 0.0]), "difference", "node", "none", "none").values()) == {0.0}
    local = node(0, {"a": 2}, [leaf({"a": 0}, 0.3, a=-0.1 - 0.2), leaf({"a": 1}, 0.0, a=0.0)])
    assert set(advantages(local, "step", "node", "mean", "std").values()) == {0.0}  # 0.3 - 0.30000000000000004 and 0


def test_returns_are_equal_under_tanh_if_they_were_before_it() -> None:
    """Mistake: 10 and 8 deviations above the mean, 1 - 4e-9 and 1 - 2e-7, count as equal, as a reward of 10 may have
    an error of 1e-5. So may these rewards, but tanh draws the error together, too."""
    credit = replace(credit_of("step", "node", "mean", "std"), history=True)
    state = {"a/return/mean": 0.0, "a/return/variance": 0.01}

    def bent(*values: float) -> list[float]:
        (group,) = assign([Tree(Task("t", {}), paid(list(values)))], credit, state)
        assert group.has_variance == any(scored.advantages[0] for scored in group.samples)
        return [scored.advantages[0] for scored in group.samples]

    assert bent(1.0, 0.8) == pytest.approx([1.0, -1.0])
    assert bent(1.4, 1.0, 1.0, 1.4) == pytest.approx([1.0, -1.0, -1.0, 1.0])
    assert bent(0.1 + 0.2, 0.3, 0.3) == [0.0, 0.0, 0.0]
    assert bent(1e6 * 0.7, 1e6 * 0.7 + 0.01) == [0.0, 0.0]
    assert bent(5.0, 4.0) == [0.0, 0.0]  # both are 1 in float64


def test_a_small_reward_beside_a_large_one_of_another_step_is_signal() -> None:
    late = node(1, {"a": 2}, [leaf({"a": i}, 1e-3 * i) for i in range(2)], tag="late-")
    root = node(0, {"a": 2}, [inner({"a": 0}, late, 1e6), leaf({"a": 1}, 2e6)])
    for returns in ("step", "reward_to_go"):
        got = advantages(root, returns, "node", "mean", "std")
        assert (got["late-a0"], got["late-a1"]) == pytest.approx((-1.0, 1.0))


@pytest.mark.parametrize("scale", SCALES)
def test_filters_and_dynamic_sampling_ask_the_same(scale: float) -> None:
    plan = named("at_grpo")
    dropping = {"selection": CreditConfig(without_std="drop")}
    team = team_of(Learner())
    for values, teaches in ((equal(scale, np.float32, 4), False), ([0.0, scale, scale, 0.0], True)):
        trees = [Tree(Task("t", {}), paid(values))]
        assert is_useful(plan, team)(trees[0]) is teaches
        chosen = type(plan)(**{**vars(plan), **dropping})
        batch = build_batch(trees, chosen, team)
        assert len(batch.sequences) == (4 if teaches else 0)
        assert [group.has_variance for group in batch.groups] == [teaches]
        credit = credit_of("step", "node", "mean", "std")
        assert bool(make_pairs(trees, credit.first)) is teaches
        assert bool(make_joint_pairs(trees, credit.first)) is teaches
        preferred = build_batch(trees, named("ma_dpo"), team)
        assert preferred.metrics.get("preference/pairs", 0) == (4 if teaches else 0)


@pytest.mark.parametrize("scale", SCALES)
def test_whitening_and_explained_variance_see_no_rounding(scale: float) -> None:
    for values, expected in ((equal(scale, np.float32, 4), 0.0), ([0.0, scale, scale, 0.0], 1.0)):
        batch = build_batch([Tree(Task("t", {}), paid(values))], named("ippo"), team_of(Learner()))
        assert [abs(datum.advantages[-1]) for datum in batch.sequences] == pytest.approx(
            [expected] * 4, abs=1e-4 * expected
        )
        assert explained_variance(values, values) == pytest.approx(expected)


def test_a_critic_that_is_nearly_right_leaves_no_step_for_an_optimiser_that_scales() -> None:
    text = iter((0.69999999, 0.70000005, 0.69999999, 0.7))
    learner = Learner(says=lambda datum, position: next(text))
    batch = build_batch([Tree(Task("t", {}), paid([0.7, 0.7, 0.7, 0.7]))], named("ippo"), team_of(learner))
    assert {datum.advantages[-1] for datum in batch.sequences} == {0.0}


@pytest.mark.parametrize("scale", SCALES)
def test_baselines_that_are_not_made_of_the_group_see_no_rounding_either(scale: float) -> None:
    """Mistake: Adam makes a whole step of an advantage of 1e-7, as it divides by the gradient's own size."""
    values = equal(scale, np.float32, 4)
    trees = [Tree(Task("t", {}), paid(values))]
    assert {datum.advantages[-1] for datum in build_batch(trees, named("tree_rl"), team_of(Learner())).sequences} == {
        0.0
    }
    state = {"a": values[0]}
    batch = build_batch(trees, named("spiral"), team_of(Learner()), state)
    assert {datum.advantages[-1] for datum in batch.sequences} == {0.0}
    assert [not group.has_signal for group in batch.groups] == [True]
    for offset in (0.0, 1e6):
        trees = [Tree(Task("t", {}), paid([scale * (offset + value) for value in (0.0, 1.0)]))]
        batch = build_batch(trees, named("spiral"), team_of(Learner()), {"a": scale * (offset + 0.5)})
        assert [d.advantages[-1] for d in batch.sequences] == pytest.approx([-0.5 * scale, 0.5 * scale], rel=1e-4)
        batch = build_batch(trees, named("tree_rl"), team_of(Learner()))
        assert [d.advantages[-1] for d in batch.sequences] == pytest.approx([-scale, scale], rel=1e-4)


@pytest.mark.parametrize("scale", SCALES)
def test_ties_are_drawn_among_equals_however_they_were_added_up(scale: float) -> None:
    scores = [0.0, *equal(scale, np.float32, 3)]
    picked = {SELECTIONS["argmax"](scores, random.Random(seed))[0] for seed in range(60)}
    assert picked == {1, 2, 3}
    assert {SELECTIONS["argmax"]([0.0, scale, 2 * scale], random.Random(seed))[0] for seed in range(20)} == {2}
    samples = [SELECTIONS["sample"](scores[1:], random.Random(seed))[0] for seed in range(300)]
    assert all(samples.count(index) > 60 for index in range(3))
    assert SELECTIONS["argmax"]([-1e9, 0.5, 0.6], random.Random(0)) == [2]


def test_a_mean_that_only_reaches_the_threshold_does_not_pass_it() -> None:
    select = full(3, stop_at=0.3).select
    assert list(select([0.1 + 0.2] * 3, random.Random(0))) == [0, 1, 2]
    assert list(select([0.31] * 3, random.Random(0))) == []


@pytest.mark.parametrize("scale", SCALES)
def test_what_passes_a_threshold_does_so_whatever_the_order_of_its_sum(scale: float) -> None:
    values = [summed([0.1 * scale] * 10, np.float32), 0.5 * scale]  # 1.0000001 or 0.9999999 times the scale
    values += [summed([0.7 * scale, 0.1 * scale, 0.2 * scale], np.float64)]  # 0.9999999999999999
    trees = [Tree(Task("t", {}), paid(values))]
    batch = build_batch(trees, named("sirius", threshold=scale), team_of(Learner()))
    assert [scored.sample.text for scored in batch.learned] == ["a0", "a2"]


@pytest.mark.parametrize("scale", SCALES)
def test_an_audit_sees_effects_of_any_scale_and_no_rounding(scale: float) -> None:
    better = DecisionEffects(0, "a", 0, (-1.0, 1.0), ((0.0,) * 8, (scale,) * 8))
    assert is_significant(better, np.random.default_rng(0))
    figures = agreement_report([better, DecisionEffects(1, "a", 0, (-1.0, 1.0), ((0.0,) * 8, (scale,) * 8))])["all"]
    assert figures.correlation[0] == pytest.approx(1.0)
    same = equal(scale, np.float32, 16)
    equals = DecisionEffects(0, "a", 0, (-1.0, 1.0), (tuple(same[:8]), tuple(same[8:])))
    assert equals.effects == [0.0, 0.0]
    assert not is_significant(equals, np.random.default_rng(0))
    assert agreement_report([equals, equals])["all"].correlation[0] == 0.0


@pytest.mark.parametrize(("axis", "number"), [("returns", math.nan), ("returns", math.inf), ("baseline", math.nan)])
def test_numbers_that_are_not_finite_are_named(axis: str, number: float, tmp_path) -> None:
    file = tmp_path / "mine.py"
    number_late = f"float('{number}') if 3.0 in group.values else 0.0"  # two returns of 0 and 1 are tried beforehand
    body = f"float('{number}')" if axis == "returns" else f"[{number_late}] * len(group.values)"
    argument = "decision, credit" if axis == "returns" else "group"
    file.write_text(f"def mine({argument}):\n    return {body}\n")
    axes = {"returns": "step", "group": "node", "baseline": "mean", "scale": "none", axis: f"{file}:mine"}
    plan = Custom(name="custom", shape="greedy", **axes).plan()
    with pytest.raises(ConfigError, match=rf"algorithm\.{axis}: .*mine returned {number}; expected a finite number"):
        assign([Tree(Task("t", {}), paid([0.0, 3.0]))], plan.credit)


def test_returns_of_ones_own_may_be_of_any_scale(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from cadre.advantages.returns import step\n\n\ndef small(decision, credit):\n"
        "    return 1e-9 * step(decision, credit)\n"
    )
    root = paid([0.0, 1.0])
    assert list(advantages(root, f"{file}:small", "node", "mean", "std").values()) == pytest.approx([-1.0, 1.0])


def test_a_function_of_the_group_gets_a_deviation_without_rounding() -> None:
    same = GroupReturns(tuple(equal(1.0, np.float32, 4)), (1.0,) * 4, (0.0,) * 4)
    assert (same.std, same.zero_variance) == (0.0, True)
    tiny = GroupReturns((0.0, 1e-10, 2e-10, 3e-10), (1.0,) * 4, (0.0,) * 4)
    assert tiny.std == pytest.approx(1e-10 * math.sqrt(5 / 4))
    assert BASELINES["mean"](tiny) == [pytest.approx(1.5e-10)] * 4


def test_the_question_itself() -> None:
    assert is_constant([0.0, 0.0])
    assert not is_constant([0.0, 5e-324])
    assert is_constant([1.0, 1.0 + 2**-21])
    assert not is_constant([1.0, 1.0 + 2**-19])
    assert is_constant([1e-9, 0.0], size=1.0)
    assert not is_rounding(math.nan, 1.0)
