"""Figures that were written into pages by hand, compared with the lines of results/*.jsonl.

A comment before a paragraph, a list or a table gives the line of each figure in it, in the order of the text:

    <!-- figures:
    worlds.search.base.success = 0%;
    worlds.search.success = 89% (80.5 to 92)
    -->

The text has one number (the value), two (lowest and highest) or three (value, lowest and highest, in any order, as the
values of three seeds). `A (B)` is the value and the lowest, `A of B` the value and the n of the line. Each number has
to be that of the newest line of the name, within half a unit of its last digit; `within A` and `at most A` are rounded
up. `NAME.low`, `NAME.high` and `NAME.n` are parts of a line; `NAME@COMMIT` is the newest line of that commit, where
later ones were measured with other settings; `NAME, NAME = TEXT` is one figure for two lines. A whole number for a
fraction is the number of cases of n. `python bench/readme.py --check` compares all pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]
Lines = Mapping[str, Sequence[Line]]

COMMENT = re.compile(
    r"^ *<!-- figures:(?P<pairs>.*?)--> *\n(?P<block>(?:[^\n]*\S[^\n]*(?:\n|\Z))+)", re.DOTALL | re.MULTILINE
)
FENCED = re.compile(r"^( *)```.*?^ *```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<decimals>\d+))?(?:e(?P<exponent>[-+]?\d+))?")
COUNT = re.compile(r"[\d,]+ of [\d,]+")
PARTS = ("low", "high", "n")
SHARES = ("share", "fraction", "pass", "accuracy", "well-formed", "valid", "agrees", "at-first", "repaired")


def read_lines(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of results/*.jsonl by name, the newest last."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(results.glob("*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            lines.setdefault(line["name"], []).append(line)
    return lines


def wrong_figures(page: str, text: str, lines: Lines) -> list[str]:
    """Return an error for each figure of a page that is not the one of its line, or not where its comment says.

    A line may have `values` in place of value, low and high; then the text has these numbers in this order.
    """
    text = FENCED.sub("", text)
    comments = list(COMMENT.finditer(text))
    errors = [f"{page}: {error}" for comment in comments for error in _errors(comment, lines)]
    if (count := text.count("<!-- figures")) != len(comments):
        errors.append(
            f"{page}: got {count} comments with figures, {len(comments)} of them before a block; expected each on "
            "lines of its own as `<!-- figures: NAME = TEXT; ... -->`, and the block without a blank line after it."
        )
    return errors


def _errors(comment: re.Match[str], lines: Lines) -> Iterator[str]:
    block = " ".join(re.sub("<!--.*?-->", "", comment["block"], flags=re.DOTALL).split())
    position, previous = 0, "its start"
    for pair in filter(None, map(str.strip, comment["pairs"].split(";"))):
        names, _, shown = (" ".join(part.split()) for part in pair.partition(" = "))
        if not NUMBER.search(shown):
            yield f"got {pair!r}; expected NAME = TEXT with a number in the text. Correct the comment."
            continue
        match = re.compile(rf"(?<![\d.,-]){re.escape(shown)}(?![\d%]|[.,]\d|e[-+]?\d)").search(block, position)
        if match:
            position, previous = match.end(), repr(shown)
        else:
            yield (
                f"got no {shown!r} ({names}) in the block {block[:40]!r}... after {previous}; expected the figures of "
                "the comment in the order of the text. Correct the comment, or write the figure of the line."
            )
        for name in names.split(", "):
            yield from _differences(name, shown, lines)


def _differences(name: str, shown: str, lines: Lines) -> Iterator[str]:
    """Yield an error if there is no such line, or if the text does not show its numbers."""
    name, part, commit = _parsed(name, lines)
    matching = [line for line in lines.get(name, ()) if line["commit"].startswith(commit)]
    if not matching:
        of = f" of commit {commit}" if commit else ""
        yield (
            f"got the name {name!r}, of which results/ has no line{of}; expected one that was measured. Correct the "
            "name, or take the figure out of the comment."
        )
        return
    line, numbers = matching[-1], list(NUMBER.finditer(shown))
    expected = _wanted(line, part, shown, len(numbers))
    if len(expected) == 3 and "values" not in line:
        numbers.sort(key=_read)
    share = line["unit"].startswith(SHARES) and not part
    if len(expected) == len(numbers) and all(
        _agrees(number, value, line, shown, share) for number, value in zip(numbers, expected, strict=True)
    ):
        return
    yield (
        f"got {shown!r} for {name}; expected {_described(line)}. Write the figures of the line, or measure again; "
        "where an older line with other settings is meant, write NAME@COMMIT."
    )


def _parsed(name: str, lines: Lines) -> tuple[str, str, str]:
    """Return a line's name, the part of it that is meant ("" for all), and its commit ("" for the newest)."""
    stem_of_commit, _, commit = name.rpartition("@")
    for candidate, of in ((name, ""), (stem_of_commit, commit)):
        stem, _, part = candidate.rpartition(".")
        if candidate in lines:
            return candidate, "", of
        if part in PARTS and stem in lines:
            return stem, part, of
    return name, "", ""


def _wanted(line: Line, part: str, shown: str, count: int) -> list[float]:
    """Return the numbers that a text should have; [] for a count of numbers that no form has."""
    if part:
        return [line[part]]
    if "values" in line:
        return list(line["values"])
    if re.fullmatch(r"\S+ \(\S+\)", shown):
        return [line["value"], line["low"]]
    if COUNT.fullmatch(shown):
        share = line["unit"].startswith(SHARES)
        return [line["value"] * line["n"] if share else line["value"], line["n"]]
    forms = {1: [line["value"]], 2: [line["low"], line["high"]], 3: sorted((line["low"], line["value"], line["high"]))}
    return forms.get(count, [])


def _agrees(number: re.Match[str], value: float, line: Line, shown: str, share: bool) -> bool:
    """Return True if a number is a value within half a unit of its last digit, as percent or as a count of n."""
    written = _read(number)
    step = 10.0 ** (int(number["exponent"] or 0) - len(number["decimals"] or ""))
    tolerance = step / 2 * (1 + 1e-6)
    if shown.startswith(("within ", "at most ")):
        return 0 <= written - value < step
    if COUNT.fullmatch(shown):
        return abs(written - value) < 0.01
    if ("%" in shown or shown.endswith(" points")) and line["unit"] != "%":
        return abs(written - 100 * value) <= tolerance
    if share and step == 1:  # a count of cases, whose line has six digits
        return abs(written - value * line["n"]) < 0.01 or written == value
    return abs(written - value) <= tolerance


def _read(number: re.Match[str]) -> float:
    return float(number[0].replace(",", ""))


def _described(line: Line) -> str:
    values = [f"{value:.6g}" for value in line.get("values") or (line["value"], line["low"], line["high"])]
    figures = ", ".join(values) if "values" in line else f"{values[0]} ({values[1]} to {values[2]})"
    return f"{figures}, n {line['n']}, {line['unit']}, of commit {line['commit']}"
