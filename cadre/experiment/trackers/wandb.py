"""A run in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cadre.experiment.trackers.story import Story


class WeightsAndBiases:
    """A run of the project, grouped under the run's name; what waits to be sent is in `wandb/` of the run's folder."""

    def __init__(self) -> None:
        import wandb

        self.errors: tuple[type[Exception], ...] = (wandb.Error, OSError)
        self._wandb: Any = wandb

    def begin(self, story: Story) -> None:
        self._run = self._wandb.init(
            project=story.project,
            name=story.name,
            group=story.name,
            dir=story.folder,
            config=story.settings,
            settings=self._wandb.Settings(console="off"),
            reinit="create_new",
        )

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()
