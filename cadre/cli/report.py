"""An evaluation in words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from cadre.cli.terminal import WIDTH

HEAD = 11


def lines(report: Mapping[str, Any]) -> list[str]:
    """What `cadre eval` prints of a report, rounded."""
    rows = [*_success(report), *_trained_on(report), *_means(report), *_conditions(report)]
    return [line for head, words in rows for line in _wrapped(head, words)]


def _success(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    tasks = f"{report['tasks']:,} held-out tasks"
    if "average" not in report:
        interval = _interval(report["low"], report["high"])
        return [("success", f"{report['success']:.1%} of {tasks} {interval}")]
    value, low, high = report["average"]
    rows = [("success", f"{value:.1%} of {report['samples']} episodes a task, {tasks} {_interval(low, high)}")]
    for k, (share, least, most) in report["passing"].items():
        rows.append((f"pass@{k}", f"{share:.1%} {_interval(least, most)}"))
    return rows


def _trained_on(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whether tasks that were chosen for this evaluation are held out at all."""
    if report.get("trained_on", 0) == 0:
        return []
    if report["trained_on"] is None:
        return [("trained on", "not known of these tasks, as what the run was trained on is not here")]
    count = f"{report['trained_on']:,} of these {report['tasks']:,} tasks"
    return [("trained on", f"{count}: the run learned from them, and this says little of others")]


def _means(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Means an episode."""
    rows = [("reward", f"{report['reward']:+.2f} an episode")]
    if "decisions" in report:
        rows.append(("decisions", f"{report['decisions']:.1f} an episode"))
    rows.append(("tokens", f"{report['tokens']:,.0f} an episode"))
    if "exact" in report:
        rows.append(("exact", ", ".join(f"{name} {value:.4g}" for name, value in report["exact"].items())))
    if report["parts"]:
        rows.append(("parts", ", ".join(f"{name} {value:.2f}" for name, value in report["parts"].items())))
    return rows


def _conditions(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How it was played, and what failed."""
    budget = ", ".join(f"{role} {most:,}" for role, most in report["max_tokens"].items())
    temperature = report["temperature"]
    rows = [("played", f"{f'at temperature {temperature:g}' if temperature else 'greedily'}; most tokens: {budget}")]
    if "checkpoint" in report:
        rows.append(("weights", f"of the checkpoint after step {report['checkpoint']}"))
    if report["failures"]:
        played = report["tasks"] * report.get("samples", 1)
        of = "episodes" if "samples" in report else "tasks"
        rows.append(("failed", f"{report['failures'] / played:.1%} of the {of}; they count as not solved"))
    return rows


def _interval(low: float, high: float) -> str:
    return f"(95% interval {low:.1%} to {high:.1%})"


def _wrapped(head: str, words: str) -> list[str]:
    indent = " " * HEAD
    return textwrap.wrap(words, WIDTH, initial_indent=f"{head:<{HEAD}}", subsequent_indent=indent)
