"""Tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from cadre.cli.terminal import WIDTH


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first row is its head: aligned columns where they fit the width of a terminal,
    else a block for each row, its first cell above the others with their names."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if sum(widths) + 2 * (len(widths) - 1) <= WIDTH:
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    head, *body = rows
    label = max(map(len, head[1:]))
    lines: list[str] = []
    for title, *cells in body:
        lines += [title, *(f"  {name:<{label}}  {cell}" for name, cell in zip(head[1:], cells, strict=True))]
    return lines
