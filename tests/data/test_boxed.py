"""The last box of a text, and which way the arrow between data sets and rewards points."""

import ast
from pathlib import Path

import pytest

import cadre
from cadre.data.boxed import last_boxed


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        ("so \\boxed{1} or \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{a{b}c} and then", "a{b}c"),
        ("\\fbox{3}", "3"),
        ("\\boxed {3}", "3"),
        ("\\boxed{3", None),
        ("\\boxed{3}} and }", "3"),
        ("\\boxed{{}{x}} }", "{}{x}"),
        ("\\boxed 3, {4}", None),
        ("so \\boxed{5}. I put it into \\boxed as asked.", "5"),
        ("so \\boxed{5}, \\boxed 3, {4}", "5"),
        ("so \\boxed{5} or \\boxed{3", None),  # it breaks off
        ("no box {3}", None),
        ("", None),
    ],
)
def test_last_box(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


def test_data_sets_know_nothing_of_rewards() -> None:
    for path in (Path(cadre.__file__).parent / "data").glob("*.py"):
        imported = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not [name for name in imported if name and name.startswith("cadre.rewards")], path
