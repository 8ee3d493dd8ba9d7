"""`cadre audit`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from cadre.cli.terminal import Overrides, Target, Trust, console
from cadre.config.resolve import find_target
from cadre.files import to_json
from cadre.intervals import Interval

HEAD = ("decisions of", "number", "correlation", "explained", "at most", "matter")


def audit(
    target: Target,
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, help="trees that are sampled, of the training split")] = 16,
    decisions: Annotated[int, typer.Option(min=1, help="of their decisions, for a role each, that are audited")] = 64,
    plays: Annotated[int, typer.Option(min=2, help="episodes that each sibling is played out")] = 8,
    seed: Annotated[int, typer.Option(help="names the random draws")] = 0,
    base: Annotated[bool, typer.Option("--base", help="the models as they were before training")] = False,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """How well a run's credit agrees with executed counterfactuals: siblings played out with fresh noise."""
    from cadre.config.resolve import resolve_for_trees
    from cadre.evaluation.audit import AuditSettings, check_auditable, run_audit

    found = find_target(target, overrides or [], trust=trust)
    experiment = resolve_for_trees(found.config, found.env)
    check_auditable(experiment)
    tell = sys.stderr.write if as_json else lambda line: console.print(line.rstrip(), markup=False, highlight=False)
    report = run_audit(experiment, found.run, AuditSettings(tasks, decisions, plays, seed), base, tell)
    if as_json:
        sys.stdout.write(to_json({name: one.as_dict() for name, one in report.items()}) + "\n")
        return
    for line in lines({name: one.as_dict() for name, one in report.items()}):
        console.print(line, markup=False, highlight=False)


def lines(report: Mapping[str, Mapping]) -> list[str]:
    """The table, and what its columns are."""
    rows = [HEAD, *(_row(name, one) for name, one in sorted(report.items(), key=lambda item: item[0] != "all"))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [
        *table,
        "correlation of the advantage with the executed effect, its square, the most that plays so few let explain,",
        "and the share of decisions whose siblings really differ; 95% intervals by bootstrap over tasks",
    ]


def _row(name: str, one: Mapping) -> tuple[str, ...]:
    figures = (_interval(one[figure]) for figure in ("correlation", "explained", "ceiling", "matter"))
    return (name, str(one["decisions"]), *figures)


def _interval(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
