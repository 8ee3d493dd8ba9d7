"""Where a run's metrics are drawn beside its own files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cadre.settings.section import Section

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class TrackersConfig(Section):
    """Each is told the metrics of every step and evaluation; nothing is read back from it."""

    names: tuple[TrackerName, ...] = Field(
        ("tensorboard",), description="so many as you like; all but tensorboard are extras of that name"
    )
    project: Annotated[str, Field(min_length=1)] = Field(
        "cadre", description="what the run belongs to there; MLflow calls it an experiment"
    )
