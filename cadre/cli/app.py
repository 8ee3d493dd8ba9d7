"""The commands, and their errors: one paragraph without a traceback for what the user can fix."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

import cadre
from cadre.cli import evaluate, listing, play, runs, tasks, train
from cadre.cli.terminal import console, escape_unprintable, print_error
from cadre.concurrency import configure_threads
from cadre.errors import CadreError, as_sentence
from cadre.file_limits import LEAST_DESCRIPTORS, raise_descriptor_limit, too_few_descriptors
from cadre.plugins import command_packages
from cadre.settings.user_code import describe_error, has_user_frames

# Errors of the machine that name no path, such as no space left for output that is redirected to a file.
MACHINE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM}
# The error of a wrong call, such as an unknown option. typer exports only a class that is derived from it.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])


class PlainFlags:
    """Help shows a flag by its name alone, without a type, as it takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags with an empty type."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(PlainFlags, TyperCommand):
    """A command with plain flags."""


class Group(PlainFlags, TyperGroup):
    """The command `cadre` itself, with plain flags."""


app = typer.Typer(cls=Group, help="Train teams of LLM agents with reinforcement learning.", invoke_without_command=True)


@app.callback()
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    """Train teams of LLM agents with reinforcement learning."""
    if version:
        console.print(f"cadre {cadre.__version__}", highlight=False)
    elif context.invoked_subcommand is None:
        console.print(context.get_help(), markup=False, highlight=False)


# By purpose, in the order of `cadre --help`; installed packages add theirs to these panels.
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Train": {"train": train.train, "fork": train.fork},
    "Evaluate": {"eval": evaluate.evaluate},
    "Look at runs": {"status": runs.status, "view": runs.view, "trees": runs.trees},
    "Use a team": {"play": play.play, "export": runs.export},
    "Tasks": {"list": listing.list_all, "init": tasks.init, "check": tasks.check},
}
for panel, commands in COMMANDS.items():
    added = {name: function for package in command_packages() for name, function in package.get(panel, {}).items()}
    for command_name, function in {**commands, **added}.items():
        app.command(name=command_name, cls=Command, rich_help_panel=panel)(function)


def main() -> None:
    """Run the command line; print an error that the user can fix as one paragraph, with exit code 2."""
    configure_threads()
    if raise_descriptor_limit() < LEAST_DESCRIPTORS:
        print_error(too_few_descriptors())
        sys.exit(2)
    escape_unprintable()
    try:
        sys.exit(app(list(map(_expand_home, sys.argv[1:])), standalone_mode=False))
    except SystemExit as error:
        # An exit in the user's own file is an error of that file, whatever its code.
        if not has_user_frames(error):
            raise
        got = f"{describe_error(error)}, which would end the command"
        print_error(f"{got}; expected no exit. Return, or raise an error.")
    except CadreError as error:
        print_error(str(error))
    except UsageError as error:
        text = as_sentence(error.format_message())
        command = error.ctx.info_name if error.ctx is not None and error.ctx.parent is not None else None
        print_error(f"{command}: {text} See cadre {command} --help." if command else f"{text} See cadre --help.")
    except BrokenPipeError:
        sys.exit(1)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            print_error(too_few_descriptors())
            sys.exit(2)
        if error.filename is None and error.errno not in MACHINE_ERRORS and not has_user_frames(error):
            raise
        subject = error.filename or "this machine"
        print_error(f"{subject}: {error.strerror}; expected what can be used so. Name another path, or make room.")
    except Exception as error:
        # A bug of Cadre keeps its traceback; an error in the user's own file is shown as its lines.
        if not has_user_frames(error):
            raise
        print_error(f"{describe_error(error)}. This is an error in that file. Fix that line.")
    sys.exit(2)


def _expand_home(argument: str) -> str:
    """Return an argument with its `~` expanded; shells leave that of `--run=~/runs` as it is."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{equals}{os.path.expanduser(value)}"
