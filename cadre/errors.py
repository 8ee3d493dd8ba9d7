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
import itertools
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parent)
# A word of so many letters is a text in place of a name, and would push the rest off the screen.
LONG_WORD = re.compile(r"(\S{200})\S{200,}(\S{50})")
# Errors of Python whose message is a word or two.
TERSE = (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, UnicodeError)


# Characters that break the line, move the terminal's cursor, turn the text around, or cannot be printed.
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class CadreError(Exception):
    """Root of all errors that are the user's to fix; the command line prints it without a traceback.

    Each of its paragraphs is one line, whatever a file contributed to it.
    """

    def __init__(self, *paragraphs: str) -> None:
        super().__init__("\n\n".join(map(one_line, paragraphs)))

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the lines of the user's own code that led to the error, and the error."""
        frames = traceback.extract_tb(self.__traceback__)
        # The frames below the first of Cadre are its own, or those of libraries that it calls.
        user_frames = itertools.takewhile(lambda frame: not frame.filename.startswith(PACKAGE), frames)
        cells = [frame for frame in user_frames if "site-packages" not in frame.filename]
        return [*traceback.format_list(cells[-3:]), f"{type(self).__name__}: {self}"]


def one_line(text: str) -> str:
    """Return the text with line breaks as spaces, unprintable characters escaped, and very long words shortened."""
    printable = UNPRINTABLE.sub(lambda match: " " if match[0] == "\n" else repr(match[0])[1:-1], text)
    return LONG_WORD.sub(r"\1...\2", printable)


class ConfigError(CadreError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class DataError(CadreError):
    """A data set is missing, has another shape than expected, or holds test items in training."""


class NoSourceError(DataError):
    """A data set is named, but no source to read it from; with the settings `example` a few invented items stand in."""

    def __init__(self, message: str, example: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.example = example


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
    """A program could not be run, on one new warm parent after another. No reward may follow from it."""


class RunError(CadreError):
    """A run directory exists already, is missing, or was made by another configuration."""


class TakenError(RunError):
    """A path that was to be made exists already, or another process is making it."""


class ReplayDiverged(Exception):
    """A state that was made again by the actions that had led to it is another one, so that its samples would be judged
    in a state that they were not made in. It ends an episode as a failure of the machine."""


class DivergedError(CadreError):
    """Losses or gradients three times in a row, or the model's outputs after an update, are not finite."""


def require_linux(setting: str, reason: str, remedy: str) -> None:
    """Raise ConfigError on other systems than Linux."""
    if sys.platform != "linux":
        raise ConfigError(f"{setting}: needs Linux, and this is {sys.platform}: {reason}; expected Linux. {remedy}")


def first_line(error: Exception) -> str:
    """Return the first line of another library's error, with its type if the line alone would be too short."""
    lines = str(error).strip().splitlines() or [""]
    message = " ".join(map(str.strip, lines[:2])) if lines[0].rstrip().endswith(":") else lines[0]
    message = message[:300].rstrip(". ")
    return f"{type(error).__name__} {message}".strip() if not message or isinstance(error, TERSE) else message


def as_sentence(text: str) -> str:
    """Return the text with a full stop, unless it ends a sentence already."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def reject_name(got: str, expected: str, hint: str) -> str:
    """Return what is wrong with a name, and what is expected. A hint, as of `nearest`, comes before a long list."""
    return f"{got}.{hint} E{expected[1:]}" if hint else f"{got}; {expected}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a sentence with the nearest of the names, or nothing."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""


class ProgramFailed(Exception):
    """The program raised, was killed, or ended without a result that can be rewarded.

    This and the errors below are failures of an episode, not of Cadre: each costs a branch of a tree, and is counted.
    `margin` is by how much its reward is below the lowest of its siblings; None leaves the branch out.
    """

    margin: float | None = 0.0


class NotStarted(Exception):
    """The fork server ended, as when the kernel kills it for its memory: no fault of the program."""
