"""State values from the tree: Q(s, a) - V(s) by hand."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bench.parity.trees import assign, credit_of, inner, leaf, node
from cadre.advantages.groups import needs_signatures
from cadre.advantages.returns import Credit
from cadre.rollout import walk
from cadre.rollout.grow import Rollout, grow
from cadre.rollout.shapes import independent
from cadre.types import Message, Node, Observation, Task, Tree
from tests.cadre.algorithms.test_algorithms_presets import named
from tests.helpers.games import Relay, scripted_team

PLAIN = credit_of("reward_to_go", "state", "state_value", "")


def decision(turn: int, text: str, branch: Any, signature: str = "", shown: str = "") -> Node:
    """Return a decision of role a with one completion."""
    root = node(turn, {"a": 1}, [branch])
    (sample,) = root.samples["a"]
    observation = Observation("a", (Message("user", shown or f"on the way to {text}"),))
    return replace(
        root, observations={"a": observation}, samples={"a": (replace(sample, text=text),)}, signature=signature
    )


def episodes(*starts: Node) -> list[Tree]:
    """Return one task's episodes side by side; each begins with a decision of one completion."""
    branches = tuple(replace(start.branches[0], choice={"a": n}) for n, start in enumerate(starts))
    samples = tuple(start.samples["a"][0] for start in starts)
    return [Tree(Task("t", {}), replace(starts[0], samples={"a": samples}, branches=branches))]


def advantages(trees: list[Tree], credit: Credit) -> dict[str, float]:
    groups = assign(trees, credit)
    return {scored.sample.text: scored.advantages[0] for group in groups for scored in group.samples}


def three_at_the_door(signature: str = "door") -> list[Tree]:
    """Three episodes meet the state `door` by different ways: two go left and earn 4 and 0, one goes right and earns
    8."""
    ends = [("left", 4.0), (" left", 0.0), ("right", 8.0)]
    starts = []
    for number, (text, reward) in enumerate(ends):
        end = decision(1, text, leaf({"a": 0}, reward), signature)
        starts.append(decision(0, f"go {number}", inner({"a": 0}, end), "start"))
    return episodes(*starts)


def test_equal_actions_in_an_equal_state_share_the_mean_of_what_follows() -> None:
    """Q(left) is 2, Q(right) 8 and V the mean over rollouts, 4. The root is one state in which all actions differ."""
    got = advantages(three_at_the_door(), PLAIN)
    assert got == {"go 0": 0.0, "go 1": -4.0, "go 2": 4.0, "left": -2.0, " left": -2.0, "right": 4.0}


def test_the_prior_draws_values_of_rare_states_to_the_mean_of_the_task() -> None:
    """The mean of the episodes is 4. With a discount of a half the root's returns are 2, 0 and 4, their V 2, drawn by a
    prior of 3 returns to (6 + 12) / 6 = 3; the door's is (12 + 12) / 6 = 4 as before."""
    got = advantages(three_at_the_door(), named("state_value", gamma=0.5, prior=3.0).credit)
    assert got == {"go 0": -1.0, "go 1": -3.0, "go 2": 1.0, "left": -2.0, " left": -2.0, "right": 4.0}


def test_without_signatures_states_are_what_a_role_was_shown() -> None:
    """Each end was shown something else, so that each is a state of its own: Q - V is 0, and with a prior of 2 its
    return against the mean of 4 counts a third less: R - (R + 8) / 3."""
    assert advantages(three_at_the_door(""), PLAIN)["right"] == 0.0
    got = advantages(three_at_the_door(""), named("state_value", gamma=1.0).credit)
    assert [got[text] for text in ("left", " left", "right")] == pytest.approx([0.0, -8 / 3, 8 / 3])


def test_of_equal_actions_of_an_episode_the_first_counts() -> None:
    """One episode says `on` twice in the state `hall` and earns 1 and then 5, another says `off` there and earns 2.

    The first `on` is followed by 6, the second by 5: Q(on) is 6, V (6 + 2) / 2 = 4, and both get 2.
    """
    again = decision(1, "on", leaf({"a": 0}, 5.0), "hall")
    first = decision(0, "on", inner({"a": 0}, again, 1.0), "hall")
    other_decision = decision(0, "off", leaf({"a": 0}, 2.0), "hall")
    trees = episodes(first, other_decision)
    groups = assign(trees, PLAIN)
    got = [(scored.sample.text, scored.advantages[0]) for group in groups for scored in group.samples]
    assert sorted(got) == [("off", -2.0), ("on", 2.0), ("on", 2.0)]


def test_equal_returns_have_no_advantage() -> None:
    ends = [decision(0, str(n), leaf({"a": 0}, 0.1), "s") for n in range(3)]
    assert set(advantages(episodes(*ends), named("state_value", gamma=1.0).credit).values()) == {0.0}


def test_states_of_other_tasks_and_roles_are_others() -> None:
    item, two = three_at_the_door(), three_at_the_door()
    groups = assign([*item, *two], PLAIN)
    assert len(groups) == 4
    assert needs_signatures(PLAIN)
    assert not needs_signatures(named("gigpo").credit)


class Signed(Relay):
    """Names its state by turn and note, not by the past that its prompts tell."""

    def signature(self) -> str:
        return f"{self.turn}{self.note}"


@pytest.mark.parametrize(("signs", "expected"), [(True, {"0None", "0a", "1None", "1a"}), (False, {""})])
def test_the_environment_signs_its_states_where_the_credit_needs_it(signs: bool, expected: set[str]) -> None:
    team, _ = scripted_team(Signed, lambda request, index: "a")
    rollout = Rollout(Signed, team, independent(2), 1.0, signs=signs)
    root = asyncio.run(grow(Signed(Task("t", {})), rollout, 1))
    assert root is not None
    assert {visited.signature for visited in walk.nodes(root)} == expected
