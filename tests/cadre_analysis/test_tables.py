"""Tables that fit a terminal."""

from cadre_analysis.tables import format_table

HEAD = ("method", "success", "gain")


def test_columns_are_aligned_where_they_fit() -> None:
    assert format_table([HEAD, ("a", "5%", "+1"), ("team", "10%", "+2")]) == [
        "method  success  gain",
        "a       5%       +1",
        "team    10%      +2",
    ]


def test_a_row_that_is_too_wide_becomes_a_block() -> None:
    name = "runs/" + "x" * 70
    lines = format_table([HEAD, (name, "5%", "+1")])
    assert lines == [name, "  success  5%", "  gain     +1"]
    assert max(map(len, lines)) <= 80
