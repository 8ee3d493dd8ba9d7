"""Turns of an episode in which roles are absent, by hand; the numbers come from growing a tree, not from a test's."""

import pytest

from cadre.advantages.critic import span
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import RETURNS
from cadre.rollout import walk
from cadre.rollout.grow import Path
from cadre.types import Branch, Node, Observation, Reward, Sample, Task, Tree

CREDIT = comparison_of("reward_to_go", "node", "none", "none", gamma=0.5)


def grown(acting: list[str]) -> Node:
    """An episode in which these act, letter by letter, one sibling each; 1 is paid at its end."""
    past, created = Path(), []
    for letters in acting:
        samples = {role: (Sample(role, "p", role, (1,), (2,), (-1.0,), "stop", 0),) for role in letters}
        recorded = {role: Observation(role, ()) for role in letters}
        turn, _ = past.next_round(letters)
        created.append((turn, recorded, samples))
        past = past.extended(recorded, {role: item for role, (item,) in samples.items()}, 0, 1.0)
    below: Node | None = None
    for turn, recorded, samples in reversed(created):
        reward = Reward(1.0 if below is None else 0.0)
        branch = Branch(dict.fromkeys(samples, 0), reward, below is None, False, True, below)
        below = Node(0, recorded, samples, (branch,), round=turn)
    assert below is not None
    return below


def returns(acting: list[str]) -> list[float]:
    tree = Tree(Task("t", {}), grown(acting))
    return [RETURNS["reward_to_go"](decision, CREDIT) for decision in walk.tree_samples([tree])]


@pytest.mark.parametrize(
    ("acting", "expected"),
    [
        (["xy", "xy", "xy"], [0.25, 0.25, 0.5, 0.5, 1.0, 1.0]),  # at once
        (["x", "y", "x", "y"], [0.5, 0.5, 1.0, 1.0]),  # one after the other: nothing between them
        (["xy", "x", "xy"], [0.25, 0.25, 0.5, 1.0, 1.0]),  # y left out once
        # y acts, then x alone, then both in the other order: y's second turn is x's second, x's third one more
        (["y", "x", "x", "y", "x"], [0.25, 0.25, 0.5, 0.5, 1.0]),
        (["y", "x", "x", "x", "y"], [0.25, 0.25, 0.5, 1.0, 1.0]),
        (["a", "b", "c", "a", "c", "b", "a"], [0.25] * 3 + [0.5] * 3 + [1.0]),
    ],
)
def test_a_discount_is_taken_where_somebody_acts_again(acting: list[str], expected: list[float]) -> None:
    assert returns(acting) == pytest.approx(expected)


def test_critics_discount_as_returns_do() -> None:
    """y acts in the first turn and in the last: two turns begin on the way."""
    root = grown(["y", "x", "x", "x", "y"])
    reward, (later,) = span(root, (), 0, "y", CREDIT)
    assert (reward, later.weight) == (0.0, 0.25)
