"""`cadre serve`."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from cadre.cli.terminal import Overrides, Target, Trust, console
from cadre.config.resolve import find_target


def serve(
    target: Target,
    overrides: Overrides = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="on the loopback interface; 0 for any")] = 8000,
    key: Annotated[str, typer.Option(help="what clients have to name; by default a new one each time")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, help="of the answers; 0 is greedy, as in evaluation")] = 0.0,
    base: Annotated[bool, typer.Option("--base", help="the models as they were before training")] = False,
    trust: Trust = False,
) -> None:
    """Answer OpenAI's clients with the team: each role is a model by its name."""
    from cadre.evaluation.loaded_team import open_team
    from cadre.evaluation.serving import serve as start
    from cadre.evaluation.serving import served_models

    loaded = open_team(find_target(target, overrides or [], trust=trust), base)
    role_of = served_models(loaded.experiment)
    server, session = start(loaded.team.tempered(temperature), role_of, port, key)
    console.print(f"Models: {', '.join(role_of)}. Ctrl-C ends it.", markup=False, highlight=False)
    console.print(f"export OPENAI_BASE_URL={server.url}/v1", markup=False, highlight=False)
    console.print(f"export OPENAI_API_KEY={session.key}", markup=False, highlight=False)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("Ended.")
    finally:
        server.close()
        loaded.close()
