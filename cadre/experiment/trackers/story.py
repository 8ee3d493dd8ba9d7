"""What a tracker is told of a run, and what is asked of a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cadre.experiment.config import Config


@dataclass(frozen=True)
class Story:
    """A run, as a tracker is told of it when it begins."""

    folder: Path
    config: Config

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def project(self) -> str:
        return self.config.trackers.project

    @property
    def settings(self) -> dict[str, Any]:
        return self.config.model_dump(mode="json")


class Tracker(Protocol):
    """Draws one run, from its first step to its last. Making it imports its package, and does nothing else.

    errors   what it raises where it cannot be reached or refuses what it is told: the run goes on without it
    """

    errors: tuple[type[Exception], ...]

    def begin(self, story: Story) -> None:
        """Get ready to draw."""
        ...

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        """Draw what is known after `step` updates. Steps never fall."""
        ...

    def close(self) -> None: ...
