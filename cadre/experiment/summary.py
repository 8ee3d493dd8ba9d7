"""A run as one Markdown page to send to a colleague: what came of it with intervals, how, on what, and at what cost."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cadre.data.atomic import whole
from cadre.errors import ConfigError, one_line
from cadre.experiment.config import dump
from cadre.experiment.run_directory import Run

# The figures that are drawn: title, and the ends of the names of the metrics in it.
PLOTS = {
    "success of sampled episodes": ("rollout/success",),
    "reward by role": ("/reward",),
    "groups without spread by role": ("/groups_without_std",),
    "entropy": ("/entropy",),
    "tokens of an answer by role": ("/tokens",),
}
Line = Mapping[str, Any]


def write(run: Run, out: Path, price: float = 0.0) -> None:
    """Write the page to `out`, its plots beside it; with what it cost where an hour has a `price`. Raises ConfigError
    where matplotlib is not installed."""
    with whole(out, *picture_paths(out)) as (page, *paths):
        pictures = draw(run.metrics(), paths)
        links = [f"![{title}]({picture.name})" for title, picture in pictures]
        page.write_text("\n".join([*lines(run, price), "", "## Curves", "", *links, ""]), encoding="utf-8")


def lines(run: Run, price: float = 0.0) -> Iterator[str]:
    """The page but for its plots."""
    steps, config = run.metrics(), run.config
    recipe, overrides = run.command()
    yield from (f"# {_plain(run.folder.resolve().name)}", "")
    command = " ".join(filter(None, ["cadre train", recipe, *overrides]))
    yield from (f"`{one_line(command).replace('`', chr(39))}`", "") if recipe else ()
    goal = config.train
    yield f"{_plain(config.env)}, {config.algorithm.name}, seed {goal.seed}; {len(steps)} of {goal.steps} steps."
    yield from ("", "## Held-out tasks", "", *_evaluations(run.evaluations()))
    yield from ("", "## Cost", "", *_cost(steps, price))
    yield from ("", "## Made on", "", *_environment(run))
    settings = dump(config).rstrip()
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", settings)), default=0))
    yield from ("", "## Settings", "", f"{fence}yaml", settings, fence)


def _plain(text: str) -> str:
    """A text of a run's records as one line that is no Markdown and no HTML, as a stranger may have written it."""
    return re.sub(r"([`\[\]|!])", r"\\\1", html.escape(one_line(text), quote=False))


def _evaluations(reports: Sequence[Line]) -> Iterator[str]:
    if not reports:
        yield "None was played."
        return
    yield from ("| after step | success | 95% interval | tasks | reward | tokens |", "|---|---|---|---|---|---|")
    for told in reports:
        interval = f"{told['low']:.1%} to {told['high']:.1%}"
        yield (
            f"| {told['step']} | {told['success']:.1%} | {interval} | {told['tasks']} | {told['reward']:+.2f} "
            f"| {told['tokens']:,.0f} |"
        )


def _cost(steps: Sequence[Line], price: float) -> Iterator[str]:
    def total(name: str) -> float:
        return float(sum(line.get(name) or 0.0 for line in steps))

    sampling, learning = total("time/sample_s"), total("time/learn_s")
    hours = (sampling + learning) / 3600
    yield f"- {total('rollout/tokens'):,.0f} tokens sampled, {total('rollout/env_steps'):,.0f} steps of the environment"
    yield f"- {hours:.2f} hours: {sampling:,.0f} s sampling, {learning:,.0f} s learning"
    if price:
        yield f"- {hours * price:,.2f} at {price:,.2f} an hour"
    yield f"- {total('rollout/failures'):,.0f} failed episodes"


def _environment(run: Run) -> Iterator[str]:
    told = run.environment()
    packages = {"cadre": told.get("cadre"), "python": told.get("python"), **told.get("packages", {})}
    yield f"- {_plain(told.get('machine', 'an unknown machine'))}"
    yield "- " + ", ".join(_plain(f"{name} {version}") for name, version in packages.items() if version)
    made_of = {"cadre": "Cadre", "here": "the folder that it was begun in"}
    told_of = [
        f"{what} at {_plain(told['commits'][name])}"
        for name, what in made_of.items()
        if name in told.get("commits", {})
    ]
    yield f"- commits: {', '.join(told_of) or 'none is known'}; a plus is for changes that were not committed"


def picture_paths(out: Path) -> list[Path]:
    """Where the pictures of a page may come to lie: `PAGE-1.png` and so on."""
    stem = out.with_suffix("")
    return [stem.with_name(f"{stem.name}-{number}.png") for number in range(1, len(PLOTS) + 1)]


def draw(steps: Sequence[Line], paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """A picture a figure of `PLOTS` that the run has values for, at the first of the paths."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "report: matplotlib is not installed, which draws the curves; expected the extra plots. pip install "
            "'cadre-rl[plots]'."
        ) from None
    drawn: list[tuple[str, Path]] = []
    for title, ends in PLOTS.items():
        names = sorted({name for line in steps for name in line if name.endswith(ends)} - {"rollout/tokens"})
        if not names:
            continue
        figure = Figure(figsize=(6.4, 2.8), layout="constrained")
        axes = figure.subplots()
        for name in names:
            points = [(line["step"] + 1, line[name]) for line in steps if line.get(name) is not None]
            if not points:
                continue
            axes.plot(*zip(*points, strict=True), label=name.rpartition("/")[0])
        axes.set(title=title, xlabel="step")
        axes.legend(frameon=False)
        path = paths[len(drawn)]
        figure.savefig(path, dpi=130)
        drawn.append((title, path))
    return drawn
