"""What the commands share: the consoles, arguments that several take, and new files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cadre.cli import completion
from cadre.errors import ConfigError, RunError
from cadre.files import remove_unfinished

WIDTH = 80

# `:x:` in what a model said is no emoji.
console = Console(soft_wrap=True, emoji=False)
stderr = Console(stderr=True, soft_wrap=True, emoji=False)

RunFolder = Annotated[Path, typer.Argument(help="the folder of a run", autocompletion=completion.runs)]
Target = Annotated[
    str,
    typer.Argument(
        help="a run, a recipe, a YAML file, or a model (then with env=NAME)", autocompletion=completion.targets
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="changes, such as train.steps=20 algorithm.k=8")]

Trust = Annotated[
    bool, typer.Option("--trust", help="run code that the run folder brings with it, or that it asks for")
]


Best = Annotated[bool, typer.Option("--best", help="the checkpoint of the best evaluation, not the latest")]
At = Annotated[int | None, typer.Option(min=0, help="the checkpoint after so many updates, not the latest")]

# Characters that steer a terminal, that show nothing, or that turn the direction of what follows.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """What a model said, with such characters written out, so that it is shown and does nothing."""
    return HIDDEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


def spell_everything() -> None:
    """Let the console escape what it has no letters for, such as those of a path, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def must_be_new(outs: Path | Sequence[Path], what: str) -> None:
    """Raises RunError where something is there already, or where nothing can be written. What a killed call left of
    `outs`, which are written together, is removed."""
    outs = [outs] if isinstance(outs, Path) else outs
    remove_unfinished(*outs)
    for out in outs:
        if os.path.lexists(out):
            raise RunError(f"{what}: {out} exists; expected a new path, as nothing is ever overwritten. Name another.")
    out = outs[0]
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        kind = "cannot be written to" if above.is_dir() else "is a file"
        raise RunError(f"{what}: got {out}, but {above} {kind}; expected a folder that can. Name another path.")


def refuse_beside(context: typer.Context, chosen: str, ignored: Sequence[str]) -> None:
    """Raises ConfigError for parameters, by their names, that were given and that `chosen` would ignore."""
    for name in _given(context, ignored):
        raise ConfigError(f"{name}: would be ignored beside {chosen}; expected one of the two. Remove it.")


def refuse_without(context: typer.Context, missing: str, ignored: Sequence[str]) -> None:
    """Raises ConfigError for parameters, by their names, that were given and mean nothing without `missing`."""
    for name in _given(context, ignored):
        raise ConfigError(f"{name}: got no {missing}, without which it would be ignored; expected both. Remove it.")


def _given(context: typer.Context, parameters: Sequence[str]) -> Iterator[str]:
    """What those of the parameters are called that stand on the command line."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in parameters and source is not None and source.name == "COMMANDLINE":
            yield parameter.opts[-1] if parameter.param_type_name == "option" else parameter.name.upper()


def print_error(paragraph: str) -> None:
    """One thing that is the user's to fix, to stderr."""
    stderr.print(f"error: {visible(paragraph)}", markup=False, highlight=False)
