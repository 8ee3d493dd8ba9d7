"""The exceptions that Cadre raises on purpose. Anything else is a bug and keeps its traceback.

CadreError               one paragraph: what, got, expected, what to do
|-- ConfigError          a setting that cannot work, found before any model loads
|-- DataError            a data set that is missing, has another shape, or trains on its test
|-- ContractError        an environment that breaks the contract of `cadre.env.Env`
|   `-- DeadlineError        a call of an environment that did not end in time
|-- EngineError          a model that cannot be loaded, sampled from or trained as asked
|   |-- PromptError          a conversation that a model cannot be asked, while it could others
|   `-- AnswerError          a completion of a remote model that cannot be read
|-- SandboxError         this machine cannot confine programs as strictly as the run asks
|   `-- SandboxUnavailable   a program could not be run or judged, which says nothing about the program
|-- RunError             a run directory that would be overwritten, or cannot be resumed
|   `-- TakenError           a path that is there already, or that another process is just writing
`-- DivergedError        training met numbers that are not finite
"""

import difflib
import re
from collections.abc import Iterable

# A name of so many letters is somebody's text in a name's place, and would push the rest off the screen.
LONG_WORD = re.compile(r"(\S{200})\S{200,}(\S{50})")
# Errors of Python that say what they are about in a word or two.
TERSE = (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, UnicodeError)


# What would break the line, write elsewhere on the terminal, turn the text around, or not be printed at all.
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class CadreError(Exception):
    """Root of all errors that are the user's to fix; the command line prints it without a traceback.

    Each of its paragraphs is one line, whatever somebody's file has put into it.
    """

    def __init__(self, *paragraphs: str) -> None:
        super().__init__("\n\n".join(map(one_line, paragraphs)))


def one_line(words: str) -> str:
    """The words with line breaks as spaces, what cannot be seen escaped, and a middle left out of very long ones."""
    seen = UNPRINTABLE.sub(lambda found: " " if found[0] == "\n" else repr(found[0])[1:-1], words)
    return LONG_WORD.sub(r"\1...\2", seen)


class ConfigError(CadreError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class DataError(CadreError):
    """A data set is missing, has another shape than expected, or holds test items in training."""


class ContractError(CadreError):
    """An environment breaks the contract that `cadre.env.Env` documents."""


class DeadlineError(ContractError):
    """A call of an environment did not end in time."""


class EngineError(CadreError):
    """A model cannot be loaded, sampled from or trained as asked."""


class PromptError(EngineError):
    """A conversation is too long for the model or of a form that it does not take; that episode fails."""


class AnswerError(EngineError):
    """A remote model answered with nothing that can be read as a completion; that episode fails."""


class SandboxError(CadreError):
    """The machine lacks a layer of confinement that the run asks for."""


class SandboxUnavailable(SandboxError):
    """A program could not be run, on one new warm parent after another. It is no verdict: nobody may be paid for it."""


class RunError(CadreError):
    """A run directory exists already, is missing, or was made by another configuration."""


class TakenError(RunError):
    """A path that was to be made exists already, or another process is making it."""


class DivergedError(CadreError):
    """Losses or gradients three times in a row, or what the model says after an update, are not finite."""


def first_line(error: Exception) -> str:
    """What somebody else's error says, in one line: its first, and its kind where that alone would say little."""
    lines = str(error).strip().splitlines() or [""]
    said = " ".join(map(str.strip, lines[:2])) if lines[0].rstrip().endswith(":") else lines[0]
    said = said[:300].rstrip(". ")
    return f"{type(error).__name__} {said}".strip() if not said or isinstance(error, TERSE) else said


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""
