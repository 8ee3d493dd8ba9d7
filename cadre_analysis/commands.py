"""Commands that compare runs, audit their advantages and report on them: compare, audit, plot, report, sweep."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cadre.cli.terminal import (
    WIDTH,
    AsJson,
    Base,
    Overrides,
    Target,
    Trust,
    complete_run,
    print_lines,
    require_new,
    visible,
)
from cadre.config.resolve import find_target, resolve_for_trees
from cadre.errors import ConfigError
from cadre.files import to_json
from cadre.runs.folder import expand_sweeps
from cadre.statistics import Interval
from cadre_analysis.audit import AuditSettings, check_auditable, run_audit
from cadre_analysis.compare import MEASURES, compare_runs, format_comparison
from cadre_analysis.plots import plot_command, plot_comparison
from cadre_analysis.report import report
from cadre_analysis.sweep import sweep
from cadre_analysis.tables import format_table

# ---- cadre compare


def compare(
    context: typer.Context,
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="the folders of runs", autocompletion=complete_run)
    ],
    at: Annotated[str, typer.Option(help="the evaluation of each run: last, best, or a step")] = "last",
    max_tokens: Annotated[
        float | None, typer.Option(min=1, help="only evaluations after at most this many sampled tokens")
    ] = None,
    measure: Annotated[str, typer.Option(help="success or reward")] = "success",
    unpaired: Annotated[bool, typer.Option("--unpaired", help="the methods played different tasks")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="draw the methods' curves, a new file")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs on the held-out tasks of their training. Runs that differ in their seed alone are one method; every
    other method is compared with that of the first run, paired over tasks and seeds."""
    if measure not in MEASURES:
        raise ConfigError(f"--measure: got {measure}; expected {' or '.join(MEASURES)}. Name one of them.")
    if at not in ("last", "best") and not (at.isascii() and at.isdigit()):
        raise ConfigError(f"--at: got {at}; expected last, best, or the step of an evaluation, such as 30. Name one.")
    if plot is not None:
        require_new([plot], "compare --plot")
    comparison = compare_runs(expand_sweeps(folders), measure, at, max_tokens, unpaired)
    if plot is not None:
        plot_comparison(comparison, plot)
    if as_json:
        sys.stdout.write(to_json(asdict(comparison)) + "\n")
    else:
        print_lines(map(visible, format_comparison(comparison)))


# ---- cadre audit

AUDIT_COLUMNS = ("decisions of", "number", "correlation", "explained", "at most", "matter")


def audit(
    target: Target,
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, help="trees to sample, of the training split")] = 16,
    decisions: Annotated[int, typer.Option(min=1, help="decisions to audit, each for one role")] = 64,
    plays: Annotated[int, typer.Option(min=2, help="episodes that each completion is rolled out in")] = 8,
    seed: Annotated[int, typer.Option(help="seed of the random draws")] = 0,
    base: Base = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Compare a run's advantages with executed counterfactuals: completions rolled out to the end with fresh noise."""

    # With --json stdout holds nothing but the report.
    report_progress = sys.stderr.write if as_json else lambda line: print_lines([line.rstrip()])
    settings = AuditSettings(tasks, decisions, plays, seed)
    runs = [str(folder) for folder in expand_sweeps([Path(target)])]
    reports: dict[str, dict[str, Any]] = {}
    for name in runs:
        resolved = find_target(name, overrides or [], trust=trust)
        experiment = resolve_for_trees(resolved.config, resolved.env, resolved.typed)
        check_auditable(experiment)
        audits = run_audit(experiment, resolved.run, settings, base, report_progress)
        reports[name] = {part: audited.as_dict() for part, audited in audits.items()}
        if not as_json:
            print_lines([*([name] if len(runs) > 1 else []), *format_audit(reports[name])])
    if as_json:
        sys.stdout.write(to_json(reports if len(runs) > 1 else reports[runs[0]]) + "\n")


def format_audit(report: Mapping[str, Mapping]) -> list[str]:
    """Return the table of an audit, all decisions first, and the meaning of its columns."""

    def format_value(interval: Interval) -> str:
        value, low, high = interval
        return f"{value:.2f} [{low:.2f}, {high:.2f}]"

    rows: list[tuple[str, ...]] = [AUDIT_COLUMNS]
    for name, audited in sorted(report.items(), key=lambda item: item[0] != "all"):
        values = [format_value(audited[key]) for key in ("correlation", "explained", "ceiling", "matter")]
        rows.append((name, str(audited["decisions"]), *values))
    meaning = (
        "correlation of the advantage with the executed effect, its square, the most that plays so few let explain, "
        "and the share of decisions whose siblings really differ; 95% intervals by bootstrap over tasks"
    )
    return [*format_table(rows), *textwrap.wrap(meaning, WIDTH)]


# By panel of `cadre --help`.
COMMANDS = {
    "Train": {"sweep": sweep},
    "Evaluate": {"compare": compare, "audit": audit},
    "Look at runs": {"plot": plot_command, "report": report},
}
