"""A run in Trackio."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from cadre.experiment.trackers.story import Story


class Trackio:
    """A run of the project, grouped under the run's name."""

    def __init__(self) -> None:
        import trackio

        self.errors: tuple[type[Exception], ...] = (OSError, ValueError, sqlite3.Error)
        self._trackio: Any = trackio

    def begin(self, story: Story) -> None:
        self._trackio.init(project=story.project, name=story.name, group=story.name, config=story.settings, embed=False)

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        self._trackio.log(dict(numbers), step=step)

    def close(self) -> None:
        self._trackio.finish()
