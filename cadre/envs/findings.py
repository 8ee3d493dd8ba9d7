"""What a check of an environment has found so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cadre.errors import ContractError, DeadlineError
from cadre.settings.user_errors import called


class Broken(ContractError):
    """A fault that ends what was being tried, such as an episode; the check goes on with the next."""

    def __init__(self, rule: str, paragraph: str) -> None:
        super().__init__(paragraph)
        self.rule = rule


class Findings:
    """Owned by one check. A paragraph says what, got, "; expected", and what to do; of faults that expect the same of
    the same thing the first is kept."""

    def __init__(self) -> None:
        self.rules: set[str] = set()
        self._paragraphs: dict[tuple[str, str], str] = {}

    @property
    def paragraphs(self) -> tuple[str, ...]:
        return tuple(self._paragraphs.values())

    def add(self, rule: str, paragraph: str) -> None:
        """Note a fault against a rule."""
        self.rules.add(rule)
        kind = (paragraph.partition(":")[0], paragraph.partition("; expected")[2])
        self._paragraphs.setdefault(kind, paragraph)

    def require(self, holds: bool, rule: str, paragraph: str) -> None:
        """Note a fault unless the condition holds."""
        if not holds:
            self.add(rule, paragraph)

    def refuse(self, rule: str, paragraphs: Iterable[str]) -> None:
        """Note all of these faults; raises `Broken` if there are any."""
        noted = list(paragraphs)
        for paragraph in noted:
            self.add(rule, paragraph)
        if noted:
            raise Broken(rule, noted[0])

    @contextmanager
    def noting(self) -> Iterator[None]:
        """What is tried inside may end at a fault."""
        try:
            yield
        except Broken as fault:
            self.add(fault.rule, str(fault))

    @contextmanager
    def calling(self, rule: str, what: str, advice: str = "Fix that line.", when: str = "") -> Iterator[None]:
        """Around a call of the user's code: an exception there becomes `Broken`, told with `when` it came.
        One that does not end in time ends the check, as what follows might take as long."""
        try:
            with called(what, when, advice):
                yield
        except (Broken, DeadlineError):
            raise
        except ContractError as error:
            raise Broken(rule, str(error)) from None
