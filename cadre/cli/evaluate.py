"""`cadre eval`: play held-out tasks and print the report."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

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
    print_lines,
    reject_beside,
    reject_ignored,
    require_new,
    stderr,
)
from cadre.config.resolve import find_target
from cadre.evaluation.evaluate import Repeats
from cadre.files import publish_atomically, to_json
from cadre.runs.progress import EvaluationProgress
from cadre.runs.tree_format import encode
from cadre.training.checkpoint import CheckpointChoice

# Settings that eval takes as options, by the option.
OPTIONS = {
    "evaluate.tasks": "--tasks",
    "evaluate.first": "--first",
    "sampling.temperature": "--temperature",
    "train.seed": "--seed",
}
# Settings that an evaluation ignores: it decodes greedily, or samples from all tokens at its temperature.
SAMPLING_ONLY = dict.fromkeys(("sampling.top_p", "sampling.top_k"), "--temperature alone")
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
    reject_ignored(overrides or [], "an evaluation", SAMPLING_ONLY)
    reject_ignored(overrides or [], "an evaluation of its own", OPTIONS)
    resolved = find_target(target, overrides or [], trust=trust)
    repeats = Repeats(samples, temperature, tuple(ks or ()), seed)
    if episodes is not None:
        require_new(episodes, "--episodes")

    choice = CheckpointChoice(best, at)
    request = EvaluationRequest(None if all_tasks else tasks, first, assign, untrained, base, choice)
    with EvaluationProgress(stderr) as progress:
        report, trees = run_evaluation(resolved, request, repeats, progress.watch)
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
    else:
        print_lines(format_report(report))
    if episodes is not None:
        with publish_atomically(episodes) as (built,):
            built.write_text("".join(f"{to_json(encode(tree))}\n" for tree in trees), encoding="utf-8")


def format_report(report: Mapping[str, Any]) -> list[str]:
    """Return an evaluation's report as the lines that `cadre eval` prints, with rounded numbers."""
    rows: list[tuple[str, str]] = []

    # Success, with several samples a task also pass@k.
    tasks, interval = f"{report['tasks']:,} held-out tasks", "(95% interval {:.1%} to {:.1%})"
    if "average" not in report:
        rows.append(("success", f"{report['success']:.1%} of {tasks} {interval.format(report['low'], report['high'])}"))
    else:
        value, *bounds = report["average"]
        episodes = f"{report['samples']} episodes a task, {tasks}"
        rows.append(("success", f"{value:.1%} of {episodes} {interval.format(*bounds)}"))
        for k, (value, *bounds) in report["passing"].items():
            rows.append((f"pass@{k}", f"{value:.1%} {interval.format(*bounds)}"))

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
