"""Parameters of which a few are run by `make test` and the others by `make test-slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few_of(values: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of a test, those that are not among `quick` marked slow."""
    few = list(quick)
    params = [one if one in few else pytest.param(one, marks=pytest.mark.slow) for one in values]
    assert any(one in few for one in params), few
    return params
