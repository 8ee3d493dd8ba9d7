"""Optional packages of whole test files."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def skip_without(package: str) -> None:
    """Skip the file that is being collected where the package is not installed.

    `pytest.importorskip` would import it in every worker, those that run none of the file's tests too.
    """
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
