"""Small trees that are written down by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cadre.advantages.groups import AdvantageGroup, compare_samples, comparison_of
from cadre.advantages.returns import Credit, samples_of
from cadre.types import Branch, Node, Observation, Reward, Sample, Task, Tree


def sample(role: str, text: str) -> Sample:
    return Sample(role, "shared", text, (1, 2), (3, 0), (-0.5, -0.25), "stop", 0)


def node(turn: int, siblings: dict[str, int], branches: list[Branch], tag: str = "") -> Node:
    samples = {role: tuple(sample(role, f"{tag}{role}{i}") for i in range(k)) for role, k in siblings.items()}
    return Node(turn, {role: Observation(role, ()) for role in siblings}, samples, tuple(branches), round=turn)


def leaf(choice: dict[str, int], team: float = 0.0, **local: float) -> Branch:
    return Branch(choice, Reward(team, local), True, False)


def inner(choice: dict[str, int], child: Node, team: float = 0.0, **local: float) -> Branch:
    return Branch(choice, Reward(team, local), False, False, True, child)


def assign(trees: list[Tree], credit: Credit, state: dict[str, float] | None = None) -> list[AdvantageGroup]:
    """The groups of all samples of the trees."""
    return compare_samples(samples_of(trees), credit, state)


def credit_of(*axes: str, decay: float = 0.95, parts: Mapping[str, float] | None = None, **numbers) -> Credit:
    """The credit of one comparison, named by its axes, or of each part of the reward."""
    return replace(Credit.of_parts(comparison_of(*axes, **numbers), parts or {}), decay=decay)


def advantages(root: Node, *axes: str, **numbers) -> dict[str, float]:
    groups = assign([Tree(Task("t", {}), root)], credit_of(*axes, **numbers))
    return {scored.sample.text: scored.advantages[0] for group in groups for scored in group.samples}


def sequential() -> Node:
    """Tool tries 3, the second goes on; then the planner tries 3."""
    planner = node(0, {"planner": 3}, [leaf({"planner": i}, team=t) for i, t in enumerate((0.0, 3.0, 3.0))])
    tries = [leaf({"tool": 0}, tool=1.0), inner({"tool": 1}, planner, tool=4.0), leaf({"tool": 2}, tool=1.0)]
    return node(0, {"tool": 3}, tries)


def two_turns() -> Node:
    """One agent, aligned, two siblings a turn; the first branch continues to 2 and 4, the second ends at once."""
    child = node(1, {"a": 2}, [leaf({"a": 0}, 2.0), leaf({"a": 1}, 4.0)], tag="late-")
    return node(0, {"a": 2}, [inner({"a": 0}, child, 1.0), leaf({"a": 1}, 2.0)])


def chain(*pays: float, tag: str) -> Node:
    """One independent episode of one role: a reward a turn, from turn 1 on; the first of `pays` is not used."""
    below: Node | None = None
    for turn in reversed(range(1, len(pays))):
        branch = leaf({"a": 0}, pays[turn]) if below is None else inner({"a": 0}, below, pays[turn])
        below = node(turn, {"a": 1}, [branch], tag=f"{tag}{turn}-")
    assert below is not None
    return below
