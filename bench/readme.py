"""Fills the tables of README.md and docs/ from results/, and compares the figures in their texts with it.

    python bench/readme.py            write the cells of all tables
    python bench/readme.py --check    name the pages whose tables differ from results/, and the figures in other texts
                                      that differ from their lines (bench/figures.py); end with 1 if any does

A cell is filled by a template before it, in which {NAME} is the newest line of that name with its range, and
{NAME.low}, {NAME.high} or {NAME.n} a part of it:

    | Sokoban: success | <!-- {sokoban.base.success} before, {sokoban.team.success} after --> 10.5% before, ... |

Columns with the title `commit`, `date` or `command` have those of the lines in the row's templates. A whole table is
filled by a pattern above it, with one choice per column after the first; {row} is the code in the first cell:

    <!-- cells: table.{row}.{plan-path|sokoban|sudoku}.success -->

A cell whose choice is `-` or that no line has stays as it is, and so does one that counts decisions.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import figures
from common import RESULTS, ROOT, latest

Line = Mapping[str, Any]
Lines = Mapping[str, Line]

TEMPLATE = re.compile(r"^<!-- (.*?) -->")
PATTERN = re.compile(r"^<!-- cells: (\S+) -->$")
NAME = re.compile(r"\{([^{}]+)\}")
COUNTED = ("tokens", "count", "attacks", "kills", "runs", "pairs", "variants", "families")
FRACTIONS = ("share", "pass", "accuracy", "fraction")


def pages(root: Path = ROOT) -> list[Path]:
    """Return README.md and all pages of docs/ but the log."""
    return [root / "README.md", *(page for page in sorted((root / "docs").rglob("*.md")) if page.name != "LOG.md")]


def shown(value: float, unit: str) -> str:
    """Return a value as tables show it."""
    if unit in COUNTED or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1%}" if unit in FRACTIONS else f"{value:.3g}"


def ranged(line: Line) -> str:
    """Return the value of a line, with the lowest and the highest where they differ from it."""
    value, low, high = (shown(line[part], line["unit"]) for part in ("value", "low", "high"))
    return value if low == high else f"{value} ({low} to {high})"


def filled(text: str, lines: Lines) -> str:
    """Return the text of a page with the cells of its tables filled. Raises ValueError for a name without a line."""
    out: list[str] = []
    pattern, titles = "", []
    for line in text.split("\n"):
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
            if not titles:
                titles = cells
            elif not set(line) <= set("|- "):
                row = _from_pattern(cells, pattern, lines) if pattern else _from_templates(cells, titles, lines)
                line = f"| {' | '.join(row)} |" if row != cells else line
        elif match := PATTERN.match(line):
            pattern, titles = match[1], []
        else:
            pattern, titles = "", []
        out.append(line)
    return "\n".join(out)


def _from_pattern(cells: Sequence[str], pattern: str, lines: Lines) -> list[str]:
    key = re.search("`([^`]+)`", cells[0])
    (choices,) = (choice for choice in NAME.findall(pattern) if choice != "row")
    row = list(cells)
    for column, choice in enumerate(choices.split("|"), start=1):
        name = pattern.replace("{row}", key[1] if key else "").replace("{" + choices + "}", choice)
        if choice != "-" and name in lines and not row[column].endswith("decisions"):
            row[column] = ranged(lines[name])
    return row


def _from_templates(cells: Sequence[str], titles: Sequence[str], lines: Lines) -> list[str]:
    row, named = list(cells), list[Line]()

    def figure(match: re.Match[str]) -> str:
        name, _, part = match[1].rpartition(".")
        if part in figures.PARTS and name in lines:
            return shown(lines[name][part], "count" if part == "n" else lines[name]["unit"])
        if match[1] not in lines:
            raise ValueError(f"results/ has no line {match[1]!r}, which the row {cells[0]!r} names. Correct the name.")
        named.append(lines[match[1]])
        return ranged(lines[match[1]])

    for column, cell in enumerate(cells):
        if template := TEMPLATE.match(cell):
            row[column] = f"{template[0]} {NAME.sub(figure, template[1])}"
    for column, title in enumerate(titles):
        if named and title in ("commit", "date", "command"):
            facts = [_command(line["command"]) if title == "command" else line[title] for line in named]
            row[column] = facts[-1] if title == "command" else ", ".join(dict.fromkeys(facts))
    return row


def _command(command: str) -> str:
    """Return the command of a line as code, with the present place of its program, or as text if that is gone."""
    command, comma, note = command.partition(", ")
    note = comma + note
    program = re.match(r"python (?:-m )?(?:bench|lab)[/.](\w+)(?:\.py)?", command)
    if program and (ROOT / "lab" / f"{program[1]}.py").is_file():
        return f"`python -m lab.{program[1]}{command[program.end() :]}`{note}"
    target = re.match(r"make ([\w-]+)", command)
    if program:
        is_here = (ROOT / "bench" / f"{program[1]}.py").is_file() or (ROOT / "bench" / program[1]).is_dir()
    else:
        is_here = target is None or re.search(rf"^{target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return f"`{command}`{note}" if is_here else f"{command}{note} (in that commit)"


def fifths(seeds: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Return the median over seeds of the mean value in each fifth of the tokens. A step belongs to the fifth in which
    it began; a fifth in which none did has the value of the step that covers it."""
    means = []
    for curve in seeds:
        starts = [0.0, *(tokens for tokens, _ in curve[:-1])]
        by_fifth: list[list[float]] = [[] for _ in range(5)]
        for start, (_, value) in zip(starts, curve, strict=True):
            by_fifth[min(4, int(5 * start / curve[-1][0]))].append(value)
        row: list[float] = []
        for values in by_fifth:
            row.append(fmean(values) if values else row[-1])
        means.append(row)
    return [median(column) for column in zip(*means, strict=True)]


def other_lines() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and lines of what results/ has in other forms, learning curves and the sides of lab/worth.py.

    `curve.PRESET` has the five values of `fifths`, `curve.PRESET.20` to `.100` one of them each; `curve.ROW.STEP` is
    the median of the seeds of a row of lab/openspiel.py; `worth.SITUATION.DIFFICULTY.SIDE` the success of a side,
    and `.gain` and `.shared.gain` those of the team and of one policy for both roles over a single agent.
    """
    for name, seeds in json.loads((RESULTS / "presets-curves.json").read_text()).items():
        values = fifths(seeds)
        facts = {"unit": "share", "n": len(seeds), "commit": "presets-curves.json"}
        yield f"curve.{name}", {"values": values, **facts}
        for part, value in zip((20, 40, 60, 80, 100), values, strict=True):
            yield f"curve.{name}.{part}", {"value": value, "low": value, "high": value, **facts}
    for name, row in json.loads((RESULTS / "openspiel-curves.json").read_text()).items():
        for points in zip(*row["seeds"], strict=True):
            values = [value for _, value in points]
            yield f"curve.{name}.{points[0][0]}", _line_of_seeds(values, row["figure"], "openspiel-curves.json")
    points = json.loads((RESULTS / "worth.json").read_text())
    success = {(point["situation"], point["dial"], point["side"]): point["success"] for point in points}
    for (situation, dial, side), values in success.items():
        name = f"worth.{situation}.{dial:g}"
        yield f"{name}.{side}", _line_of_seeds(values, "success", "worth.json")
        if side in ("team", "shared"):
            single_agent = success[situation, dial, "alone"]
            gains = [team - single for team, single in zip(values, single_agent, strict=True)]
            gain = f"{name}.gain" if side == "team" else f"{name}.{side}.gain"
            yield gain, _line_of_seeds(gains, "success", "worth.json")


def _line_of_seeds(values: Sequence[float], unit: str, source: str) -> dict[str, Any]:
    of_seeds = {"value": median(values), "low": min(values), "high": max(values), "n": len(values)}
    return of_seeds | {"unit": unit, "commit": source}


def outdated_pages(root: Path = ROOT) -> list[str]:
    """Return the pages whose tables differ from results/."""
    lines = latest() | dict(other_lines())
    texts = {page: page.read_text(encoding="utf-8") for page in pages(root)}
    return [str(page.relative_to(root)) for page, text in texts.items() if filled(text, lines) != text]


def wrong_figures() -> list[str]:
    """Return an error for each figure that a page shows by hand and that its line does not have."""
    lines = figures.read_lines(RESULTS) | {name: [line] for name, line in other_lines()}
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages()}
    return [error for page, text in texts.items() for error in figures.wrong_figures(page, text, lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        outdated, wrong = outdated_pages(), wrong_figures()
        for page in outdated:
            print(f"{page} differs from results/: run python bench/readme.py")
        print(*wrong, f"{len(outdated)} pages differ; {len(wrong)} wrong figures", sep="\n")
        raise SystemExit(bool(outdated or wrong))
    lines = latest() | dict(other_lines())
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8"), lines), encoding="utf-8")


if __name__ == "__main__":
    main()
