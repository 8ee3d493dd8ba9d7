"""Which cluster a run joins."""

import pytest

from cadre.cluster import ray_actors

ray = pytest.importorskip("ray")


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that Ray is asked for."""
    asked: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **options: asked.append(address))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return asked


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
