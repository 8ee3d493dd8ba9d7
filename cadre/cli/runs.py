"""Commands that read a run folder: status, trees, view, export."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cadre.cli.terminal import (
    AsJson,
    At,
    Best,
    RunFolder,
    Trust,
    complete_run,
    print_lines,
    reject_beside,
    reject_without,
    require_new,
    visible,
)
from cadre.config.resolve import user_settings
from cadre.config.trusted_runs import check_trusted
from cadre.errors import ConfigError
from cadre.files import to_json
from cadre.plugins import install_command
from cadre.runs.export import check_repository, export_policy, push_to_hub, write_parquet
from cadre.runs.folder import Run, expand_sweeps
from cadre.runs.progress import format_gpu, read_status
from cadre.runs.resume import check_same_policies
from cadre.training.checkpoint import CheckpointChoice
from cadre.view.reading import open_runs

# Settings of a policy that decide how its weights are loaded, not what was trained.
LOADED = ("model", "device", "dtype", "quantization", "trust_remote_code")


def status(folder: RunFolder, as_json: AsJson = False) -> None:
    """Show the state of a run: step, steps sampled ahead, staleness, tokens per second."""
    report = read_status(folder)
    print_lines([to_json(report)] if as_json else map(visible, format_status(report, time.time())))


def format_status(report: Mapping[str, Any], now: float) -> list[str]:
    """Return the status of a run as lines of a label and a text."""
    activities = ["learning"] if report["learning"] else []
    activities += [f"sampling step {step + 1}" for step in report["sampling"]]
    if not report["runs"]:
        activities = ["nothing"]
    staleness = ", ".join(f"{name} {value:g}" for name, value in report["staleness"].items())
    rate = report["tokens_per_s"]
    state = "running" if report["runs"] else "not running"
    rows = [
        ("run", f"{state}, step {report['step']} of {report['steps']}; written {now - report['written']:.0f} s ago"),
        ("doing", " and ".join(activities) or "evaluating or saving"),
        ("ahead", f"{len(report['ready'])} steps sampled and waiting, at most {report['max_staleness']} updates ahead"),
        ("staleness", staleness or "none yet"),
    ]
    if "evaluation" in report:
        last = report["evaluation"]  # the evaluation before training is that of step 0
        text = last and f"step {last['step']}: success {last['success']:.1%} on {last['tasks']} held-out tasks"
        rows.append(("evaluated", text or "not yet"))
    rows.append(("tokens/s", f"{rate:,.0f} in the last step" if rate else "none yet"))
    gpu = " ".join(line.strip() for line in format_gpu(report.get("gpu", {})))
    rows += [("GPU", gpu.removeprefix("GPU: "))] if gpu else []
    return [f"{label:<10} {text}" for label, text in rows]


def trees(
    folder: RunFolder, out: Annotated[Path, typer.Option(help="the Parquet file to write")] = Path("trees.parquet")
) -> None:
    """Write the kept trees of a run as a table, one row per sample (docs/view.md)."""
    require_new(out, "trees --out")
    count = write_parquet(Run.open(folder).folder, out)
    print_lines([f"{count:,} samples are in {out}."])


def view(
    context: typer.Context,
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="the folders of one or more runs", autocompletion=complete_run),
    ],
    export: Annotated[Path | None, typer.Option(help="write the page as one HTML file instead")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free")] = 0,
    token: Annotated[
        str, typer.Option(help="secret in the address, so that links last; default: a new one each time")
    ] = "",
    megabytes: Annotated[float, typer.Option(min=0.1, help="limit of the trees in an export, newest first")] = 100.0,
) -> None:
    """Show runs in a browser: curves, trees, tokens, excluded samples. Also during training."""
    if export is not None:
        reject_beside(context, "--export", ["port", "token"])
    else:
        reject_without(context, "--export", ["megabytes"])
    runs = open_runs(expand_sweeps(folders))
    if token and not token.replace("-", "").replace("_", "").isalnum():
        raise ConfigError("--token: got other signs; expected letters, digits, - and _ alone. Change it.")
    if export is not None:
        from cadre.view.export import write_page

        require_new(export, "view --export")
        written = write_page(runs, export, megabytes)
        available = sum(len(run.entries(0)["rows"]) for run in runs)
        rest = f"; {available - written} older ones do not fit (--megabytes)" if written < available else ""
        print_lines([f"{export} holds {written} trees{rest}."])
        return
    try:
        from cadre.view.server import serve
    except ImportError as error:
        advice = f"Run {install_command('view')}, or write the page with --export FILE.html."
        raise ConfigError(f"view: {error.name} is not installed; expected the extra view. {advice}") from None
    serve(runs, port, token, lambda url: print_lines([f"{url}\nCtrl-C ends it."]))


def export(
    context: typer.Context,
    folder: RunFolder,
    policy: Annotated[str, typer.Argument(help="a policy of the run")],
    out: Annotated[Path, typer.Argument(help="the folder to write; must be new")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="where the base is on this machine: team.policies.POLICY.model=FOLDER")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="add an adapter to its base and write the whole model")
    ] = False,
    best: Best = False,
    at: At = None,
    push: Annotated[str, typer.Option(metavar="OWNER/NAME", help="upload it to the Hugging Face hub as well")] = "",
    public: Annotated[bool, typer.Option("--public", help="with --push, a new repository is public")] = False,
    trust: Trust = False,
) -> None:
    """Write a trained policy as a Hugging Face or PEFT folder, for use without Cadre."""
    if best:
        reject_beside(context, "--best", ["at"])
    if push:
        check_repository(push)
    else:
        reject_without(context, "--push", ["public"])
    run = Run.open(folder)
    for key in (pair.partition("=")[0] for pair in overrides or []):
        if key not in {f"team.policies.{name}.{setting}" for name in (policy, "*") for setting in LOADED}:
            expected = f"expected a setting of how {policy} is loaded: {', '.join(LOADED)}"
            raise ConfigError(f"export: got {key}, which it would ignore; {expected}. Remove it.")
    if overrides:
        changed = Run.open(folder, overrides)
        check_same_policies("export", run.config, changed.config)
        run = changed
    require_new(out, "export")
    named = [pair.replace("policies.*.", f"policies.{policy}.", 1) for pair in overrides or []]
    loaded = run.config.model_dump(mode="json", include={"team": {"policies": {policy}}})
    check_trusted(folder, loaded, trust, user_settings({}, named))
    export_policy(run, policy, out, merge, CheckpointChoice(best, at))
    print_lines([f"wrote {policy} to {out}"])
    if push:
        print_lines([f"uploaded to {push_to_hub(out, push, public)}"])
