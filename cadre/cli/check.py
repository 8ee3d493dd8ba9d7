"""`cadre check`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from cadre.cli.terminal import console, print_error, refuse_beside, visible
from cadre.config.dry_run import FirstPrompt
from cadre.envs.check import CheckReport, examine
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.plugins import program_sandbox
from cadre.programs.program import Program
from cadre.settings.yaml_file import parse_overrides
from cadre.types import images_of

SHOWN_LINES = 12


def check(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="FILE.py:Env, a bundled environment, or sandbox")],
    settings: Annotated[list[str] | None, typer.Argument(help="environment settings, such as turns=2")] = None,
    step_seconds: Annotated[float, typer.Option(min=0.001, help="that one call of the environment may take")] = 30.0,
    model: Annotated[str, typer.Option(help="whose chat template writes the prompts: seed, a folder, a name")] = "seed",
) -> None:
    """Test an environment against the contract, or show what this machine's sandbox holds."""
    if target == "sandbox":
        refuse_beside(context, "sandbox", ["settings", "step_seconds", "model"])
        _sandbox()
        return
    env_spec = EnvSpec(target, parse_overrides(settings or []))
    if issubclass(env_spec.declared, Program):
        refuse_beside(context, "a program, whose settings have limits", ["step_seconds"])
    if _faults(env_spec, model, step_seconds):
        raise typer.Exit(2)


def _sandbox() -> None:
    sandbox = program_sandbox()
    if sandbox is None:
        raise ConfigError(
            "check sandbox: no installed package brings a sandbox; expected one, as cadre_tasks does. Install cadre-rl "
            "anew."
        )
    table = Table("what", "here", "detail")
    for row in sandbox.table():
        table.add_row(row.name, "yes" if row.given else "no", row.detail)
    console.print(table)


def _faults(env_spec: EnvSpec, model: str, step_seconds: float) -> int:
    """Print what the environment keeps and breaks of the contract, and its first prompts; the number of faults."""
    from cadre.config.dry_run import find_tokenizer, render_first_prompts

    source = find_tokenizer(model)
    report = _report(env_spec, step_seconds)
    for fault in report.broken:
        print_error(fault)
    unseen = model == "seed" and any(map(images_of, report.prompts.values()))
    shown, refused = (
        render_first_prompts(report.prompts, source, model, report.tools) if report.prompts and not unseen else ([], [])
    )
    if unseen:
        console.print("note: the prompts hold pictures; --model names a model that sees, to show them as it reads them")
    for fault in refused:
        print_error(fault)
    for line in (*(f"ok  {rule}" for rule in report.held), *(f"note: {note}" for note in report.notes)):
        console.print(line, markup=False, highlight=False)
    if len(shown) > 1:
        console.print("What roles are quoted with below was made up by the check.", highlight=False)
    for prompt in shown:
        _print_prompt(prompt, model)
    return len(report.broken) + len(refused)


def _report(env_spec: EnvSpec, step_seconds: float) -> CheckReport:
    """What can be said of an environment; a program has a check of its own."""
    if not issubclass(env_spec.declared, Program):
        return asyncio.run(examine(env_spec, step_seconds=step_seconds))
    from cadre.programs.check import examine as examine_program

    return asyncio.run(examine_program(env_spec))


def _print_prompt(prompt: FirstPrompt, model: str) -> None:
    """The prompt under a heading, a long one cut."""
    name = "the embedded model" if model == "seed" else model
    console.print(f"{prompt.role} sees first, as {name} reads it ({prompt.tokens:,} tokens):", highlight=False)
    lines = prompt.text.rstrip("\n").split("\n")
    for line in lines[:SHOWN_LINES]:
        console.print(f"    {visible(line)}", markup=False, highlight=False)
    if len(lines) > SHOWN_LINES:
        console.print(f"    ({len(lines) - SHOWN_LINES} more lines)", highlight=False)
