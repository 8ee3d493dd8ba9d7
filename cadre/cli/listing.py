"""`cadre list`: what is bundled, by what it is about."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Annotated

import typer

from cadre.cli.terminal import WIDTH, console
from cadre.config.recipes import LEVELS, compose_recipe, real_tasks, recipes, task_variants
from cadre.errors import ConfigError, nearest
from cadre.plugins import distributions
from cadre.settings.models import KNOWN_MODELS

GROUPS = {
    "games": ("plan-path", "sokoban", "boxoban", "sudoku"),
    "theory": ("openspiel", "tiny-hanabi", "kuhn-poker", "leduc-poker", "coordination-matrix", "tiny-bridge"),
    "arenas": ("textarena", "reasoning-gym"),
    "maths": ("maths",),
    "code": ("code", "pairs"),
    "writing": ("tldr", "arxiv", "story"),
    "worlds": ("sql", "verilog", "pddl", "search", "lab", "two-robots"),
    "programs": ("program",),
    "patterns": ("debate", "gather", "lead", "refine", "review"),
}
INDENT = " " * 4
# The distribution that this package belongs to.
OWN = "cadre-rl"


def list_all(
    name: Annotated[str, typer.Argument(help="a task: what its recipes train; a recipe: all that it says")] = "",
) -> None:
    """The bundled environments and recipes."""
    for line in _told(name) if name else _overview():
        console.print(line, markup=False, highlight=False)


def _overview() -> list[str]:
    """Every name, those of a task on a line: `plan-path  -alone` stands for plan-path and plan-path-alone."""
    return [
        "Environments, and those named after them (cadre check NAME plays one):",
        *_lines(name for name, package in distributions().items() if package == OWN),
        *_of_other_packages(),
        "",
        "Recipes (cadre train NAME; cadre list plan-path says what each trains):",
        *_lines(recipes()),
        "",
        *_real(),
    ]


def _of_other_packages() -> list[str]:
    """Return a line for each other installed package that brings environments."""
    names: dict[str, list[str]] = {}
    for name, package in distributions().items():
        if package != OWN:
            names.setdefault(package or "unnamed package", []).append(name)
    return [line for package, own in names.items() for line in _wrapped(f"  {package}: ", " ".join(sorted(own)))]


def _lines(listed: Iterable[str]) -> list[str]:
    """The names by group; a task's own line where others are named after it."""
    names, lines = list(listed), []
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


def _real() -> list[str]:
    """How recipes of real size are named."""
    tasks = ", ".join(real_tasks())
    levels = ", ".join(f"{level} {meaning}" for level, meaning in LEVELS.items())
    rows = {
        "Real": "TASK-MODEL or TASK-MODEL-LEVEL, such as plan-path-qwen3-1.7b-L1 (cadre list it)",
        "  tasks": f"{tasks}; forms such as plan-path-solo too",
        "  models": ", ".join(KNOWN_MODELS),
        "  levels": levels,
    }
    return [
        line
        for head, row in rows.items()
        for line in textwrap.wrap(row, WIDTH, initial_indent=f"{head:<11}", subsequent_indent=" " * 11)
    ]


def _told(name: str) -> list[str]:
    """All that a recipe says, or a line for every recipe of a task."""
    known = [task for tasks in GROUPS.values() for task in tasks]
    if name in known:
        return _of_task(name)
    if name in recipes():
        return recipes()[name].read_text(encoding="utf-8").splitlines()
    if (real := compose_recipe(name)) is not None:
        return real.text().splitlines()
    raise ConfigError(f"list: got {name!r}; expected a recipe or one of {', '.join(known)}.{nearest(name, known)}")


def _of_task(task: str) -> list[str]:
    """A line for every recipe of a task, in the words of its first line."""
    lines = []
    for name in _of(task, recipes()):
        about = recipes()[name].read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines += [name, *textwrap.wrap(about, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)]
    for real in _of(task, real_tasks()):
        lines += textwrap.wrap(f"{real}-MODEL for {', '.join(task_variants(real))}", WIDTH, subsequent_indent=INDENT)
    return lines or [f"{task} has no recipe; name it in a YAML of your own: env: {task}"]


def _of(task: str, names: Iterable[str]) -> list[str]:
    """The names of a task: its own and those that go on from it."""
    return [name for name in names if name == task or name.startswith(f"{task}-")]
