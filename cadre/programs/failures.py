"""How a program can fail its episode. None of these is Cadre's own error: each costs one task its tree, counted."""

from __future__ import annotations


class ProgramFailed(Exception):
    """The program raised, was killed, or came to no end that can be paid."""


class Stuck(ProgramFailed):
    """The program asked for nothing for too long, the time that models took left out, or asked for too much."""


class Diverged(ProgramFailed):
    """The program, started again with the answers that it had been given, asked for something else."""


class NotStarted(Exception):
    """The process that starts programs ended, as where the kernel wants its memory: no fault of the program's."""
