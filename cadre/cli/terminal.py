"""Shared by the commands: consoles, arguments that several commands take, and checks of arguments."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cadre.errors import ConfigError, RunError
from cadre.settings.yaml_file import typed_keys

# ---- Output

WIDTH = 80
# The exit code of a training that was stopped before its end, as of a command that Ctrl-C ended.
STOPPED = 130

# No emoji: `:x:` in a completion stays as it is.
console = Console(soft_wrap=True, emoji=False)
stderr = Console(stderr=True, soft_wrap=True, emoji=False)

# Characters that steer a terminal, that show nothing, or that turn the direction of the text after them.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Return text of a model or a user with control characters spelt out, so that the terminal only shows it."""
    return HIDDEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they are, without rich's markup and colours."""
    for line in lines:
        console.print(line, markup=False, highlight=False)


def shorten_path(text: str) -> str:
    """Return a path, such as that of an environment's file, relative to the current folder if it is inside it."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")


def print_error(paragraph: str) -> None:
    """Print to stderr one error that the user can fix."""
    stderr.print(f"error: {visible(paragraph)}", markup=False, highlight=False)


def escape_unprintable() -> None:
    """Let stdout and stderr escape characters that their encoding lacks, such as those of a path, without an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


# ---- Arguments, and their completion in a shell (`cadre --install-completion`)


def complete_recipe(incomplete: str) -> list[str]:
    """Return bundled recipes, and YAML files in the working folder."""
    from cadre.config.recipes import recipes

    return _starting_with(incomplete, [*recipes(), *map(str, Path().glob("*.yaml"))])


def complete_run(incomplete: str) -> list[str]:
    """Return run folders, in `runs/` or in the folder that is typed."""
    parent = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent if incomplete else Path("runs")
    return _starting_with(incomplete, [str(path.parent) for path in parent.glob("*/config.yaml")])


def _starting_with(prefix: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(prefix))


RunFolder = Annotated[Path, typer.Argument(help="the folder of a run", autocompletion=complete_run)]
Target = Annotated[
    str,
    typer.Argument(
        help="a run, a recipe, a YAML file, or a model (then with env=NAME)",
        autocompletion=lambda incomplete: [*complete_run(incomplete), *complete_recipe(incomplete)],
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="changes, such as train.steps=20 algorithm.k=8")]
Trust = Annotated[
    bool, typer.Option("--trust", help="run code that the run folder brings with it, or that it asks for")
]
Best = Annotated[
    bool, typer.Option("--best", help="the checkpoint of the best evaluation (success, then reward), not the latest")
]
At = Annotated[int | None, typer.Option(min=0, help="the checkpoint after this many updates instead of the latest")]
Base = Annotated[bool, typer.Option("--base", help="the models as they were before training")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]


# ---- Checks of arguments: whatever would be ignored is an error


def require_new(outs: Path | Sequence[Path], option: str) -> None:
    """Raise RunError if an output path exists or cannot be written."""
    outs = [outs] if isinstance(outs, Path) else outs
    for out in filter(os.path.lexists, outs):
        raise RunError(f"{option}: {out} exists; expected a new path. Nothing is ever overwritten: name another.")
    out = outs[0]
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        fault = "cannot be written to" if parent.is_dir() else "is a file"
        raise RunError(f"{option}: got {out}, but {parent} {fault}; expected a folder that can. Name another path.")


def reject_beside(context: typer.Context, option: str, parameters: Sequence[str]) -> None:
    """Raise ConfigError for parameters, by their Python names, that were given and that `option` would ignore."""
    for name in _given_parameters(context, parameters):
        raise ConfigError(f"{name}: would be ignored beside {option}; expected one of the two. Remove it.")


def reject_without(context: typer.Context, option: str, parameters: Sequence[str]) -> None:
    """Raise ConfigError for parameters, by their Python names, that were given and mean nothing without `option`."""
    for name in _given_parameters(context, parameters):
        raise ConfigError(f"{name}: got no {option}, without which it would be ignored; expected both. Remove it.")


def _given_parameters(context: typer.Context, parameters: Sequence[str]) -> Iterator[str]:
    """Yield those of the parameters that stand on the command line, spelt as there."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in parameters and source is not None and source.name == "COMMANDLINE":
            yield parameter.opts[-1] if parameter.param_type_name == "option" else parameter.name.upper()


def reject_ignored(overrides: Sequence[str], command: str, replacements: Mapping[str, str]) -> None:
    """Raise ConfigError for `key=value` pairs that `command` would ignore; `replacements` has what to set instead."""
    for key in typed_keys(overrides):
        setting = key.split(".", 3)[-1] if key.startswith("team.policies.") else key
        if setting in replacements:
            expected = f"expected {replacements[setting]}. Set that, or remove it."
            raise ConfigError(f"{key}: got it for {command}, which would ignore it; {expected}")
