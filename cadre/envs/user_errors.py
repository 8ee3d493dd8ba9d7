"""What went wrong in a user's own code, in one paragraph: the error, and the line of their file that it came from."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cadre.errors import CadreError, ContractError

HERE = Path(__file__).parent
CALLERS = {"check.py", "check_episode.py", "findings.py", "spec.py", "user_errors.py"}
LIBRARIES = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib"))


@contextmanager
def called(what: str, when: str = "", advice: str = "Fix that line.") -> Iterator[None]:
    """Around a call of the user's code: an exception there becomes a ContractError that says what was called and, in
    `when`, with what. Cadre's own errors pass."""
    try:
        yield
    except CadreError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is told in one paragraph
        raise ContractError(f"{what}: raised {told(error)}{when}; expected no error. {advice}") from None


def told(error: BaseException) -> str:
    """`KeyError: 'digit' at line 12 of my_file.py, in observe`: the last line of neither a library nor the caller."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """` at line 12 of my_file.py, in observe`, or nothing where no line of the user's is known."""
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame for frame in reversed(frames) if _is_users(frame.filename)), None)
    return f" at line {line.lineno} of {Path(line.filename).name}, in {line.name}" if line else ""


def _is_users(file: str) -> bool:
    path = Path(file).resolve()
    return (
        not str(path).startswith(LIBRARIES)
        and not (path.parent == HERE and path.name in CALLERS)
        and path.parent != HERE.parent / "rollout"
        and path != HERE.parent / "env.py"
    )
