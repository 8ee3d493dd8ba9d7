"""The programs that the documentation calls short are: lines that a user writes, imports included."""

from __future__ import annotations

import pytest

from tests.docs.blocks import blocks


@pytest.mark.parametrize(("number", "most"), [(0, 6), (2, 12), (3, 18)], ids=["rows", "team", "team_tool"])
def test_lines_of_a_program(number: int, most: int) -> None:
    page = [block for block in blocks("python") if block.page == "docs/ten_lines.md"]
    lines = [line for line in page[number].text.splitlines() if line.strip()]
    assert len(lines) <= most, f"{len(lines)} lines"
