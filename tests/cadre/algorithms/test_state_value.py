"""The example of state values: its numbers by hand, and its recipe."""

from dataclasses import replace
from pathlib import Path

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.types import Message, Node, Observation, Task, Tree
from tests.cadre.advantages.trees import assign, inner, leaf, node

RECIPE = Path(__file__).parents[3] / "examples" / "state_value.yaml"


def shown(root: Node, seen: str, said: str) -> Node:
    """Return a decision of role a with this last message and this completion."""
    (sample,) = root.samples["a"]
    messages = (Message("user", f"the way of {said}"), Message("user", seen))
    observation = Observation("a", messages)
    return replace(root, observations={"a": observation}, samples={"a": (replace(sample, text=said),)})


def test_equal_actions_in_an_equal_state_share_the_mean_of_what_follows() -> None:
    """Three episodes meet the state `door`: two go left and earn 4 and 0, one goes right and earns 8.

    Q(left) is 2, Q(right) 8 and V the mean over rollouts, 4. The root is one state in which all actions differ.
    """
    ends = [("left", 4.0), (" left", 0.0), ("right", 8.0)]
    trees = []
    for number, (said, reward) in enumerate(ends):
        end = shown(node(1, {"a": 1}, [leaf({"a": 0}, reward)]), "door", said)
        trees.append(shown(node(0, {"a": 1}, [inner({"a": 0}, end)]), f"start {number}", f"go {number}"))
    branches = tuple(replace(tree.branches[0], choice={"a": n}) for n, tree in enumerate(trees))
    samples = tuple(tree.samples["a"][0] for tree in trees)
    root = replace(trees[0], samples={"a": samples}, branches=branches)
    credit = resolve(load(str(RECIPE))).plan.credit
    groups = assign([Tree(Task("t", {}), root)], credit)
    got = {scored.sample.text: scored.advantages[0] for group in groups for scored in group.samples}
    assert got == {"go 0": 0.0, "go 1": -4.0, "go 2": 4.0, "left": -2.0, " left": -2.0, "right": 4.0}
