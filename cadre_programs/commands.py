"""Commands that talk with a team: chat, and serve, which puts it behind the endpoint that programs call."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from cadre import plugins
from cadre.cli.terminal import Base, Overrides, Target, Trust, console, print_lines, reject_beside, reject_without
from cadre.config.resolve import find_target, resolve_for_evaluation
from cadre.errors import ConfigError
from cadre_programs.chat import chat


def serve(
    context: typer.Context,
    target: Target = "",
    overrides: Overrides = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="on the loopback interface; 0 for any")] = 8000,
    key: Annotated[str, typer.Option(help="API key that clients send; default: a new one each time")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, help="of the answers; 0: greedy, as in evaluation")] = 0.0,
    role: Annotated[
        list[str] | None,
        typer.Option(help="RULE=ROLE: calls that a role answers, by another model's name, a pattern or system:TEXT"),
    ] = None,
    base: Base = False,
    trust: Trust = False,
    tinker: Annotated[str, typer.Option(help="a model for Tinker's client; changes are then dtype=float32, say")] = "",
    name: Annotated[list[str] | None, typer.Option(help="with --tinker: what clients may call the model too")] = None,
    state: Annotated[Path, typer.Option(help="with --tinker: the folder for checkpoints")] = Path("tinker"),
) -> None:
    """Answer OpenAI's clients with the team: each role is a model by its name. Or let Tinker's client train a model."""
    if tinker:
        reject_beside(context, "--tinker", ["temperature", "role", "base", "trust"])
        plugins.package("uvicorn", "programs", "--tinker")
        settings = [*([target] if target else []), *(overrides or [])]
        plugins.component("tinker")(tinker, settings, port, key, name or [], state, print_lines)
        return
    reject_without(context, "--tinker", ["name", "state"])
    if not target:
        raise ConfigError("serve: got nothing to serve; expected a run, a recipe, or --tinker MODEL. Name one.")
    from cadre.evaluation.loaded_team import load_team
    from cadre_programs import serving

    resolved = find_target(target, overrides or [], trust=trust)
    experiment = resolve_for_evaluation(resolved.config, resolved.env, resolved.typed)
    rules = serving.served_rules(experiment, role or [])
    loaded = load_team(experiment, resolved.run, base)
    server, session = serving.serve(loaded.team.tempered(temperature), rules, port, key)
    patterns = [f"{key} ({role})" for key, role in rules.rules.items() if key not in rules.models]
    print_lines(
        [
            f"Models: {', '.join(rules.models)}. Ctrl-C ends it.",
            *([f"Other calls, by rules: {', '.join(patterns)}."] if patterns else []),
            f"export OPENAI_BASE_URL={server.url}/v1",
            f"export OPENAI_API_KEY={session.key}",
        ]
    )
    sys.stdout.flush()  # which is a file or a pipe, where the command runs beside the program
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("Ended.")
    finally:
        server.close()
        loaded.close()


# By panel of `cadre --help`.
COMMANDS = {"Use a team": {"chat": chat, "serve": serve}}
