"""The single place where an exception of untrusted code becomes data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_MESSAGE = 400


@dataclass(frozen=True)
class Returned(Generic[T]):
    value: T


@dataclass(frozen=True)
class Raised:
    error: BaseException

    @property
    def builtin(self) -> str:
        """Name of the nearest built-in type of the exception."""
        return next(kind.__name__ for kind in type(self.error).__mro__ if kind.__module__ == "builtins")

    @property
    def message(self) -> str:
        """Its text, at most MAX_MESSAGE characters; empty if even `__str__` raises."""
        text = attempt(lambda: f"{self.error}")
        return text.value[:MAX_MESSAGE] if isinstance(text, Returned) else ""

    @property
    def described(self) -> str:
        """Its type and text in one line, for example `ValueError: too big`."""
        name = type(self.error).__name__
        return f"{name}: {self.message}" if self.message else name


def attempt(work: Callable[[], T]) -> Returned[T] | Raised:
    """Do the work and return its value or its exception, SystemExit included: sys.exit() must not skip a test."""
    try:
        return Returned(work())
    except BaseException as error:  # noqa: BLE001 - untrusted code raises what it likes
        return Raised(error)
