"""Every situation of the page names tests that are there."""

from __future__ import annotations

import pytest

import correctness
from common import ROOT

PAGE = correctness.PAGE.read_text()


@pytest.mark.parametrize("situation", correctness.situations(PAGE), ids=lambda situation: situation.name)
def test_the_tests_of_a_situation_are_there(situation: correctness.Situation) -> None:
    assert situation.tests
    for test in situation.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert f"def {name or 'test_'}" in text, test


def test_every_row_is_read() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| situation")]
    assert len(correctness.situations(PAGE)) == len(rows)
    assert 0 < len(correctness.situations(PAGE.partition(correctness.SECOND)[2])) < len(rows)
