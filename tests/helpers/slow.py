"""Parameters of which a few are run by `make test` and the others by `make test-slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few_of(values: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of a test, those that are not among `quick` marked slow."""
    few = list(quick)
    given = list(values)
    assert all(one in given for one in few), few
    slow = pytest.mark.slow
    return [
        one if one in few else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=slow) for one in given
    ]
