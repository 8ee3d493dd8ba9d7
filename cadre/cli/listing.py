"""`cadre list`: the installed environments and recipes, by the groups that their packages declare."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from cadre.cli.terminal import WIDTH, print_lines
from cadre.config.recipes import LEVELS, compose_recipe, example_recipe, real_tasks, recipes, task_groups, task_variants
from cadre.errors import ConfigError, nearest, reject_name
from cadre.plugins import distributions, recipe_folders
from cadre.settings.models import KNOWN_MODELS
from cadre.settings.yaml_file import dump_yaml

INDENT = " " * 4
PUBLISHED = "-as-published"  # a task's recipe with the settings of its paper


def list_all(
    name: Annotated[str, typer.Argument(help="a task: what its recipes train; a recipe: its text")] = "",
) -> None:
    """List the installed environments and recipes."""
    tasks = [task for groups in task_groups().values() for members in groups.values() for task in members]
    tasks += _ungrouped(distributions())
    if not name:
        lines = _list_names()
    elif name in tasks:
        lines = _list_recipes_of(name)
    elif name in recipes():
        lines = recipes()[name].read_text(encoding="utf-8").splitlines()
    elif (composed := compose_recipe(name)) is not None:
        lines = dump_yaml(composed, default_flow_style=None, width=110).splitlines()
    else:
        expected = f"expected a recipe or one of {', '.join(tasks)}."
        raise ConfigError(reject_name(f"list: got {name!r}", expected, nearest(name, tasks)))
    print_lines(lines)


def _list_names() -> list[str]:
    """Return the names of all environments and recipes, and how those of real size are composed."""
    folders = recipe_folders()
    example = example_recipe()
    plain = [task for task in real_tasks() if not task.endswith(PUBLISHED)]
    published = [task.removesuffix(PUBLISHED) for task in real_tasks() if task.endswith(PUBLISHED)]
    forms = f"{example}-single-agent too, and NAME{PUBLISHED} of {', '.join(published)}"
    composed = {
        "Real": f"TASK-MODEL or TASK-MODEL-LEVEL, such as {example}-qwen3-1.7b-L1 (cadre list it)",
        "  tasks": f"{', '.join(plain)}; forms such as {forms}",
        "  models": ", ".join(KNOWN_MODELS),
        "  levels": ", ".join(f"{level} {meaning}" for level, meaning in LEVELS.items()),
    }
    return [
        "Environments, and those named after them (cadre check NAME plays one):",
        *_group_names(distributions()),
        "",
        f"Recipes (cadre train NAME; cadre list {example} says what each trains):",
        *_group_names({name: folders[path.parent] for name, path in recipes().items()}),
        "",
        *(
            line
            for head, row in composed.items()
            for line in textwrap.wrap(row, WIDTH, initial_indent=f"{head:<11}", subsequent_indent=" " * 11)
        ),
    ]


def _group_names(names: Mapping[str, str]) -> list[str]:
    """Return lines with names by the groups of their distributions; `names` is {name: distribution}.

    The names of one task have a line: `plan-path  -tool` stands for plan-path and plan-path-tool. Names that their
    distribution puts into no group come last, under the distribution.
    """
    lines = []
    for distribution, groups in task_groups().items():
        if len(task_groups()) > 1:
            lines.append(f"  {distribution}:")
        own_names = [name for name, origin in names.items() if origin == distribution]
        for group, tasks in groups.items():
            rows = []
            for task in tasks:
                family = _names_of(task, own_names)
                suffixes = [name.removeprefix(task) for name in family if name != task]
                rows += [" ".join([task, *suffixes] if task in family else family)]
            lines += _wrap_row(f"  {group:<9}", "   ".join(filter(None, rows)))

    by_distribution: dict[str, list[str]] = {}
    for name in _ungrouped(names):
        by_distribution.setdefault(names[name] or "unnamed package", []).append(name)
    for distribution, ungrouped in by_distribution.items():
        lines += _wrap_row(f"  {distribution}: ", " ".join(sorted(ungrouped)))
    return lines


def _ungrouped(names: Mapping[str, str]) -> list[str]:
    """Return the names that their distribution puts into no group."""
    groups = task_groups()
    return [
        name
        for name, distribution in names.items()
        if not any(_names_of(task, [name]) for tasks in groups.get(distribution, {}).values() for task in tasks)
    ]


def _list_recipes_of(task: str) -> list[str]:
    """Return each recipe of a task with the first sentence of its file."""
    lines = []
    for name in _names_of(task, recipes()):
        text = recipes()[name].read_text("utf-8").splitlines()
        comment = itertools.takewhile(lambda line: line.startswith("#"), text)
        title = re.split(r"(?<=\.) ", " ".join(line.removeprefix("#").strip() for line in comment), maxsplit=1)[0]
        lines += [name, *textwrap.wrap(title, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)]
    for name in _names_of(task, real_tasks()):
        lines += textwrap.wrap(f"{name}-MODEL for {', '.join(task_variants(name))}", WIDTH, subsequent_indent=INDENT)
    return lines or [f"{task} has no recipe; name it in a YAML of your own: env: {task}"]


def _names_of(task: str, names: Iterable[str]) -> list[str]:
    """Return the names of a task: its own and those that continue it."""
    return [name for name in names if name == task or name.startswith(f"{task}-")]


def _wrap_row(head: str, row: str) -> list[str]:
    return textwrap.wrap(row, WIDTH, initial_indent=head, subsequent_indent=" " * 21, break_on_hyphens=False)
