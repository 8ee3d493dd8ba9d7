"""Actors that die are replaced, and the cluster that a run joins."""

from typing import Any

import pytest

from cadre.errors import EngineError
from cadre_ray import ray_actors
from cadre_ray.ray_actors import MAX_DEATHS_PER_CALL, ActorDied, SupervisedActor, SupervisedRanks
from tests.helpers.extras import skip_without

skip_without("ray")


class ScriptedSampler(SupervisedActor):
    """Actors are numbers; the asked one dies where `dies` says so."""

    def __init__(self, dies: list[bool], limit: int) -> None:
        self.dies, self.made, self.ended = iter(dies), 0, list[int]()
        super().__init__(int, (), {}, limit)

    def call_once(self, handle: Any, work: Any) -> Any:
        if next(self.dies):
            raise ActorDied("killed")
        return work(handle)

    def _create(self) -> tuple[Any, Any]:
        self.made += 1
        return self.made, None

    def _kill(self, handle: Any) -> None:
        self.ended.append(handle)

    def _get(self, reference: Any) -> Any:
        return reference


def test_what_kills_everybody_who_is_asked_is_given_up() -> None:
    member = ScriptedSampler([True] * 100, limit=100)
    with pytest.raises(
        EngineError, match=r"an? int died 6 times in a row, the last time by: killed\. What it is asked"
    ):
        member.call(str)
    assert member.made == 1 + MAX_DEATHS_PER_CALL
    assert member.ended == list(range(1, 1 + MAX_DEATHS_PER_CALL))


def test_every_question_counts_its_own_deaths() -> None:
    member = ScriptedSampler([*([True] * MAX_DEATHS_PER_CALL), False] * 3, limit=100)
    assert [member.call(str) for _ in range(3)] == ["6", "11", "16"]


def test_answers_to_others_do_not_hide_a_question_that_kills() -> None:
    member = ScriptedSampler([False] * 100, limit=100)

    def kills(handle: Any) -> Any:
        member.call(str)
        raise ActorDied("killed")

    with pytest.raises(EngineError, match="died 6 times in a row"):
        member.call(kills)
    assert member.made == 1 + MAX_DEATHS_PER_CALL


def test_a_question_counts_deaths_after_which_another_had_it_replaced() -> None:
    member = ScriptedSampler([False] * 100, limit=100)

    def kills(handle: Any) -> Any:
        member.replace(handle, ActorDied("killed"), 0)
        raise ActorDied("killed")

    with pytest.raises(EngineError, match="died 6 times in a row"):
        member.call(kills)


def test_too_many_in_all() -> None:
    member = ScriptedSampler([True, False] * 9, limit=2)
    assert [member.call(str) for _ in range(2)] == ["2", "3"]
    with pytest.raises(EngineError, match=r"died 3 times, .* Expected at most 2 \(cluster\.replaced\)"):
        member.call(str)


def test_whatever_ends_an_actor_is_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError

    def ended(reference: Exception) -> None:
        raise reference

    monkeypatch.setattr(ray, "get", ended)
    monkeypatch.setattr(ray, "wait", lambda references, **_: (references[:1], references[1:]))
    member, group = SupervisedActor.__new__(SupervisedActor), SupervisedRanks.__new__(SupervisedRanks)
    for death in (ActorDiedError(), OutOfMemoryError("The node is short of memory"), NodeDiedError("It is gone")):
        with pytest.raises(ActorDied):
            member._get(death)
        with pytest.raises(ActorDied):
            group._get([death])


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that Ray is asked for."""
    import ray

    requests: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **options: requests.append(address))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return requests


def test_without_an_address_a_cluster_of_its_own_is_started_whoever_else_has_one_here(joined: list[str]) -> None:
    ray_actors.connect(None)
    assert joined == ["local"]


def test_a_submitted_job_joins_the_cluster_that_runs_it(joined: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    ray_actors.connect(None)
    assert joined == ["10.0.0.1:6379"]


def test_an_address_given_is_the_one(joined: list[str]) -> None:
    ray_actors.connect("auto")
    assert joined == ["auto"]
