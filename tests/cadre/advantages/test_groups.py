"""Groups, baselines and scales, every number worked out by hand."""

import math
import pickle
from dataclasses import replace

import pytest

from bench.parity.trees import advantages, assign, chain, credit_of, inner, leaf, node, sequential, two_turns
from cadre.advantages.groups import (
    BASELINES,
    groups_of_roles,
    no_signal_fractions,
    update_running_means,
)
from cadre.declare import declared
from cadre.types import Branch, Message, Observation, Reward, Sample, Task, ToolCall, Tree


def test_at_grpo_compares_siblings_with_each_other_only() -> None:
    got = advantages(sequential(), "step", "node", "mean", "std")
    # tool: 1 4 1, mean 2, deviation sqrt((1 + 4 + 1) / 3) = sqrt 2; planner: 0 3 3, mean 2, deviation sqrt 2
    root2 = math.sqrt(2)
    expected = {"tool0": -1 / root2, "tool1": 2 / root2, "tool2": -1 / root2}
    expected |= {"planner0": -2 / root2, "planner1": 1 / root2, "planner2": 1 / root2}
    assert got == pytest.approx(expected)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "max"])
def test_a_singleton_and_equal_rewards_have_no_advantage(baseline: str) -> None:
    single = node(0, {"a": 1}, [leaf({"a": 0}, team=7.0)])
    assert advantages(single, "step", "node", baseline, "std") == {"a0": 0.0}
    equal = node(0, {"a": 3}, [leaf({"a": i}, team=0.1 + 0.2) for i in range(3)])
    assert advantages(equal, "step", "node", baseline, "std") == {"a0": 0.0, "a1": 0.0, "a2": 0.0}


def test_dividing_by_the_mean_weighs_a_success_by_how_rare_it_is() -> None:
    rare = node(0, {"a": 4}, [leaf({"a": i}, team=t) for i, t in enumerate((0.0, 1.0, 0.0, 0.0))])
    usual = node(0, {"a": 4}, [leaf({"a": i}, team=t) for i, t in enumerate((1.0, 1.0, 0.0, 1.0))])
    never = node(0, {"a": 2}, [leaf({"a": i}, team=0.0) for i in range(2)])
    # MaxRL, theorem 1: the mean of the successes' scores is 1 / K of each, so of N samples' mean each has N / K.
    assert advantages(rare, "step", "node", "none", "mean") == {"a0": 0.0, "a1": 4.0, "a2": 0.0, "a3": 0.0}
    got = advantages(usual, "step", "node", "none", "mean")
    assert got == pytest.approx({"a0": 4 / 3, "a1": 4 / 3, "a2": 0.0, "a3": 4 / 3})
    assert advantages(never, "step", "node", "none", "mean") == {"a0": 0.0, "a1": 0.0}
    # with its baseline (r - mean) / mean: 1 - 0.25 and -0.25, by 0.25
    got = advantages(rare, "step", "node", "mean", "mean")
    assert got == pytest.approx({"a0": -1.0, "a1": 3.0, "a2": -1.0, "a3": -1.0})
    # returns of both signs keep theirs: (-1, 3) by 2
    signs = node(0, {"a": 2}, [leaf({"a": i}, team=t) for i, t in enumerate((-1.0, 3.0))])
    assert advantages(signs, "step", "node", "none", "mean") == {"a0": -0.5, "a1": 1.5}


def test_baselines_on_one_group() -> None:
    root = node(0, {"a": 3}, [leaf({"a": i}, team=t) for i, t in enumerate((1.0, 2.0, 6.0))])
    by = {name: advantages(root, "step", "node", name, "none") for name in ("mean", "leave_one_out", "max", "none")}
    assert by["mean"] == pytest.approx({"a0": -2.0, "a1": -1.0, "a2": 3.0})  # mean 3
    assert by["leave_one_out"] == pytest.approx({"a0": -3.0, "a1": -1.5, "a2": 4.5})  # others: 4, 3.5, 1.5
    assert by["max"] == pytest.approx({"a0": -5.0, "a1": -4.0, "a2": 0.0})
    assert by["none"] == pytest.approx({"a0": 1.0, "a1": 2.0, "a2": 6.0})
    values = [tuple(got.values()) for got in by.values()]
    assert len(set(values)) == 4


@pytest.mark.parametrize("turns", [1, 4])
def test_one_left_out_is_a_whole_episode(turns: int) -> None:
    """Mistake: an episode of several decisions stands against its own return, as often as it has others."""

    def episode(index: int, pays: float) -> Branch:
        if turns == 1:
            return leaf({"a": index}, pays)
        return inner({"a": index}, chain(0.0, *(0.0,) * (turns - 2), pays, tag=f"{index}-"))

    root = node(0, {"a": 3}, [episode(0, 1.0), leaf({"a": 1}, 0.0), episode(2, 3.0)])
    got = advantages(root, "episode", "task_role", "leave_one_out", "none", count="episodes")
    # 1 - (0 + 3) / 2, 0 - (1 + 3) / 2, 3 - (1 + 0) / 2, at each decision of the episode
    assert {round(value, 6) for text, value in got.items() if text.startswith(("a0", "0-"))} == {-0.5}
    assert got["a1"] == pytest.approx(-2.0)
    assert {round(value, 6) for text, value in got.items() if text.startswith(("a2", "2-"))} == {2.5}
    assert len(got) == 1 + 2 * turns


def test_what_shares_an_episode_with_all_others_stands_against_itself() -> None:
    got = advantages(two_turns(), "episode", "subtree", "leave_one_out", "none", count="episodes")
    assert got == pytest.approx({"a0": 0.0, "late-a0": -2.0, "late-a1": 2.0, "a1": 0.0})  # 3 and 5 of each other


def test_cross_is_the_mean_over_the_joint_actions_that_hold_a_sample() -> None:
    pays = {(0, 0): 0.0, (0, 1): 2.0, (1, 0): 4.0, (1, 1): 10.0}
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": j}, pay) for (i, j), pay in pays.items()])
    crossed = advantages(root, "reward_to_go", "node", "mean", "none")
    assert crossed == pytest.approx({"a0": -3.0, "a1": 3.0, "b0": -2.0, "b1": 2.0})  # a: 1 7; b: 2 6; mean 4
    root = node(0, {"a": 2, "b": 2}, [leaf({"a": i, "b": i}, pays[i, i]) for i in range(2)])
    aligned = advantages(root, "reward_to_go", "node", "mean", "none")
    assert aligned == pytest.approx({"a0": -5.0, "a1": 5.0, "b0": -5.0, "b1": 5.0})


def test_grpo_gives_every_turn_its_episode_and_counts_an_episode_once() -> None:
    short, long = chain(0.0, 1.0, tag="s"), chain(0.0, 0.0, 0.0, 0.0, tag="l")
    root = node(0, {"a": 2}, [inner({"a": 0}, short, 3.0), inner({"a": 1}, long, 0.0)])
    got = advantages(root, "episode", "task_role", "mean", "none", count="episodes")
    # episodes pay 4 and 0: mean 2, although they have 2 and 4 decisions
    assert got == pytest.approx({"a0": 2.0, "s1-a0": 2.0, "a1": -2.0, "l1-a0": -2.0, "l2-a0": -2.0, "l3-a0": -2.0})
    assert advantages(root, "episode", "task_role", "mean", "std", count="episodes")["s1-a0"] == pytest.approx(1.0)


def test_groups_never_mix_tasks_or_roles() -> None:
    trees = [
        Tree(Task(str(i), {}), node(0, {"a": 2, "b": 2}, [leaf({"a": j, "b": j}, 10.0 * i + j) for j in range(2)]))
        for i in range(3)
    ]
    for group in ("node", "task_role", "role_turn_task"):
        groups = assign(trees, credit_of("step", group, "mean", "none"))
        assert len(groups) == 6
        for item in groups:
            assert len({scored.sample.role for scored in item.samples}) == 1
            assert [scored.advantages[0] for scored in item.samples] == pytest.approx([-0.5, 0.5])


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
    got = advantages(root, "episode", "task_role", "mean", "none")
    assert got["a0"] == pytest.approx(4.0 - 8.0 / 6)  # two decisions of 4 and four of 0


def test_the_running_baseline_judges_by_the_past_and_moves_once_an_episode() -> None:
    credit = credit_of("episode", "role", "running", "none", count="episodes", decay=0.5)
    root = node(0, {"a": 1}, [inner({"a": 0}, chain(0.0, 1.0, tag="s"), 3.0)])
    tree = Tree(Task("t", {}), root)
    (first,) = assign([tree], credit)
    assert [scored.advantages[0] for scored in first.samples] == [4.0, 4.0]  # against 0
    state = update_running_means({}, [first], credit)
    assert state == pytest.approx({"a": 2.0})  # 0.5 * 0 + 0.5 * 4, in two halves
    (second,) = assign([tree], credit, state)
    assert [scored.advantages[0] for scored in second.samples] == pytest.approx([2.0, 2.0])
    assert update_running_means(state, [second], credit) == pytest.approx({"a": 3.0})


@pytest.mark.parametrize("group", ["node", "task", "task_role", "role_turn_task", "role"])
def test_a_running_baseline_belongs_to_a_role_and_never_to_a_place_in_the_batch(group: str) -> None:
    """Mistake: means kept by the tree's number, and moved by one group of a batch before the next is judged."""
    trees = [Tree(Task(str(i), {}), node(0, {"a": 1}, [leaf({"a": 0}, 4.0 * i)])) for i in range(1, 3)]
    credit = credit_of("step", group, "running", "none", decay=0.5)
    name = "a/0" if group in ("node", "role_turn_task") else "a"
    for batch in (trees, trees[::-1]):
        groups = assign(batch, credit, {name: 2.0})
        got = {scored.returns: scored.advantages[0] for group in groups for scored in group.samples}
        assert got == {4.0: 2.0, 8.0: 6.0}  # both against the mean from before the batch
        first, second = (branch.reward.team for tree in batch for branch in tree.root.branches)
        assert update_running_means({name: 2.0}, groups, credit) == {
            name: 0.5 * (0.5 * 2.0 + 0.5 * first) + 0.5 * second
        }


def test_where_samples_are_compared_by_turn_so_are_the_running_means() -> None:
    late = node(1, {"a": 1}, [leaf({"a": 0}, 8.0)], tag="late-")
    root = node(0, {"a": 1}, [inner({"a": 0}, late, 4.0)])
    credit = credit_of("step", "role_turn_task", "running", "none", decay=0.5)
    groups = assign([Tree(Task("t", {}), root)], credit, {"a/0": 1.0, "a/1": 3.0})
    assert [scored.advantages[0] for group in groups for scored in group.samples] == [3.0, 5.0]
    assert update_running_means({"a/0": 1.0, "a/1": 3.0}, groups, credit) == {"a/0": 2.5, "a/1": 5.5}


def test_which_baselines_are_made_of_the_group() -> None:
    result = {name: declared(baseline, "needs_group") for name, baseline in BASELINES.items()}
    assert result == {"mean": True, "leave_one_out": True, "max": True, "none": False, "running": False}


def test_the_groups_that_say_nothing_by_role_and_decision() -> None:
    equal = node(0, {"b": 2}, [leaf({"b": i}, 1.0) for i in range(2)])
    root = node(0, {"a": 2}, [inner({"a": 0}, equal), leaf({"a": 1}, 1.0)])
    other_root_node = node(0, {"a": 2}, [leaf({"a": i}, 2.0) for i in range(2)])
    trees = [Tree(Task(str(i), {}), root) for i, root in enumerate((root, other_root_node))]
    groups = assign(trees, credit_of("step", "node", "mean", "std"))
    assert no_signal_fractions(groups) == {("a", 0): 0.5, ("b", 1): 1.0}
    assert sum(not group.has_variance for group in groups) / len(groups) == pytest.approx(2 / 3)
    assert no_signal_fractions([]) == {}


def test_scored_samples_survive_pickling_and_replacing() -> None:
    groups = assign([Tree(Task("t", {}), two_turns())], credit_of("step", "node", "mean", "std"))
    again = pickle.loads(pickle.dumps(groups))  # noqa: S301 - what the test wrote itself
    assert again == groups
    assert [scored.sample.text for item in again for scored in item.samples] == ["a0", "a1", "late-a0", "late-a1"]
    scored = replace(again[0].samples[0], penalties=(1.0, 2.0), reference=(-0.5, -0.5))
    assert scored.return_after_costs == scored.returns - 3.0
    assert scored.tree_sample.position == groups[0].samples[0].tree_sample.position


def test_equal_texts_that_call_different_tools_lead_to_different_states() -> None:
    """Mistake: an answer that ended its episode is paid what follows another of the same text."""
    called = Message("assistant", "", (ToolCall("1", "go", "{}"),))
    below = node(1, {"a": 2}, [leaf({"a": i}, team=float(i)) for i in range(2)], tag="late-")
    below = replace(below, branches=tuple(replace(branch, selected=bool(n)) for n, branch in enumerate(below.branches)))
    root = node(0, {"a": 2}, [leaf({"a": 0}), inner({"a": 1}, below)])
    first, second = (replace(sample, text="go") for sample in root.samples["a"])

    def worth(second: Sample) -> list[float]:
        tree = Tree(Task("t", {}), replace(root, samples={"a": (first, second)}))
        credit = credit_of("first_reward", "node", "none", "none")
        (group, *_) = assign([tree], credit)
        return [scored.returns for scored in group.samples]

    unpaid = [replace(branch, reward=Reward(), over=False) for branch in root.branches]
    root = replace(root, branches=tuple(unpaid))
    assert worth(replace(second, message=called))[0] == 0.0
    assert worth(second)[0] == worth(second)[1]
    ended, other = root.branches
    root = replace(root, branches=(replace(ended, over=True), other))
    assert worth(second)[0] == 0.0


def test_what_was_called_is_part_of_what_was_seen() -> None:
    """Mistake: turns that are calls have no words, so that one who deleted and one who read stand in one state."""

    def after(call: ToolCall, text: str = "ok") -> tuple[Message, ...]:
        question = Message("assistant", "", (call,))
        return Message("user", "go"), question, Message("tool", text, tool_call_id=call.id)

    def groups(*histories: tuple[Message, ...]) -> int:
        bare = node(1, {"a": 1}, [leaf({"a": 0})])
        recorded = [replace(bare, observations={"a": Observation("a", history)}) for history in histories]
        root = node(0, {"a": len(recorded)}, [inner({"a": index}, below) for index, below in enumerate(recorded)])
        return len(assign([Tree(Task("t", {}), root)], credit_of("step", "observation", "mean", "none"))) - 1

    read, delete = ToolCall("1", "read", '{"x": 1}'), ToolCall("1", "delete", '{"x": 1}')
    assert groups(after(read), after(delete)) == 2
    assert groups(after(read), after(ToolCall("1", "read", '{"x": 2}'))) == 2
    assert groups(after(read), after(ToolCall("another", "read", '{"x": 1}'))) == 1  # what calls are named says nothing
    assert groups((Message("user", "a"),), (Message("system", "a"),)) == 2


def test_a_subtree_is_below_one_answer_where_answers_are_tried_together() -> None:
    """Two answers each, crossed: of the four branches two hold a0, and what is below them is compared with it."""
    choices = [{"a": i, "b": j} for i in range(2) for j in range(2)]
    below = [node(1, {"a": 1}, [leaf({"a": 0})], tag=f"{choice['a']}{choice['b']}-") for choice in choices]
    root = node(0, {"a": 2, "b": 2}, [inner(choice, child) for choice, child in zip(choices, below, strict=True)])
    groups = assign([Tree(Task("t", {}), root)], credit_of("step", "subtree", "mean", "none"))
    texts = sorted(sorted(scored.sample.text for scored in group.samples) for group in groups)
    assert texts == [["00-a0", "01-a0", "a0"], ["10-a0", "11-a0", "a1"], ["b0"], ["b1"]]


def test_a_group_is_silent_only_where_nothing_comes_of_it() -> None:
    root = node(0, {"a": 2}, [leaf({"a": 0}, 1.0), leaf({"a": 1}, 1.0)])
    for baseline, silent in (("mean", True), ("none", False), ("running", False)):
        (group,) = assign([Tree(Task("t", {}), root)], credit_of("step", "node", baseline, "none"))
        assert (group.has_variance, not group.has_signal) == (False, silent)
    (still,) = assign([Tree(Task("t", {}), root)], credit_of("step", "node", "running", "none"), {"a/0": 1.0})
    assert not still.has_signal
    (group,) = assign([Tree(Task("t", {}), root)], credit_of("step", "node", "none", "none"))
    (stored,) = groups_of_roles([group, replace(group, samples=())], {"a"})
    assert stored == group
    assert groups_of_roles([group], {"b"}) == []
