"""Commands of several runs, and of what lies behind one: compare, sweep, prove, audit, plot, report; prompts."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cadre.cli.terminal import (
    STOPPED,
    WIDTH,
    AsJson,
    Base,
    Overrides,
    Target,
    Trust,
    complete_recipe,
    complete_run,
    print_lines,
    require_new,
    stderr,
    visible,
)
from cadre.config.experiment import load
from cadre.config.resolve import find_target, resolve_for_evaluation, resolve_for_trees, resolve_recipe
from cadre.errors import ConfigError
from cadre.files import to_json
from cadre.runs.folder import expand_sweeps
from cadre.runs.notebook import make_console
from cadre.settings.yaml_file import parse_yaml, typed_keys
from cadre.statistics import Interval
from cadre_analysis.audit import AuditSettings, check_auditable, run_audit
from cadre_analysis.compare import compare_runs, format_comparison
from cadre_analysis.plots import plot_command, plot_comparison
from cadre_analysis.prompts import optimise_on
from cadre_analysis.prove import Request, make_plan, prove_on
from cadre_analysis.prove_report import PAGE_FILE, RESULT_FILE, plan_lines, result_lines
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
        reports[name] = {part: asdict(audited) for part, audited in audits.items()}
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


# ---- cadre prove


def prove(
    recipe: Annotated[
        str, typer.Argument(help="a team's recipe or YAML file (see: cadre list)", autocompletion=complete_recipe)
    ],
    folder: Annotated[Path, typer.Option("--run", help="the folder of the experiment; the same command goes on")],
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option(min=2, help="trainings of each method")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="sampled in each training")] = 1_000_000,
    held_out: Annotated[int, typer.Option(min=2, help="tasks that every training is tested on")] = 200,
    first: Annotated[int, typer.Option(min=0, help="the first of them in the test split")] = 0,
    rates: Annotated[str, typer.Option(help="factors of the learning rate that are tried for each method")] = "1,3",
    agent: Annotated[
        str | None, typer.Option(metavar="ENV", help="the environment of the single agent; by default the task's own")
    ] = None,
    test_tokens: Annotated[
        int | None, typer.Option(min=1, help="that the untrained agent samples for each held-out task")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="METHOD", help="a method that is not trained, such as team-L1")
    ] = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="compare with an untrained agent too whose prompt GEPA evolves")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="print the plan and do nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a team and single agents alike, and say whether the team is worth its tokens: wins, loses or undecided.

    The plan is written before anything runs, and a folder keeps its plan. Writes a page, a picture and all episodes.
    """
    try:
        factors = tuple(float(factor) for factor in rates.split(","))
    except ValueError:
        raise ConfigError(f"--rates: got {rates!r}; expected numbers by comma, such as 0.3,1,3. Write them.") from None
    request = Request(seeds, tokens, held_out, first, factors, agent, test_tokens, tuple(without or ()), prompts)
    experiment = resolve_recipe(recipe, overrides or [])
    if plan:
        planned = make_plan(experiment, request)
        if as_json:
            sys.stdout.write(planned.model_dump_json() + "\n")
        else:
            print_lines(map(visible, plan_lines(planned)))
        return
    with _stoppable(folder):
        result = prove_on(stderr if as_json else make_console(), experiment, folder, request, None)
    if as_json:
        sys.stdout.write((folder / RESULT_FILE).read_text(encoding="utf-8"))
    else:
        print_lines(result_lines(result))
        print_lines([f"{folder / PAGE_FILE} has all of it."])


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """End the command on Ctrl-C, and say how it goes on."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        message = str(stopped) or f"Stopped; what is done of {folder} is kept, and the same command goes on."
        stderr.print(message, markup=False, highlight=False)
        raise typer.Exit(STOPPED) from None


# ---- cadre optimise-prompts


def optimise_prompts(
    recipe: Annotated[
        str, typer.Argument(help="a recipe or YAML file (see: cadre list)", autocompletion=complete_recipe)
    ],
    folder: Annotated[Path, typer.Option("--run", help="the folder of the optimisation; the same command goes on")],
    overrides: Overrides = None,
    tokens: Annotated[int, typer.Option(help="sampled on training tasks and for new prompts")] = 200_000,
    tasks: Annotated[int, typer.Option(help="of the training split: half to reflect on, half to choose by")] = 40,
    held_out: Annotated[int, typer.Option(help="tasks that are played before and after")] = 200,
    first: Annotated[int, typer.Option(min=0, help="the first of them in the test split")] = 0,
    seed: Annotated[int, typer.Option(help="seed of all draws")] = 0,
    writer: Annotated[
        str | None,
        typer.Option(
            metavar="{model: M, url: U}", help="the endpoint that writes prompts; by default the first role's"
        ),
    ] = None,
) -> None:
    """Evolve the system messages of a team's roles with GEPA, and write them as a recipe. No weights change."""
    try:
        endpoint = parse_yaml(writer) if writer else None
    except ValueError:
        endpoint = writer
    plan = {"tokens": tokens, "tasks": tasks, "held_out": held_out, "first": first, "seed": seed, "writer": endpoint}
    experiment = resolve_for_evaluation(load(recipe, overrides or []), typed=typed_keys(overrides or []))
    with _stoppable(folder):
        print_lines(optimise_on(make_console(), experiment, folder, plan).lines())


# By panel of `cadre --help`.
COMMANDS = {
    "Train": {"sweep": sweep, "prove": prove, "optimise-prompts": optimise_prompts},
    "Evaluate": {"compare": compare, "audit": audit},
    "Look at runs": {"plot": plot_command, "report": report},
}
