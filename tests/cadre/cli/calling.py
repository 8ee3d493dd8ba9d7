"""Calls the command line in this process, through `main`, as a shell would."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from dataclasses import dataclass
from unittest import mock

import typer.main

from cadre.cli import main

# Made once: it reads the signatures of all commands.
get_command = functools.cache(typer.main.get_command)


@dataclass(frozen=True)
class Done:
    """The outcome of a call: its exit code and its output."""

    code: int
    out: str
    err: str


def call(*arguments: str) -> Done:
    """`cadre ARGUMENTS`. An exception that a shell would show as a traceback is raised here."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    patched = mock.patch.object(sys, "argv", ["cadre", *arguments])
    with (
        patched,
        mock.patch.object(typer.main, "get_command", get_command),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
    return Done(code, out.getvalue(), err.getvalue())
