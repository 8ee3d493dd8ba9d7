"""Figures that pages show by hand are those of the lines that a comment names."""

from __future__ import annotations

import json
from typing import Any

import pytest

import common
import figures
import readme


def line(value: float, low: float, high: float, unit: str = "share", n: int = 100, commit: str = "bbbbbbb") -> Any:
    return {"value": value, "low": low, "high": high, "unit": unit, "n": n, "commit": commit}


LINES = {
    "search.base": [line(0.02, 0.02, 0.02)],
    "search.team": [line(0.5, 0.5, 0.5, commit="aaaaaaa"), line(0.976, 0.965, 0.99)],
    "solved": [line(0.0833333, 0.0833333, 0.0833333, "fraction", n=12)],
    "supported": [line(163, 163, 163, "families", n=178)],
    "pass@1": [line(0.2, 0.1, 0.3, "pass@1")],
    "gap": [line(6.19172e-06, 6.19172e-06, 6.19172e-06, "nats")],
    "points": [line(-0.229167, -0.916667, 29.1667, "points")],
    "curve": [{"values": [0.0625, 0.21, 0.4], "unit": "share", "n": 3, "commit": "curves.json"}],
    "growth": [line(0.047, 0.047, 0.047, "%")],
    "tokens": [line(9403.6, 9403.6, 9403.6, "tokens/s")],
}


def wrong(pairs: str, block: str) -> list[str]:
    return figures.wrong_figures("page.md", f"Words.\n\n<!-- figures: {pairs} -->\n{block}\n\nMore.\n", LINES)


@pytest.mark.parametrize(
    ("pairs", "block"),
    [
        ("search.base = 2%", "Success is 2% before."),
        ("search.team = 97.6%; search.base = 2%", "97.6%, and 2% before."),
        ("search.team = 98% (96 to 99)", "| 98% (96 to 99) |"),  # 0.965 is as near to 96 as to 97
        ("search.team = 98% (97 to 99)", "| 98%\n(97 to 99) |"),
        ("search.team = 99, 97 and 98%", "by seed 99, 97 and 98%"),
        ("search.team = 97 to 99%", "97 to 99%"),
        ("search.team = 98% (97)", "98% (97)"),
        ("search.team = 96.5 to 99.0 points", "96.5 to 99.0 points"),
        ("pass@1 = 20%; pass@1.low@bbb = 10%", "20%, at least 10%"),
        ("search.team = 98% of tasks (97 to 99%)", "98% of tasks (97 to 99%)"),
        ("search.team.low = 97%", "at least 97%"),
        ("search.team = 0.976", "0.976 of the tasks"),
        ("search.team@aaaaaaa = 50%", "50% at another rate"),
        ("search.base, search.base = 2%", "2% in both"),
        ("solved = 1 of 12; solved = 1", "1 of 12 solved, 1 ran"),
        ("supported = 163 of 178; supported.n = 178", "163 of 178, all 178"),
        ("gap = 6e-6; gap = 0.0000062", "6e-6, or 0.0000062"),
        ("gap = within 6.2e-6; gap = at most 7e-6", "within 6.2e-6 nats, at most 7e-6"),
        ("points = -0.2 (-0.9 to 29.2)", "-0.2 (-0.9 to 29.2)"),
        ("curve = 6, 21 and 40%", "6, 21 and 40%"),
        ("growth = 0.05%", "0.05%"),
        ("tokens = 9,404", "9,404 tokens/s"),
    ],
)
def test_a_figure_within_half_a_unit_of_its_last_digit_is_right(pairs: str, block: str) -> None:
    assert wrong(pairs, block) == []


@pytest.mark.parametrize(
    ("pairs", "block", "error"),
    [
        ("search.team = 97%", "97%", "got '97%' for search.team; expected 0.976 (0.965 to 0.99), n 100, share, of"),
        ("search.team = 97.7%", "97.7%", "got '97.7%' for search.team"),
        ("search.team = 98% (95 to 99)", "98% (95 to 99)", "got '98% (95 to 99)' for search.team"),
        ("search.team = 98% (1, 2, 3)", "98% (1, 2, 3)", "got '98% (1, 2, 3)' for search.team"),
        ("search.team = 98% (99)", "98% (99)", "got '98% (99)' for search.team"),
        ("search.team.low = 98%", "98%", "got '98%' for search.team"),
        ("solved = 2 of 12", "2 of 12", "got '2 of 12' for solved"),
        ("solved = 1 of 13", "1 of 13", "got '1 of 13' for solved"),
        ("supported = 163 of 179", "163 of 179", "got '163 of 179' for supported"),
        ("gap = within 6.1e-6", "within 6.1e-6", "got 'within 6.1e-6' for gap"),
        ("gap = within 6.3e-6", "within 6.3e-6", "got 'within 6.3e-6' for gap"),
        ("curve = 6, 20 and 40%", "6, 20 and 40%", "expected 0.0625, 0.21, 0.4, n 3, share, of commit curves.json"),
        ("searcher.team = 98%", "98%", "got the name 'searcher.team', of which results/ has no line; expected one"),
        ("search.team@ccc = 98%", "98%", "of which results/ has no line of commit ccc"),
        ("search.base = 2%", "12% or 2", "got no '2%' (search.base) in the block '12% or 2'... after its start"),
        ("points = -0.2; search.base = 2%", "2% at -0.2", "got no '2%' (search.base) in the block '2% at -0.2'... af"),
        ("search.base = 2%", "\n2%", "got 1 comments with figures, 0 of them before a block"),
        ("search.base: 2%", "2%", "got 'search.base: 2%'; expected NAME = TEXT"),
    ],
)
def test_an_error_says_what_the_line_has(pairs: str, block: str, error: str) -> None:
    errors = wrong(pairs, block)
    assert len(errors) == 1
    assert errors[0].startswith("page.md: ")
    assert error in errors[0]


def test_lines_are_read_in_their_order_and_code_on_a_page_is_no_comment(tmp_path: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"name": "x", "value": 1}\n{"name": "x", "value": 2}\n')
    assert [read_line["value"] for read_line in figures.read_lines(tmp_path)["x"]] == [1, 2]
    assert figures.wrong_figures("page.md", "```\n<!-- figures: x = 2 -->\n2\n```\n", {}) == []


def test_curves_and_tables_from_other_files_are_lines_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    seeds = [[[0, 0.6], [40, 0.2]], [[0, 0.6], [40, 0.3]], [[0, 0.6], [40, 0.1]]]
    (tmp_path / "openspiel-curves.json").write_text(json.dumps({"kuhn": {"figure": "exploitability", "seeds": seeds}}))
    (tmp_path / "presets-curves.json").write_text(
        json.dumps({"gdpo": [[[10 * step, 0.1 * step] for step in range(1, 6)]]})
    )
    points = [{"situation": "relay", "dial": 0.8, "side": "alone", "success": [0.5, 0.4]}]
    points += [{"situation": "relay", "dial": 0.8, "side": side, "success": [0.9, 0.6]} for side in ("team", "shared")]
    (tmp_path / "worth.json").write_text(json.dumps(points))
    lines = dict(readme.other_lines())
    assert {name: lines["curve.kuhn.40"][name] for name in ("value", "low", "high")} == {
        "value": 0.2,
        "low": 0.1,
        "high": 0.3,
    }
    assert lines["curve.gdpo"]["values"] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert lines["worth.relay.0.8.team"]["value"] == pytest.approx(0.75)
    assert lines["worth.relay.0.8.gain"]["value"] == pytest.approx(0.3)
    assert lines["worth.relay.0.8.shared.gain"]["low"] == pytest.approx(0.2)


def test_the_page_of_families_has_as_many_as_its_lines() -> None:
    """bench/families.py writes the page and the lines at once."""
    supported, rest = (common.ROOT / "docs/families.md").read_text().split("## Not supported")
    rows = [row for row in supported.splitlines() if row.startswith("| ") and not row.startswith("| Family")]
    left_out = [row for row in rest.splitlines() if row.startswith("| ") and not row.startswith("| Family")]
    latest = common.latest()
    assert len(rows) == latest["families.supported"]["value"]
    assert len(rows) + len(left_out) == latest["families.supported"]["n"]
    worst = max(float(row.split("|")[-2]) for row in rows)
    assert worst == pytest.approx(latest["families.max_diff"]["value"], rel=0.05)
