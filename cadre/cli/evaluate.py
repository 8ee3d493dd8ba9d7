"""Commands that measure or serve a team: eval, compare, audit, serve."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadre.cli.terminal import (
    WIDTH,
    AsJson,
    At,
    Base,
    Best,
    Overrides,
    Target,
    Trust,
    complete_run,
    console,
    print_lines,
    reject_beside,
    reject_ignored,
    require_new,
    shorten_path,
    stderr,
    visible,
)
from cadre.config.resolve import find_target
from cadre.errors import ConfigError
from cadre.evaluation.evaluate import Repeats
from cadre.files import publish_atomically, to_json
from cadre.runs.progress import EvaluationProgress
from cadre.runs.sweeps import expand_sweeps
from cadre.statistics import Interval
from cadre.training.checkpoint import CheckpointChoice

if TYPE_CHECKING:
    from cadre.evaluation.compare import RunComparison

# ---- cadre eval

# Settings that eval takes as options, by the option.
OPTIONS = {
    "evaluate.tasks": "--tasks",
    "evaluate.first": "--first",
    "sampling.temperature": "--temperature",
    "train.seed": "--seed",
}
# Settings that greedy decoding ignores.
SAMPLING_ONLY = dict.fromkeys(("sampling.top_p", "sampling.top_k"), "it beside --temperature above 0")
LABEL_WIDTH = 11


def evaluate(
    context: typer.Context,
    target: Target,
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, help="tasks of the test split")] = 200,
    first: Annotated[int, typer.Option(min=0, help="the first of them")] = 0,
    all_tasks: Annotated[bool, typer.Option("--all", help="the whole test split, in place of --tasks")] = False,
    samples: Annotated[int, typer.Option(min=1, help="episodes per task, for pass@k and avg@k")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, max=1e6, help="of the samples; 0: greedy")] = 0.0,
    ks: Annotated[list[int] | None, typer.Option("--k", help="the k of pass@k; default powers of two")] = None,
    seed: Annotated[int, typer.Option(help="seed of the samples")] = 0,
    assign: Annotated[str, typer.Option(help="other policies for roles, such as tool=planner,planner=tool")] = "",
    base: Base = False,
    best: Best = False,
    at: At = None,
    trust: Trust = False,
    untrained: Annotated[str, typer.Option(help="comma-separated roles that play as before training")] = "",
    episodes: Annotated[Path | None, typer.Option(help="a new JSON Lines file for all prompts and completions")] = None,
    as_json: AsJson = False,
) -> None:
    """Play held-out tasks: greedily with one sample per decision, or several times at a temperature."""
    from cadre.evaluation.loaded_team import EvaluationRequest, run_evaluation

    if all_tasks:
        reject_beside(context, "--all", ["tasks"])
    if base:
        reject_beside(context, "--base", ["untrained", "best", "at"])
    if best:
        reject_beside(context, "--best", ["at"])
    if temperature == 0.0:
        reject_beside(context, "temperature 0", ["ks"])
        reject_ignored(overrides or [], "an evaluation at temperature 0", SAMPLING_ONLY)
    reject_ignored(overrides or [], "an evaluation of its own", OPTIONS)
    resolved = find_target(target, overrides or [], trust=trust)
    repeats = Repeats(samples, temperature, tuple(ks or ()), seed)
    if episodes is not None:
        require_new(episodes, "--episodes")

    choice = CheckpointChoice(best, at)
    request = EvaluationRequest(None if all_tasks else tasks, first, assign, untrained, base, choice)
    with EvaluationProgress(stderr) as progress:
        report, trees = run_evaluation(resolved, request, repeats, progress.begin)
    if episodes is not None:
        # One tree a line; images are left out, as the observations have their digests.
        lines = (to_json(asdict(tree), default=lambda png: None) for tree in trees)
        with publish_atomically(episodes) as (built,):
            built.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
    else:
        print_lines(format_report(report))


def format_report(report: Mapping[str, Any]) -> list[str]:
    """Return an evaluation's report as the lines that `cadre eval` prints, with rounded numbers."""
    rows: list[tuple[str, str]] = []

    # Success, with several samples a task also pass@k.
    tasks = f"{report['tasks']:,} held-out tasks"
    if "average" not in report:
        interval = _format_interval(report["low"], report["high"])
        rows.append(("success", f"{report['success']:.1%} of {tasks} {interval}"))
    else:
        value, low, high = report["average"]
        interval = _format_interval(low, high)
        rows.append(("success", f"{value:.1%} of {report['samples']} episodes a task, {tasks} {interval}"))
        for k, (value, low, high) in report["passing"].items():
            rows.append((f"pass@{k}", f"{value:.1%} {_format_interval(low, high)}"))

    # Tasks that the run was trained on, and that are therefore not held out.
    trained_on = report.get("trained_on", 0)
    if trained_on is None:
        rows.append(("trained on", "not known of these tasks, as what the run was trained on is not here"))
    elif trained_on:
        count = f"{trained_on:,} of these {report['tasks']:,} tasks"
        rows.append(("trained on", f"{count}: the run learned from them, and this says little of others"))

    # Means over episodes.
    rows.append(("reward", f"{report['reward']:+.2f} an episode"))
    if "decisions" in report:
        rows.append(("decisions", f"{report['decisions']:.1f} an episode"))
    if report["tokens"]:  # 0: nothing is known of them, as endpoints return no token ids
        rows.append(("tokens", f"{report['tokens']:,.0f} an episode"))
    if "exact" in report:
        rows.append(("exact", ", ".join(f"{name} {value:.4g}" for name, value in report["exact"].items())))
    if report["parts"]:
        rows.append(("parts", ", ".join(f"{name} {value:.2f}" for name, value in report["parts"].items())))

    # Conditions, and failures.
    limits = ", ".join(f"{role} {limit:,}" for role, limit in report["max_tokens"].items())
    temperature = report["temperature"]
    decoding = f"at temperature {temperature:g}" if temperature else "greedily"
    rows.append(("played", f"{decoding}; token limit: {limits}"))
    if "checkpoint" in report:
        rows.append(("weights", f"of the checkpoint after step {report['checkpoint']}"))
    if report["failures"]:
        episodes = report["tasks"] * report.get("samples", 1)
        unit = "episodes" if "samples" in report else "tasks"
        rows.append(("failed", f"{report['failures'] / episodes:.1%} of the {unit}; they count as not solved"))

    indent = " " * LABEL_WIDTH
    return [
        line
        for label, text in rows
        for line in textwrap.wrap(text, WIDTH, initial_indent=f"{label:<{LABEL_WIDTH}}", subsequent_indent=indent)
    ]


def _format_interval(low: float, high: float) -> str:
    return f"(95% interval {low:.1%} to {high:.1%})"


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
    as_json: AsJson = False,
) -> None:
    """Compare runs on the held-out tasks of their training. Runs that differ in their seed alone are one method; every
    other method is compared with that of the first run, paired over tasks and seeds."""
    from cadre.evaluation.compare import MEASURES, compare_runs

    if measure not in MEASURES:
        raise ConfigError(f"--measure: got {measure}; expected {' or '.join(MEASURES)}. Name one of them.")
    if at not in ("last", "best") and not (at.isascii() and at.isdigit()):
        raise ConfigError(f"--at: got {at}; expected last, best, or the step of an evaluation, such as 30. Name one.")
    comparison = compare_runs(expand_sweeps(folders), measure, at, max_tokens, unpaired)
    if as_json:
        sys.stdout.write(to_json(asdict(comparison)) + "\n")
    else:
        print_lines(map(visible, format_comparison(comparison)))


def format_comparison(comparison: RunComparison) -> list[str]:
    """Return a comparison as a table of the methods, a line for each difference, and what the intervals hold."""
    is_rate = comparison.measure == "success"

    def format_value(interval: Interval | None, signed: bool = False) -> str:
        if interval is None:
            return "-"
        percent, sign = "%" if is_rate else "", "+" if signed else ""
        value, low, high = (f"{number * 100:{sign}.1f}" if is_rate else f"{number:{sign}.3f}" for number in interval)
        return f"{value}{percent} [{low}, {high}]"

    rows = [("method", "seeds", "before", comparison.measure, "gain", "sampled tokens")]
    for method in comparison.methods:
        tokens = f"{sum(method.tokens) / len(method.tokens):,.0f}"
        values = (format_value(method.before), format_value(method.value), format_value(method.gain, signed=True))
        rows.append((shorten_path(method.name), str(len(method.seeds)), *values, tokens))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    for method in comparison.methods:
        if len(method.seeds) > 1:
            means = (f"{100 * mean:.1f}%" if is_rate else f"{mean:.3f}" for mean in method.by_seed)
            by_seed = ", ".join(f"{mean} (seed {seed})" for mean, seed in zip(means, method.seeds, strict=True))
            lines.append(f"{shorten_path(method.name)} by seed: {by_seed}")

    for difference in comparison.differences:
        pairs = [
            name for name, paired in (("tasks", difference.paired_tasks), ("seeds", difference.paired_seeds)) if paired
        ]
        paired = f", paired over {' and '.join(pairs)}" if pairs else ", unpaired"
        names = f"{shorten_path(difference.second)} - {shorten_path(difference.first)}"
        lines.append(f"{names}: {format_value(difference.value, signed=True)}{paired}")

    notes = [f"{comparison.tasks:,} held-out tasks; 95% intervals by bootstrap over seeds and tasks."]
    if not comparison.is_over_seeds:
        notes.append(
            "A method with one seed: its interval leaves out what another training would give. Train more seeds."
        )
    counts = [sum(method.tokens) / len(method.tokens) for method in comparison.methods]
    if not_trained := [shorten_path(method.name) for method in comparison.methods if not sum(method.tokens)]:
        notes.append(
            f"{', '.join(not_trained)}: compared before training, as no later evaluation is within the tokens or steps "
            "that were asked for, or none is better (--at best). Train with evaluate.every to have more."
        )
    elif max(counts) > 1.1 * min(counts):
        notes.append("The methods sampled different numbers of tokens: --max-tokens compares at equal ones.")
    for method in comparison.methods:
        if len(set(method.steps)) > 1:
            steps = ", ".join(f"{step} (seed {seed})" for step, seed in zip(method.steps, method.seeds, strict=True))
            notes.append(
                f"{shorten_path(method.name)}: its seeds were evaluated after different numbers of steps: {steps}."
            )
    for folder, step in comparison.forks:
        notes.append(
            f"{shorten_path(folder)} is a fork that shares the training of another run up to step {step}: intervals "
            "over seeds take every run for a training of its own."
        )
    if len(comparison.code) > 1:
        notes.append(
            f"The runs were trained by different code ({'; '.join(comparison.code)}): a difference may be that of the "
            "code. A plus is for changes that were not committed."
        )
    return lines + [line for note in notes for line in textwrap.wrap(note, WIDTH)]


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
    from cadre.config.resolve import resolve_for_trees
    from cadre.evaluation.audit import AuditSettings, check_auditable, run_audit

    # With --json stdout holds nothing but the report.
    report_progress = sys.stderr.write if as_json else lambda line: print_lines([line.rstrip()])
    settings = AuditSettings(tasks, decisions, plays, seed)
    runs = [str(folder) for folder in expand_sweeps([Path(target)])]
    reports: dict[str, dict[str, Any]] = {}
    for name in runs:
        resolved = find_target(name, overrides or [], trust=trust)
        experiment = resolve_for_trees(resolved.config, resolved.env)
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
    widths = [max(len(row[column]) for row in rows) for column in range(len(AUDIT_COLUMNS))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [
        *table,
        "correlation of the advantage with the executed effect, its square, the most that plays so few let explain,",
        "and the share of decisions whose siblings really differ; 95% intervals by bootstrap over tasks",
    ]


# ---- cadre serve


def serve(
    target: Target,
    overrides: Overrides = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="on the loopback interface; 0 for any")] = 8000,
    key: Annotated[str, typer.Option(help="API key that clients send; default: a new one each time")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, help="of the answers; 0: greedy, as in evaluation")] = 0.0,
    base: Base = False,
    trust: Trust = False,
) -> None:
    """Answer OpenAI's clients with the team: each role is a model by its name."""
    from cadre.evaluation import serving
    from cadre.evaluation.loaded_team import open_team

    loaded = open_team(find_target(target, overrides or [], trust=trust), base)
    role_of = serving.served_models(loaded.experiment)
    server, session = serving.serve(loaded.team.tempered(temperature), role_of, port, key)
    print_lines(
        [
            f"Models: {', '.join(role_of)}. Ctrl-C ends it.",
            f"export OPENAI_BASE_URL={server.url}/v1",
            f"export OPENAI_API_KEY={session.key}",
        ]
    )
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("Ended.")
    finally:
        server.close()
        loaded.close()
