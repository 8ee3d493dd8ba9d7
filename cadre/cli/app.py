"""The command line. It parses, calls, prints; errors that are the user's to fix are one paragraph, no traceback."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, cast

import typer

import cadre
from cadre.cli import (
    audit,
    bench,
    check,
    data,
    evaluate,
    fork,
    init,
    listing,
    models,
    play,
    serve,
    status,
    summary,
    train,
    trees,
    view,
    warm_start,
)
from cadre.cli.terminal import console, print_error, spell_everything
from cadre.concurrency import configure_threads
from cadre.errors import CadreError
from cadre.file_limits import LEAST_DESCRIPTORS, raise_descriptor_limit, too_few_descriptors
from cadre.settings.user_code import describe_error, has_user_frames

# What the machine refuses and no path is named in: no space left, say, for what is printed into a file.
OF_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM}
# What a wrong call raises, such as an option that there is not; typer exports only what is derived from it.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

app = typer.Typer(help="Train teams of LLM agents with reinforcement learning.", invoke_without_command=True)

app.command()(train.train)
app.command()(fork.fork)
app.command(name="warm-start")(warm_start.command)
app.command(name="eval")(evaluate.evaluate)
app.command()(audit.audit)
app.command()(play.play)
app.command()(serve.serve)
app.command()(status.status)
app.command()(check.check)
app.command(name="list")(listing.list_all)
app.command()(models.export)
app.command()(init.init)
app.command()(summary.report)
app.command()(trees.trees)
app.command()(view.view)
app.command(name="preference-pairs")(models.preference_pairs)
app.command(name="reward-model")(models.reward_model)
app.command()(data.data)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(
    bench.bench
)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> None:
    """Train teams of LLM agents with reinforcement learning."""
    if version:
        console.print(f"cadre {cadre.__version__}", highlight=False)
    elif context.invoked_subcommand is None:
        console.print(context.get_help(), markup=False, highlight=False)


def main() -> None:
    """Run the command line; what is the user's to fix is printed as one paragraph, exit code 2."""
    configure_threads()
    if raise_descriptor_limit() < LEAST_DESCRIPTORS:
        print_error(too_few_descriptors())
        sys.exit(2)
    spell_everything()
    try:
        sys.exit(app(list(map(_at_home, sys.argv[1:])), standalone_mode=False))
    except SystemExit as error:
        # An exit in the user's own file is no end that a command came to, whatever its code.
        if not has_user_frames(error):
            raise
        print_error(
            f"{describe_error(error)}, which would end the command; expected no exit. Return, or raise an error."
        )
    except CadreError as error:
        print_error(str(error))
    except UsageError as error:
        print_error(_usage(error))
    except BrokenPipeError:
        sys.exit(1)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            print_error(too_few_descriptors())
            sys.exit(2)
        if error.filename is None and error.errno not in OF_MACHINE and not has_user_frames(error):
            raise
        what = error.filename or "this machine"
        print_error(f"{what}: {error.strerror}; expected what can be used so. Name another path, or make room.")
    except Exception as error:
        # A bug of Cadre keeps its traceback; an error in the user's own file is shown as its lines.
        if not has_user_frames(error):
            raise
        print_error(f"{describe_error(error)}. This is an error in that file. Fix that line.")
    sys.exit(2)


def _at_home(argument: str) -> str:
    """An argument with its `~` expanded, which shells leave as it is in `--run=~/mine`."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{equals}{os.path.expanduser(value)}"


def _usage(error: typer.BadParameter) -> str:
    """`train: Missing argument 'RECIPE'. See cadre train --help.`"""
    text = error.format_message()
    text += "" if text.endswith((".", "?")) else "."
    command = error.ctx.info_name if error.ctx is not None and error.ctx.parent is not None else None
    return f"{command}: {text} See cadre {command} --help." if command else f"{text} See cadre --help."
