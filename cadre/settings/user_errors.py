"""What went wrong in a user's own code, in one paragraph: the error, and the lines of their files that it came from."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cadre
from cadre.errors import CadreError, ContractError
from cadre.settings.user_imports import OWN, is_user_module, plain_name

HOME = Path(cadre.__file__).parents[1].resolve()
OURS = tuple(HOME / name for name in OWN)
CALLERS = {"check.py", "spec.py"}
LIBRARIES = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib"))
# Lines of the user's own that are named with an error.
SHOWN_LINES = 4


@contextmanager
def called(what: str, when: str = "", advice: str = "Fix that line.") -> Iterator[None]:
    """Around a call of the user's code: an exception there becomes a ContractError that says what was called and, in
    `when`, with what. Cadre's own errors pass."""
    try:
        yield
    except CadreError:
        raise
    except SystemExit as error:
        raise ContractError(
            f"{what}: raised {described_error(error)}, which would end the run{when}; expected no exit. Return, or "
            "raise an error."
        ) from error
    except Exception as error:
        raise ContractError(f"{what}: raised {described_error(error)}{when}; expected no error. {advice}") from error


def described_error(error: BaseException) -> str:
    """`KeyError: 'digit' at line 12 of my_file.py, in observe, called from line 30 of my_file.py, in step`: the error
    with the lines of the user's that led to it, the innermost first."""
    text = plain_name(" ".join(str(error).split()))
    return f"{type(error).__name__}{f': {text}' if text else ''}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """` at line 12 of my_file.py, in observe`, with the lines that called it, or nothing where no line of the user's
    is known. A bundled environment counts as the user's where nothing else does."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f" at line {error.lineno} of {Path(error.filename).name}"
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    mine = [frame for frame in frames if is_users(frame.filename)]
    mine = mine or [frame for frame in frames if _is_of_an_environment(frame.filename)][:1]
    lines = [
        f"line {frame.lineno} of {Path(frame.filename).name}{'' if frame.name == '<module>' else f', in {frame.name}'}"
        for frame in mine
    ]
    if len(lines) > SHOWN_LINES:
        lines = [*lines[: SHOWN_LINES - 1], lines[-1]]
    return f" at {', called from '.join(lines)}" if lines else ""


def has_users_lines(error: BaseException) -> bool:
    """Whether the error passed through a file that Cadre has loaded for the user."""
    tb = error.__traceback__
    while tb is not None:
        name = tb.tb_frame.f_globals.get("__name__", "")
        if isinstance(name, str) and is_user_module(name):
            return True
        tb = tb.tb_next
    return False


def is_users(file: str) -> bool:
    """Whether a file is neither of a library nor of Cadre."""
    path = Path(file).resolve()
    if file.startswith("<") or not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return False
    return not str(path).startswith((*LIBRARIES, *(f"{folder}/" for folder in OURS)))


def _is_of_an_environment(file: str) -> bool:
    path = Path(file).resolve()
    if path.is_relative_to(HOME / "cadre_tasks") or path.is_relative_to(HOME / "cadre" / "integrations"):
        return True
    envs = HOME / "cadre" / "envs"
    return path.is_relative_to(envs) and not (path.parent == envs and path.name in CALLERS)
