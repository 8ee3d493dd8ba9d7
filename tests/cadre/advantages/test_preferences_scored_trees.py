"""Trees paid by a model's scores."""

from collections.abc import Sequence

import pytest

from bench.parity.trees import assign, inner, leaf, node
from cadre.advantages.groups import comparison_of
from cadre.advantages.preferences import score_by_model
from cadre.advantages.returns import Credit
from cadre.algorithms import plan_of
from cadre.config.experiment import load
from cadre.rollout import walk
from cadre.types import Message, Task, Tree

STEP = comparison_of("step", "node", "mean", "std")


class Longest:
    """Likes long answers: a text scores its last digit."""

    def score(self, prompts: Sequence[Sequence[Message]], completions: Sequence[str]) -> list[float]:
        assert len(prompts) == len(completions)
        return [float(text[-1]) for text in completions]


def test_a_judged_tree_pays_every_role_its_score_and_keeps_its_success() -> None:
    late = node(1, {"b": 2}, [leaf({"b": 0}, 9.0), leaf({"b": 1}, 0.0, b=7.0)])
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": 0, "b": 1}, 3.0), inner({"a": 1, "b": 0}, late, 5.0, a=2.0)])
    tree = Tree(Task("t", {}), root)
    (paid,) = score_by_model([tree], Longest(), joint=False)
    rewards = [branch.reward for one in walk.nodes(paid.root) for branch in one.branches]
    assert [reward.team for reward in rewards] == [0.0] * 4
    assert [reward.local for reward in rewards] == [{"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 0.0}, {"b": 0.0}, {"b": 1.0}]
    assert [branch.success for branch in paid.root.branches] == [branch.success for branch in root.branches]
    assert root.branches[0].reward.team == 3.0
    got = {one.sample.text: one.advantages[0] for group in assign([paid], Credit.of(STEP)) for one in group.samples}
    assert got["a1"] == pytest.approx(1.0)
    assert got["b1"] == pytest.approx(1.0)


def test_a_jointly_judged_tree_pays_the_team_alone() -> None:
    late = node(1, {"b": 2}, [leaf({"b": 0}, 9.0), leaf({"b": 1}, 0.0, b=7.0)])
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": 0, "b": 1}, 3.0), inner({"a": 1, "b": 0}, late, 5.0, a=2.0)])
    (paid,) = score_by_model([Tree(Task("t", {}), root)], Longest(), joint=True)
    rewards = [branch.reward for one in walk.nodes(paid.root) for branch in one.branches]
    assert [(reward.team, dict(reward.local)) for reward in rewards] == [(1.0, {}), (0.0, {}), (0.0, {}), (1.0, {})]


@pytest.mark.parametrize("name", ["ippo", "mappo", "magrpo", "ma_rloo"])
def test_algorithms_of_teams_take_a_joint_reward_model(name: str) -> None:
    chosen = load("plan-path", [f"algorithm={{name: {name}, reward_model: judge}}"])
    plan = plan_of(chosen.algorithm)
    assert (plan.reward_model, plan.joint_reward) == ("judge", True)
    alone = load("plan-path-rlhf", ["algorithm.reward_model=judge"])
    assert plan_of(alone.algorithm).joint_reward is False
