"""Episodes side by side: as one tree while nothing fails, and without those that fail where some do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cadre.errors import ContractError
from cadre.rollout import shapes
from cadre.rollout.episodes import Failure, grow_many, grow_sampled
from cadre.rollout.grow import Rollout
from cadre.settings import EpisodesConfig
from cadre.types import Request, Reward, Tree
from tests.helpers.games import Relay, scripted_team
from tests.helpers.rounds import finished

SAMPLES = 4


class Tripping(Relay):
    """Relay whose first step fails for the note "trip", and whose second one does for the note "late"."""

    async def step(self, actions: dict[str, str]) -> Reward:
        if "trip" in actions.values() or (self.note == "late" and "runner" in actions):
            raise ValueError("tripped")
        return await super().step(actions)


def by_key(request: Request, index: int) -> str:
    """A sampler whose samples depend on the request's key and the sibling's number."""
    return f"{request.role} {(request.key + index) % 1000}"


def grown(answer, env: type[Relay] = Tripping, **limits) -> tuple[list[Tree], list[Failure], list[Failure], int]:
    """The trees of three tasks, what was dropped, every failure, and how often somebody was asked."""
    messages: list[Failure] = []
    team, sampler = scripted_team(env, answer)
    some = EpisodesConfig(**{"retries": 1, "failed_fraction": 1.0} | limits)
    rollout = Rollout(env, team, shapes.greedy(2), 1.0, some, messages.append)
    trees, dropped = finished(grow_sampled(list(env.tasks("train"))[:3], rollout, 5, SAMPLES))
    return trees, dropped, messages, len(sampler.requests)


def of_many(answer) -> list[Tree]:
    team, _ = scripted_team(Relay, answer)
    rollout = Rollout(Relay, team, shapes.independent(SAMPLES), 1.0)
    return finished(grow_many(list(Relay.tasks("train"))[:3], rollout, 5))[0]


def test_where_nothing_fails_they_are_one_tree() -> None:
    trees, dropped, message, _ = grown(by_key)
    assert trees == of_many(by_key)
    assert (dropped, message) == ([], [])


@pytest.mark.parametrize("word", ["trip", "late"])
@pytest.mark.parametrize("number", range(SAMPLES))
def test_an_episode_that_fails_takes_no_other_with_it(word: str, number: int) -> None:
    """The others say and are paid what they would have been."""

    def answer(request: Request, index: int) -> str:
        first = request.role == "scout" and "train-1" in request.messages[0].content and request.count == SAMPLES
        return word if first and index == number else by_key(request, index)

    trees, dropped, message, requests = grown(answer)
    full = of_many(answer)
    stored = tuple(branch for position, branch in enumerate(full[1].root.branches) if position != number)
    assert trees == [full[0], Tree(full[1].task, replace(full[1].root, branches=stored)), full[2]]
    assert [(failure.task.id, failure.dropped) for failure in dropped] == [("train-1", True)]
    assert [failure.dropped for failure in message] == [False, False, False, True]
    assert requests < 3 * (1 + 3 * SAMPLES) + 2 * (1 + 3 * SAMPLES)  # the first decision is sampled once for all


def test_a_task_all_of_whose_episodes_fail_has_no_tree() -> None:
    trees, dropped, _, _ = grown(lambda request, index: "trip" if "train-1" in request.messages[0].content else "a")
    assert [tree.task.id for tree in trees] == ["train-0", "train-2"]
    assert len(dropped) == SAMPLES
    with pytest.raises(ContractError, match=f"{2 * SAMPLES + 1} of {3 * SAMPLES} episodes failed|Every episode failed"):
        grown(lambda request, index: "trip", failed_fraction=0.7)
