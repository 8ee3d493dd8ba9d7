"""One server for all tests of the package, whose sessions end with each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cadre_tinker.served import Served, serving


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("tinker")) as server:
        yield server


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    yield running
    for session in list(running.service._sessions):
        running.post(f"sessions/{session}/finish", {})
