"""Whole episodes that branch: where, how often, and that equal keys give equal trees."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from bench.parity.trees import sample
from cadre.rollout import walk
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.rollout.shapes import WHERE, branch, entropy
from cadre.types import Node, Request, Sample, Task, Tree
from tests.helpers.games import Pair, Relay, scripted_team


def grown(shape, env=Relay, turns: int = 3, key: int = 7) -> tuple[Node, list[Request]]:
    def answer(request: Request, index: int) -> str:
        return str((request.key + index) % 10)

    team, sampler = scripted_team(env, answer)
    rollout = Rollout(lambda task: env(task, turns), team, shape, 1.0)
    (tree,), _ = asyncio.run(grow_many([Task("t", {})], rollout, key))
    return tree.root, sampler.requests


def test_two_episodes_and_a_branch_of_each() -> None:
    root, requests = grown(branch(2, WHERE["random"]))
    assert len(list(walk.episodes(root))) == 4
    counts = [len(node.branches) for node in walk.nodes(root)]
    assert (counts[0], sorted(counts)[-3:]) == (2, [2, 2, 2])  # the first decision and one in each episode
    # the first decision, five more in each episode, and what the branches played to their end
    positions = sorted(len(decision.path) for decision in walk.tree_samples([wrapped(root)]) if decision.index == 1)
    assert len(requests) == 1 + 2 * 5 + sum(6 - depth for depth in positions if depth)


def wrapped(root: Node) -> Tree:
    return Tree(Task("t", {}), root)


def test_a_branch_is_played_from_the_state_that_it_was_sampled_in() -> None:
    root, _ = grown(branch(2, WHERE["random"], decisions=2, siblings=2, rounds=2))
    for path in walk.episodes(root):
        texts: list[str] = []
        for node, selected in path:
            ((role, observation),) = node.observations.items()
            assert observation.messages[0].content.endswith(f"past={','.join(texts)}")
            text = node.samples[role][selected.choice[role]].text
            if role == "scout":
                note = text
            else:
                texts.append(f"{note}>{text}")


def test_the_decision_that_is_chosen_is_the_most_worth() -> None:
    def last(samples: Mapping[str, Sequence[Sample]], generator) -> float:
        return float(next(iter(samples)) == "runner")

    root, _ = grown(branch(2, last, decisions=3), turns=3)
    twice = [node for node in walk.nodes(root) if len(node.branches) == 2]
    assert [list(node.samples) for node in twice[1:]] == [["runner"]] * 6  # the first three runners of each episode


def test_equal_keys_give_equal_trees_and_others_do_not() -> None:
    shape = branch(2, WHERE["random"], decisions=2, rounds=2)
    first, again, other_grown = (grown(shape, key=key)[0] for key in (7, 7, 8))
    assert first == again
    assert first != other_grown


def test_the_budget_ends_the_rounds() -> None:
    rounds = [len(list(walk.episodes(grown(branch(2, rounds=5, budget=budget))[0]))) for budget in (0, 1, 25)]
    assert rounds[0] == 2 + 2 * 5
    assert rounds[1] == 2
    assert 2 < rounds[2] < 12


def test_roles_that_act_at_once_branch_together_and_shares_add_up() -> None:
    root, _ = grown(branch(3, rounds=2), Pair)
    for node in walk.nodes(root):
        assert len({len(siblings) for siblings in node.samples.values()}) == 1
        assert [branch.choice["left"] for branch in node.branches] == list(range(len(node.branches)))
    leaves = [
        node.weight / len(node.branches)
        for node in walk.nodes(root)
        for branch in node.branches
        if branch.child is None
    ]
    assert sum(leaves) == pytest.approx(1.0)


def test_entropy_is_the_mean_surprise_of_what_was_said() -> None:
    assert entropy({"a": (sample("a", "x"),)}, None) == pytest.approx(0.375)  # of -0.5 and -0.25
    assert entropy({"a": ()}, None) == 0.0
