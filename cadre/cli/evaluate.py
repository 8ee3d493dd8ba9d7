"""`cadre eval`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.ignored import refuse_ignored
from cadre.cli.report import lines
from cadre.cli.terminal import At, Best, Overrides, Target, Trust, console, must_be_new, refuse_beside, stderr
from cadre.config.resolve import find_target
from cadre.evaluation.evaluate import Repeats
from cadre.files import publish_atomically, to_json
from cadre.runs.progress import EvaluationProgress
from cadre.training.checkpoint import CheckpointChoice
from cadre.types import Tree

OPTIONS = {
    "evaluate.tasks": "--tasks",
    "evaluate.first": "--first",
    "sampling.temperature": "--temperature",
    "train.seed": "--seed",
}
OF_SAMPLES = dict.fromkeys(("sampling.top_p", "sampling.top_k"), "it beside --temperature above 0")


def evaluate(
    context: typer.Context,
    target: Target,
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, help="how many of the test split")] = 200,
    first: Annotated[int, typer.Option(min=0, help="from this task on")] = 0,
    whole: Annotated[bool, typer.Option("--all", help="the whole test split, in place of --tasks")] = False,
    samples: Annotated[int, typer.Option(min=1, help="episodes a task, for pass@k and avg@k")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, max=1e6, help="of the samples; 0 is greedy")] = 0.0,
    ks: Annotated[list[int] | None, typer.Option("--k", help="the k of pass@k; default powers of two")] = None,
    seed: Annotated[int, typer.Option(help="names the random draws of the samples")] = 0,
    assign: Annotated[str, typer.Option(help="other policies for roles, such as tool=planner,planner=tool")] = "",
    base: Annotated[bool, typer.Option("--base", help="the models as they were before training")] = False,
    best: Best = False,
    at: At = None,
    trust: Trust = False,
    untrained: Annotated[str, typer.Option(help="roles, by comma, that play as before training")] = "",
    episodes: Annotated[Path | None, typer.Option(help="a new file for all that was seen and said, JSON lines")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Play held-out tasks: greedily with one sample a decision, or several times at a temperature."""
    from cadre.evaluation.loaded_team import EvaluationRequest, run_evaluation

    if whole:
        refuse_beside(context, "--all", ["tasks"])
    if base:
        refuse_beside(context, "--base", ["untrained", "best", "at"])
    if best:
        refuse_beside(context, "--best", ["at"])
    if temperature == 0.0:
        refuse_beside(context, "temperature 0", ["ks"])
        refuse_ignored(overrides or [], "an evaluation at temperature 0", OF_SAMPLES)
    refuse_ignored(overrides or [], "an evaluation of its own", OPTIONS)
    found = find_target(target, overrides or [], trust=trust)
    repeats = Repeats(samples, temperature, tuple(ks or ()), seed)
    if episodes is not None:
        must_be_new(episodes, "--episodes")
    wanted = EvaluationRequest(None if whole else tasks, first, assign, untrained, base, CheckpointChoice(best, at))
    with EvaluationProgress(stderr) as progress:
        report, trees = run_evaluation(found, wanted, repeats, progress.begin)
    if episodes is not None:
        _keep(trees, episodes)
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
        return
    for line in lines(report):
        console.print(line, markup=False, highlight=False)


def _keep(trees: Sequence[Tree], file: Path) -> None:
    """Trees as JSON lines, pictures left out, whose digests they have."""
    told = (to_json(asdict(tree), default=lambda png: None) for tree in trees)
    with publish_atomically(file) as (built,):
        built.write_text("".join(f"{line}\n" for line in told), encoding="utf-8")
