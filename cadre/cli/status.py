"""`cadre status`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cadre.cli.terminal import RunFolder, console, visible
from cadre.files import to_json
from cadre.runs.progress import read_status


def status(
    folder: RunFolder,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """What a run is doing: its step, what is sampled ahead, staleness, tokens a second, and its processes."""
    said = read_status(folder)
    if as_json:
        console.print(to_json(said), markup=False, highlight=False)
        return
    for line in lines(said, time.time()):
        console.print(visible(line), markup=False, highlight=False)


def lines(said: Mapping[str, Any], now: float) -> list[str]:
    """The status in words, a line a thing."""
    words = "running" if said["runs"] else "not running"
    rate = said["tokens_per_s"]
    rows = [
        ("run", f"{words}, step {said['step']} of {said['steps']}; said {now - said['written']:.0f} s ago"),
        ("doing", _doing(said)),
        ("ahead", f"{len(said['ready'])} steps sampled and waiting, at most {said['max_staleness']} updates ahead"),
        ("staleness", ", ".join(f"{name} {value:g}" for name, value in said["staleness"].items()) or "none yet"),
        *([("evaluated", _evaluated(said["evaluation"]))] if "evaluation" in said else []),
        ("tokens/s", f"{rate:,.0f} in the last step" if rate else "none yet"),
        *((part["kind"], _part(part)) for part in said["parts"]),
    ]
    return [f"{head:<10} {text}" for head, text in rows]


def _doing(said: Mapping[str, Any]) -> str:
    doing = ["learning"] if said["learning"] else []
    doing += [f"sampling step {step + 1}" for step in said["sampling"]]
    return " and ".join(doing) if doing and said["runs"] else "nothing" if not said["runs"] else "evaluating or saving"


def _evaluated(report: Mapping[str, Any] | None) -> str:
    """The last evaluation; the one before training is that of step 0."""
    if report is None:
        return "not yet"
    return f"step {report['step']}: success {report['success']:.1%} on {report['tasks']} held-out tasks"


def _part(part: Mapping[str, Any]) -> str:
    where = f"{part['processes']} processes" if part["processes"] else "in the training process"
    replaced = f", {part['replaced']} replaced" if part["replaced"] else ""
    return f"{', '.join(part['policies'])}: {where}, {part['waiting']} requests waiting{replaced}"
