"""Every number here is worked out by hand; the trees are small enough to draw."""

import dataclasses
import math

import pytest

from cadre.credit import Credit, assign, data, share_without_spread
from cadre.types import Branch, Node, Observation, Reward, Sample, Sampling, Task, Tree


def sample(role: str, text: str) -> Sample:
    return Sample(role, "shared", text, (1, 2), (3, 0), (-0.5, -0.25), "stop", 0)


def node(turn: int, siblings: dict[str, int], branches: list[Branch], tag: str = "") -> Node:
    samples = {role: tuple(sample(role, f"{tag}{role}{i}") for i in range(k)) for role, k in siblings.items()}
    return Node(turn, {role: Observation(role, ()) for role in siblings}, samples, tuple(branches))


def leaf(choice: dict[str, int], team: float = 0.0, **local: float) -> Branch:
    return Branch(choice, Reward(team, local), True, False)


def inner(choice: dict[str, int], child: Node, team: float = 0.0, **local: float) -> Branch:
    return Branch(choice, Reward(team, local), False, False, True, child)


def advantages(root: Node, *axes: str, **numbers: float) -> dict[str, float]:
    groups = assign([Tree(Task("t", {}), root)], Credit(*axes, **numbers))
    return {scored.sample.text: scored.advantage for group in groups for scored in group.scored}


@pytest.fixture
def sequential() -> Node:
    """Tool tries 3, the second goes on; then the planner tries 3."""
    planner = node(0, {"planner": 3}, [leaf({"planner": i}, team=t) for i, t in enumerate((0.0, 3.0, 3.0))])
    tries = [leaf({"tool": 0}, tool=1.0), inner({"tool": 1}, planner, tool=4.0), leaf({"tool": 2}, tool=1.0)]
    return node(0, {"tool": 3}, tries)


def test_at_grpo_compares_siblings_with_each_other_only(sequential: Node) -> None:
    got = advantages(sequential, "step", "node", "mean", "std")
    # tool: 1 4 1, mean 2, deviation sqrt((1 + 4 + 1) / 3) = sqrt 2; planner: 0 3 3, mean 2, deviation sqrt 2
    root2 = math.sqrt(2)
    expected = {"tool0": -1 / root2, "tool1": 2 / root2, "tool2": -1 / root2}
    expected |= {"planner0": -2 / root2, "planner1": 1 / root2, "planner2": 1 / root2}
    assert got == pytest.approx(expected)


def test_alpha_weighs_the_team_against_the_role(sequential: Node) -> None:
    got = advantages(sequential, "step", "node", "mean", "none", alpha=0.5)
    assert [got[f"planner{i}"] for i in range(3)] == pytest.approx([-1.0, 0.5, 0.5])
    assert [got[f"tool{i}"] for i in range(3)] == pytest.approx([-1.0, 2.0, -1.0])  # no team reward to weigh


def test_the_local_reward_of_another_role_is_not_mine() -> None:
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": 0, "b": 0}, 1.0, a=1.0), leaf({"a": 1, "b": 1}, 1.0, b=5.0)])
    got = advantages(root, "step", "node", "mean", "none")
    assert got == pytest.approx({"a0": 0.5, "a1": -0.5, "b0": -2.5, "b1": 2.5})


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "max"])
def test_a_singleton_and_equal_rewards_have_no_advantage(baseline: str) -> None:
    single = node(0, {"a": 1}, [leaf({"a": 0}, team=7.0)])
    assert advantages(single, "step", "node", baseline, "std") == {"a0": 0.0}
    equal = node(0, {"a": 3}, [leaf({"a": i}, team=0.1 + 0.2) for i in range(3)])
    assert advantages(equal, "step", "node", baseline, "std") == {"a0": 0.0, "a1": 0.0, "a2": 0.0}


def test_baselines_on_one_group() -> None:
    root = node(0, {"a": 3}, [leaf({"a": i}, team=t) for i, t in enumerate((1.0, 2.0, 6.0))])
    by = {name: advantages(root, "step", "node", name, "none") for name in ("mean", "leave_one_out", "max", "none")}
    assert by["mean"] == pytest.approx({"a0": -2.0, "a1": -1.0, "a2": 3.0})  # mean 3
    assert by["leave_one_out"] == pytest.approx({"a0": -3.0, "a1": -1.5, "a2": 4.5})  # others: 4, 3.5, 1.5
    assert by["max"] == pytest.approx({"a0": -5.0, "a1": -4.0, "a2": 0.0})
    assert by["none"] == pytest.approx({"a0": 1.0, "a1": 2.0, "a2": 6.0})
    values = [tuple(got.values()) for got in by.values()]
    assert len(set(values)) == 4


def two_turns() -> Node:
    """One agent, aligned, two siblings a turn; the first branch continues to 2 and 4, the second ends at once."""
    child = node(1, {"a": 2}, [leaf({"a": 0}, 2.0), leaf({"a": 1}, 4.0)], tag="late-")
    return node(0, {"a": 2}, [inner({"a": 0}, child, 1.0), leaf({"a": 1}, 2.0)])


def test_reward_to_go_discounts_the_mean_of_the_children_at_unequal_depths() -> None:
    got = advantages(two_turns(), "reward_to_go", "node", "mean", "none", gamma=0.5)
    # first: 1 + 0.5 * (2 + 4) / 2 = 2.5; second: 2; mean 2.25
    assert got == pytest.approx({"a0": 0.25, "a1": -0.25, "late-a0": -1.0, "late-a1": 1.0})


def test_gamma_counts_turns_not_the_steps_within_one(sequential: Node) -> None:
    got = advantages(sequential, "reward_to_go", "node", "none", "none", gamma=0.5)
    assert got["tool1"] == pytest.approx(4.0 + (0 + 3 + 3) / 3)


def test_cross_is_the_mean_over_the_joint_actions_that_hold_a_sample() -> None:
    pays = {(0, 0): 0.0, (0, 1): 2.0, (1, 0): 4.0, (1, 1): 10.0}
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": j}, pay) for (i, j), pay in pays.items()])
    crossed = advantages(root, "reward_to_go", "node", "mean", "none")
    assert crossed == pytest.approx({"a0": -3.0, "a1": 3.0, "b0": -2.0, "b1": 2.0})  # a: 1 7; b: 2 6; mean 4
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, pays[i, i]) for i in range(2)])
    aligned = advantages(root, "reward_to_go", "node", "mean", "none")
    assert aligned == pytest.approx({"a0": -5.0, "a1": 5.0, "b0": -5.0, "b1": 5.0})


def chain(*pays: float, tag: str) -> Node:
    """One independent episode of one role: a reward a turn."""
    below: Node | None = None
    for turn in reversed(range(1, len(pays))):
        branch = leaf({"a": 0}, pays[turn]) if below is None else inner({"a": 0}, below, pays[turn])
        below = node(turn, {"a": 1}, [branch], tag=f"{tag}{turn}-")
    assert below is not None
    return below


def test_grpo_gives_every_turn_its_episode_and_counts_an_episode_once() -> None:
    short, long = chain(0.0, 1.0, tag="s"), chain(0.0, 0.0, 0.0, 0.0, tag="l")
    root = node(0, {"a": 2}, [inner({"a": 0}, short, 3.0), inner({"a": 1}, long, 0.0)])
    got = advantages(root, "episode", "task_role", "mean", "none")
    # episodes pay 4 and 0: mean 2, although they have 2 and 4 decisions
    assert got == pytest.approx({"a0": 2.0, "s1-a0": 2.0, "a1": -2.0, "l1-a0": -2.0, "l2-a0": -2.0, "l3-a0": -2.0})
    assert advantages(root, "episode", "task_role", "mean", "std")["s1-a0"] == pytest.approx(1.0)


def test_an_episode_sums_what_was_earned_before_a_sample_too() -> None:
    got = advantages(two_turns(), "episode", "role_turn_task", "none", "none")
    assert got == pytest.approx({"a0": 1.0 + 3.0, "a1": 2.0, "late-a0": 3.0, "late-a1": 5.0})


def test_groups_never_mix_tasks_or_roles() -> None:
    trees = [
        Tree(Task(str(i), {}), node(0, {"a": 2, "b": 2}, [leaf({"a": j, "b": j}, 10.0 * i + j) for j in range(2)]))
        for i in range(3)
    ]
    for group in ("node", "task_role", "role_turn_task"):
        groups = assign(trees, Credit("step", group, "mean", "none"))
        assert len(groups) == 6
        for one in groups:
            assert len({scored.sample.role for scored in one.scored}) == 1
            assert [scored.advantage for scored in one.scored] == pytest.approx([-0.5, 0.5])


def test_role_turn_task_groups_by_turn_across_nodes() -> None:
    late = [node(1, {"a": 1}, [leaf({"a": 0}, pay)], tag=f"{pay}") for pay in (1.0, 5.0)]
    root = node(0, {"a": 2}, [inner({"a": i}, child) for i, child in enumerate(late)])
    got = advantages(root, "step", "role_turn_task", "mean", "none")
    assert got == pytest.approx({"a0": 0.0, "a1": 0.0, "1.0a0": -2.0, "5.0a0": 2.0})


def test_a_task_group_holds_all_roles_and_a_decision_may_count_each() -> None:
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, a=float(i), b=10.0 + i) for i in range(2)])
    got = advantages(root, "step", "task", "mean", "none")
    assert got == pytest.approx({"a0": -5.5, "a1": -4.5, "b0": 4.5, "b1": 5.5})  # mean of 0 1 10 11
    short, long = chain(0.0, 1.0, tag="s"), chain(0.0, 0.0, 0.0, 0.0, tag="l")
    root = node(0, {"a": 2}, [inner({"a": 0}, short, 3.0), inner({"a": 1}, long, 0.0)])
    got = advantages(root, "episode", "task_role", "mean", "none", count="decisions")
    assert got["a0"] == pytest.approx(4.0 - 8.0 / 6)  # two decisions of 4 and four of 0


def test_the_running_baseline_judges_by_the_past_and_moves_once_an_episode() -> None:
    credit = Credit("episode", "role", "running", "none", decay=0.5)
    memory: dict[str, float] = {}
    root = node(0, {"a": 1}, [inner({"a": 0}, chain(0.0, 1.0, tag="s"), 3.0)])
    tree = Tree(Task("t", {}), root)
    (first,) = assign([tree], credit, memory)
    assert [scored.advantage for scored in first.scored] == [4.0, 4.0]  # against 0
    assert memory == pytest.approx({"a": 2.0})  # 0.5 * 0 + 0.5 * 4, in two halves
    (second,) = assign([tree], credit, memory)
    assert [scored.advantage for scored in second.scored] == pytest.approx([2.0, 2.0])
    assert memory == pytest.approx({"a": 3.0})


def test_a_datum_trains_the_completion_with_its_end_and_never_the_prompt(sequential: Node) -> None:
    groups = assign([Tree(Task("t", {}), sequential)], Credit("step", "node", "mean", "none"))
    first = data(groups, {"tool": Sampling(0.7), "planner": Sampling()})[0]
    assert first.token_ids == (1, 2, 3, 0)
    assert first.mask == (False, False, True, True)
    assert first.logprobs == (0.0, 0.0, -0.5, -0.25)
    assert first.advantages == (0.0, 0.0, -1.0, -1.0)
    assert first.temperature == 0.7


def test_every_sibling_is_trained_not_only_the_winner(sequential: Node) -> None:
    groups = assign([Tree(Task("t", {}), sequential)], Credit("step", "node", "mean", "none"))
    drawn = data(groups, {"tool": Sampling(), "planner": Sampling()})
    assert sorted(datum.role for datum in drawn) == ["planner"] * 3 + ["tool"] * 3
    assert share_without_spread(groups) == 0.0


def test_records_are_frozen(sequential: Node) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        sequential.turn = 3  # type: ignore[misc]
