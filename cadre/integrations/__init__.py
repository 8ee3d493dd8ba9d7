"""Environments of other libraries as Cadre environments, and the reverse; each needs a package that is an extra."""

from __future__ import annotations

import importlib
from typing import Any

from cadre.errors import ConfigError
from cadre.plugins import install_command


def package(module: str, extra: str) -> Any:
    """Return the module of an optional package. Raises ConfigError, with the extra to install, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"env: {extra} needs the package {module.split('.')[0]}, which cannot be imported ({error}); expected it "
            f"to be installed. Run: {install_command(extra)}"
        ) from None
