"""Parameters of which a few are run by `make test` and the others by `make test-slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few_of(values: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of a test, those that are not among `quick` marked slow."""
    few = list(quick)
    arguments = list(values)
    assert all(item in arguments for item in few), few
    slow = pytest.mark.slow
    return [
        item if item in few else pytest.param(*(item if isinstance(item, tuple) else (item,)), marks=slow)
        for item in arguments
    ]
