"""Environments of other libraries as Cadre environments, and the reverse; each needs a package that is an extra."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from cadre.env import GeneratedTasks, Split
from cadre.errors import ConfigError
from cadre.plugins import install_command
from cadre.types import Task


def package(module: str, extra: str) -> Any:
    """Return the module of an optional package. Raises ConfigError, with the extra to install, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"env: {extra} needs the package {module.split('.')[0]}, which cannot be imported ({error}); expected it "
            f"to be installed. Run: {install_command(extra)}"
        ) from None


def seeded_tasks(split: Split, count: int) -> Sequence[Task]:
    """Return `count` tasks for training, or a tenth as many for testing, that are seeds; the splits share none."""
    size, first = (count, 0) if split == "train" else (max(1, count // 10), 1_000_000)
    return GeneratedTasks(size, lambda index: {"seed": first + index}, split)
