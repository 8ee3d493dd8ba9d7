"""`cadre plot` and `cadre.plot`: learning curves of runs, and those of compared methods."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cadre.cli.terminal import complete_run, print_lines, require_new
from cadre.errors import ConfigError, first_line
from cadre.evaluation.loaded_team import LoadedTeam, rewards_by_role
from cadre.plugins import package
from cadre.runs.folder import Run, distinct_names, expand_sweeps
from cadre.statistics import Interval
from cadre_analysis.compare import RunComparison

# Updates done, and a figure with its 95% interval.
CurvePoint = tuple[int, Interval]


def plot(runs: LoadedTeam | str | Path | Sequence[LoadedTeam | str | Path], path: str | Path | None = None) -> Any:
    """Return a matplotlib figure of runs: reward by role and held-out success with its 95% interval over the updates
    done; written to `path` if there is one. A sweep's folder stands for its runs.

    Raises ConfigError if matplotlib is not installed, RunError for a folder that is no run.
    """
    folders = run_folders(runs)
    figure, (rewards, success) = _make_figure(2)
    for folder, name in zip(folders, distinct_names(folders), strict=True):
        run, label = Run.open(folder), f"{name}: " if len(folders) > 1 else ""
        curves: dict[str, list[tuple[int, float]]] = {}
        for line in run.metrics():
            for role, reward in rewards_by_role([line]):
                curves.setdefault(role, []).append((line["step"] + 1, reward))
        for role, points in curves.items():
            rewards.plot(*zip(*points, strict=True), label=f"{label}{role}")
        reports = run.evaluations()
        _draw_interval(success, name, [(r["step"], (r["success"], r["low"], r["high"])) for r in reports])
    rewards.set(title="reward by role", xlabel="updates done")
    success.set(title="held-out success, 95% interval", xlabel="updates done", ylim=(-0.02, 1.02))
    return _finish(figure, path, [rewards, success] if len(folders) > 1 else [rewards])


def plot_comparison(comparison: RunComparison, path: str | Path | None = None) -> Any:
    """Return a figure of the compared measure of each method over the updates done, with its interval."""
    figure, axes = _make_figure(1)
    for method in comparison.methods:
        _draw_interval(axes, method.name, [(step, interval) for step, _, interval in method.curve])
    axes.set(title=f"held-out {comparison.measure}, 95% interval", xlabel="updates done")
    return _finish(figure, path, [axes])


def run_folders(runs: LoadedTeam | str | Path | Sequence[LoadedTeam | str | Path]) -> list[Path]:
    """Return the folders of runs, which are given as objects or by their folders; a sweep's replaced by its runs'."""
    teams = [runs] if isinstance(runs, LoadedTeam | str | Path) else runs
    if not teams:
        raise ConfigError("runs: got none; expected one or more. Name a run, or its folder.")
    return expand_sweeps([run.folder if isinstance(run, LoadedTeam) else Path(run).expanduser() for run in teams])


def _make_figure(plots: int) -> tuple[Any, Any]:
    # Without pyplot nothing is global, and a notebook shows the figure once, where it is returned.
    figures = package("matplotlib.figure", "plots", "plot:")
    figure = figures.Figure(figsize=(4.6 * plots, 3.2), layout="constrained")
    figure._repr_png_ = partial(draw_png, figure)
    axes = figure.subplots(1, plots)
    for plot in figure.axes:
        plot.xaxis.get_major_locator().set_params(integer=True)
    return figure, axes


def draw_png(figure: Any) -> bytes:
    """Return a figure as a PNG file, as a notebook shows it."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80)
    return picture.getvalue()


def _draw_interval(axes: Any, label: str, points: Sequence[CurvePoint]) -> None:
    if points:
        steps = [step for step, _ in points]
        values, lows, highs = zip(*(interval for _, interval in points), strict=True)
        (line,) = axes.plot(steps, values, marker=".", label=label)
        axes.fill_between(steps, lows, highs, alpha=0.2, color=line.get_color(), linewidth=0)


def _finish(figure: Any, path: str | Path | None, with_legend: Iterable[Any]) -> Any:
    for axes in with_legend:
        if axes.get_lines():
            axes.legend(frameon=False, fontsize="small")
    if path is not None:
        try:
            figure.savefig(Path(path).expanduser(), dpi=130)
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"plot: got {path} ({first_line(error)}); expected a file that can be written, of a format such as "
                ".png, .svg or .pdf. Name another."
            ) from None
    return figure


def plot_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="the folders of runs", autocompletion=complete_run)
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="the picture to write")] = Path("curves.png"),
) -> None:
    """Draw the learning curves of runs: reward by role, and held-out success with its 95% interval."""
    require_new([out], "plot --out")
    plot(folders, out)
    print_lines([f"{out} is written."])
