"""The table of inputs that went wrong names tests that exist, and the page shows the table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import correctness

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("situation", correctness.SITUATIONS, ids=lambda situation: situation.name)
def test_every_situation_names_tests_that_exist(situation: correctness.Situation) -> None:
    assert situation.tests
    for test in situation.tests:
        path, _, name = test.partition("::")
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / path).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert any(function.startswith("test_") for function in functions), path
        assert not name or name in functions, test


def test_the_page_shows_the_table() -> None:
    assert correctness.table() in correctness.PAGE.read_text()
