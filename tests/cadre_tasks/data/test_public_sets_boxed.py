"""The last box of a text, and which way the arrow between data sets and rewards points."""

import pytest

from cadre_tasks.data.public_sets import last_boxed


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
        ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),  # a sign, not a brace
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{1 \\\\{} 2} }", "1 \\\\{} 2"),  # a line break, then a brace
        ("\\boxed{5} and \\boxed{}", "5"),
        ("\\boxed{ }", ""),
        ("no box {3}", None),
        ("", None),
    ],
)
def test_last_box(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed
