"""`cadre list`: what is bundled, by what it is about."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Annotated

import typer

from cadre.cli.terminal import WIDTH, console
from cadre.envs import ENVS
from cadre.errors import ConfigError, nearest
from cadre.experiment import config

GROUPS = {
    "games": ("plan-path", "sokoban", "boxoban", "sudoku"),
    "maths": ("maths",),
    "code": ("code", "pairs"),
    "writing": ("tldr", "arxiv", "story"),
    "patterns": ("debate", "gather", "lead", "refine", "review"),
}
INDENT = " " * 4


def list_all(
    task: Annotated[str, typer.Argument(help="a task, such as plan-path: what each of its recipes trains")] = "",
) -> None:
    """The bundled environments and recipes."""
    for line in _of_task(task) if task else _overview():
        console.print(line, markup=False, highlight=False)


def _overview() -> list[str]:
    """Every name, those of a task on a line: `plan-path  -alone` stands for plan-path and plan-path-alone."""
    return [
        "Environments, and those named after them (cadre check NAME plays one):",
        *_lines(ENVS),
        "",
        "Recipes (cadre train NAME; cadre list plan-path says what each trains):",
        *_lines(config.recipes()),
    ]


def _lines(names: Iterable[str]) -> list[str]:
    """The names by group; a task's own line where others are named after it."""
    lines = []
    for group, tasks in GROUPS.items():
        families = [_of(task, names) for task in tasks]
        plain = [name for family in families if len(family) == 1 for name in family]
        rows = [_row(task, family) for task, family in zip(tasks, families, strict=True) if len(family) > 1]
        rows += [" ".join(plain)] if plain else []
        heads = [f"  {group:<9}", *[" " * 11] * (len(rows) - 1)]
        lines += [line for head, row in zip(heads, rows, strict=False) for line in _wrapped(head, row)]
    return lines


def _row(task: str, family: list[str]) -> str:
    if task not in family:
        return " ".join(family)
    return " ".join([f"{task:<9}", *(name.removeprefix(task) for name in family if name != task)])


def _wrapped(head: str, row: str) -> list[str]:
    return textwrap.wrap(
        row, WIDTH, initial_indent=head, subsequent_indent=" " * 21, break_on_hyphens=False, drop_whitespace=True
    )


def _of_task(task: str) -> list[str]:
    """A line for every recipe of a task, in the words of its first line."""
    known = [name for tasks in GROUPS.values() for name in tasks]
    if task not in known:
        raise ConfigError(f"list: got {task!r}; expected one of {', '.join(known)}.{nearest(task, known)}")
    recipes, lines = config.recipes(), []
    for name in _of(task, recipes):
        about = recipes[name].read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines += [name, *textwrap.wrap(about, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)]
    return lines or [f"{task} has no recipe; name it in a YAML of your own: env: {task}"]


def _of(task: str, names: Iterable[str]) -> list[str]:
    """The names of a task: its own and those that go on from it."""
    return [name for name in names if name == task or name.startswith(f"{task}-")]
