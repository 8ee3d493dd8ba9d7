"""A run as one Markdown page with plots: results with intervals, cost, settings, commits, what it ran on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cadre.cli.terminal import RunFolder, print_lines, require_new
from cadre.config.experiment import dump
from cadre.errors import one_line
from cadre.files import publish_atomically
from cadre.plugins import package
from cadre.runs.export import escape
from cadre.runs.folder import Run

# The plots: title, and the suffixes of the names of the metrics in it.
PLOTS = {
    "success in training": ("rollout/success",),
    "reward by role": ("/reward",),
    "zero-variance groups by role": ("/zero_variance_groups",),
    "entropy": ("/entropy",),
    "completion length by role": ("/tokens",),
}
Line = Mapping[str, Any]


def write_summary(run: Run, out: Path, price: float = 0.0) -> None:
    """Write the summary of a run to `out`, its plots beside it; with its cost if an hour has a `price`. Raises
    ConfigError if matplotlib is not installed."""
    with publish_atomically(out, *plot_paths(out)) as (page, *paths):
        pictures = draw_plots(run.metrics(), paths)
        links = [f"![{title}]({picture.name})" for title, picture in pictures]
        page.write_text("\n".join([*summary_lines(run, price), "", "## Curves", "", *links, ""]), encoding="utf-8")


def summary_lines(run: Run, price: float = 0.0) -> Iterator[str]:
    """Yield the page without its plots."""
    steps, config = run.metrics(), run.config
    recipe, overrides = run.command()
    yield from (f"# {escape(run.folder.resolve().name)}", "")
    command = " ".join(filter(None, ["cadre train", recipe, *overrides]))
    yield from (f"`{one_line(command).replace('`', chr(39))}`", "") if recipe else ()
    goal = config.train
    yield f"{escape(config.env)}, {config.algorithm.name}, seed {goal.seed}; {len(steps)} of {goal.steps} steps."

    yield from ("", "## Held-out tasks", "")
    reports = run.evaluations()
    if reports:
        yield from ("| after step | success | 95% interval | tasks | reward | tokens |", "|---|---|---|---|---|---|")
    else:
        yield "None was played."
    for report in reports:
        interval = f"{report['low']:.1%} to {report['high']:.1%}"
        yield (
            f"| {report['step']} | {report['success']:.1%} | {interval} | {report['tasks']} | {report['reward']:+.2f} "
            f"| {report['tokens']:,.0f} |"
        )

    yield from ("", "## Cost", "")

    def total(name: str) -> float:
        return float(sum(line.get(name) or 0.0 for line in steps))

    sampling, learning = total("time/sample_s"), total("time/learn_s")
    hours = (sampling + learning) / 3600
    yield f"- {total('rollout/tokens'):,.0f} tokens sampled, {total('rollout/env_steps'):,.0f} steps of the environment"
    yield f"- {hours:.2f} hours: {sampling:,.0f} s sampling, {learning:,.0f} s learning"
    if price:
        yield f"- {hours * price:,.2f} at {price:,.2f} an hour"
    yield f"- {total('rollout/failures'):,.0f} failed episodes"

    yield from ("", "## Made on", "")
    environment = run.environment()
    packages = {name: environment.get(name) for name in ("cadre", "python")} | environment.get("packages", {})
    yield f"- {escape(environment.get('machine', 'an unknown machine'))}"
    yield "- " + ", ".join(escape(f"{name} {version}") for name, version in packages.items() if version)
    names = {"cadre": "Cadre", "here": "the folder that it was begun in"}
    commits = [
        f"{label} at {escape(environment['commits'][name])}"
        for name, label in names.items()
        if name in environment.get("commits", {})
    ]
    yield f"- commits: {', '.join(commits) or 'none is known'}; a plus is for changes that were not committed"

    # The settings may hold backticks themselves: the fence is longer than any row of them.
    settings = dump(config).rstrip()
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", settings)), default=0))
    yield from ("", "## Settings", "", f"{fence}yaml", settings, fence)


def plot_paths(out: Path) -> list[Path]:
    """Return the paths of a page's plots: `PAGE-1.png` and so on."""
    stem = out.with_suffix("")
    return [stem.with_name(f"{stem.name}-{number}.png") for number in range(1, len(PLOTS) + 1)]


def draw_plots(steps: Sequence[Line], paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Draw each figure of `PLOTS` that the run has values for, at the first of the paths; return titles and paths."""
    figures = package("matplotlib.figure", "plots", "report:")
    plots: list[tuple[str, Path]] = []
    for title, ends in PLOTS.items():
        names = sorted({name for line in steps for name in line if name.endswith(ends)} - {"rollout/tokens"})
        if not names:
            continue
        figure = figures.Figure(figsize=(6.4, 2.8), layout="constrained")
        axes = figure.subplots()
        for name in names:
            points = [(line["step"] + 1, line[name]) for line in steps if line.get(name) is not None]
            if not points:
                continue
            axes.plot(*zip(*points, strict=True), label=name.rpartition("/")[0])
        axes.set(title=title, xlabel="step")
        axes.legend(frameon=False)
        path = paths[len(plots)]
        figure.savefig(path, dpi=130)
        plots.append((title, path))
    return plots


def report(
    folder: RunFolder,
    out: Annotated[Path, typer.Option(help="the Markdown file to write; its plots go beside it")] = Path("report.md"),
    price: Annotated[float, typer.Option(min=0.0, help="of an hour on this machine, for the cost of the run")] = 0.0,
) -> None:
    """Write a run as one page with plots: results with intervals, cost, settings, commits, what it ran on."""
    require_new([out, *plot_paths(out)], "report --out")
    write_summary(Run.open(folder), out, price)
    print_lines([f"{out} and its plots are written."])
