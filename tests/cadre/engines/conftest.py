"""Tiny models, made once a session, and a way to run an engine on them."""

from __future__ import annotations

import pytest

from tests.cadre.engines import tiny


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A folder with a tiny model for every architecture, by name."""
    root = tmp_path_factory.mktemp("models")
    return {name: tiny.build(root / name, name) for name in tiny.ARCHITECTURES}


@pytest.fixture
def engine(folders):
    """Make engines that are closed after the test: `engine()`, `engine("gemma2", seed=3)`."""
    created = []

    def make(model="llama", **settings):
        created.append(tiny.engine(folders.get(model, model), **settings))
        return created[-1]

    yield make
    for item in created:
        item.close()


@pytest.fixture
def learner(folders):
    """Make learners, each with its engine, that are closed after the test: `learner(learning_rate=1e-3)`."""
    created = []

    def make(model="llama", **settings):
        created.append(tiny.learner(folders.get(model, model), **settings))
        return created[-1]

    yield make
    for item in created:
        item.close()


@pytest.fixture
def team(folders):
    """Make engines of several adapters that are closed after the test: `team({"tool": 4}, learning_rate=1e-2)`."""
    created = []

    def make(ranks, model="llama", **settings):
        created.append(tiny.team(folders.get(model, model), ranks, **settings))
        return created[-1]

    yield make
    for item in created:
        item.close()
