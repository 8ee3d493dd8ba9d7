"""A team passes data to the learners that own it, and weights to the samplers that use them."""

import asyncio
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cadre.errors import DivergedError
from cadre.team import Metrics, Team, Weights, narrowed
from cadre.types import Observation, Sampling, TrainingSequence


@dataclass(eq=False)
class Recorder:
    """A sampler and a learner that note their calls; an update waits until `other_updates` have begun theirs."""

    policies: tuple[str, ...]
    other_updates: int = 1
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    loaded: list[Weights] = field(default_factory=list)
    closed: int = 0
    updates: int = 0
    error: Exception | None = None

    async def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        self.updates += 1
        self.begun += [datum.policy for datum in data]
        async with asyncio.timeout(5):
            while len(self.begun) < self.other_updates:
                await asyncio.sleep(0)
        if self.error:
            raise self.error
        await asyncio.sleep(0.01)
        self.ended += [datum.policy for datum in data]
        return {policy: {"sequences": float(len(data))} for policy in self.policies}

    async def publish(self, policy: str) -> Weights:
        return Weights(policy, 7, tensors={policy: object()})

    async def load(self, weights: Weights) -> None:
        self.loaded.append(weights)

    def close(self) -> None:
        self.closed += 1


def datum(policy: str) -> TrainingSequence:
    return TrainingSequence(policy, "r", (1,), (True,), (0.0,), (1.0,), 0)


def team(*learners: Recorder, **samplers: Recorder) -> Team:
    return Team({}, samplers, {}, learners)  # type: ignore[arg-type]


def test_learners_update_at_the_same_time() -> None:
    begun: list[str] = []
    recorder, two = Recorder(("a", "b"), 2, begun), Recorder(("c",), 2, begun)
    metrics = asyncio.run(team(recorder, two).update([datum("a"), datum("c")]))
    assert begun == ["a", "c"]
    assert list(metrics) == ["a", "b", "c"]


def test_a_learner_without_data_counts_the_update() -> None:
    """Mistake: schedules of a role that did not act, or learns nothing, behind those of the others."""
    recorder, two = Recorder(("a",), 0), Recorder(("b",), 0)
    asyncio.run(team(recorder, two).update([datum("b")]))
    assert (recorder.updates, recorder.begun, two.updates, two.begun) == (1, [], 1, ["b"])


def test_an_error_is_raised_once_all_have_ended() -> None:
    """A learner's work is not interrupted by another's error."""
    bad, good = Recorder(("a",), error=DivergedError("first")), Recorder(("b",))
    last = Recorder(("c",), error=ValueError("last"))
    with pytest.raises(DivergedError, match="first"):
        asyncio.run(team(bad, good, last).update([datum("a"), datum("b"), datum("c")]))
    assert good.ended == ["b"]


def test_published_weights_reach_the_sampler_that_plays_the_policy() -> None:
    player, other_recorder = Recorder(()), Recorder(())
    both = team(Recorder(("a", "critic")), a=player, frozen=other_recorder)
    asyncio.run(both.load(asyncio.run(both.published())))
    (weights,) = player.loaded
    assert (weights.policy, weights.version) == ("a", 7)
    assert other_recorder.loaded == []


def test_weights_are_loaded_by_policy() -> None:
    recorder, two = Recorder(()), Recorder(())
    asyncio.run(team(a=recorder, b=two).load([Weights("b", 3, Path("step/b"))]))
    assert (recorder.loaded, two.loaded) == ([], [Weights("b", 3, Path("step/b"))])


def test_closing_a_team_closes_samplers_and_learners() -> None:
    both, player = Recorder(("a",)), Recorder(())
    team(both, b=player).close()
    assert (both.closed, player.closed) == (1, 1)


def test_weights_keep_all_but_the_tensors_when_pickled() -> None:
    weights = Weights("planner", 3, Path("run/step-000003/planner"), {"w": object()})
    copy = pickle.loads(pickle.dumps(weights))  # noqa: S301
    assert copy == replace(weights, tensors=None)
    assert copy.tensors is None
    assert weights.tensors is not None


def test_an_observation_narrows_its_roles_sampling():
    sampling = Sampling(max_tokens=8, stop=("a",))
    recorded = Observation("r", (), stop=("a", "b"), max_tokens=4)
    assert narrowed(sampling, recorded) == Sampling(max_tokens=4, stop=("a", "b"))
    assert narrowed(sampling, replace(recorded, stop=(), max_tokens=99)) == sampling
    assert narrowed(sampling, Observation("r", ())) == sampling
