"""A run in MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from cadre.experiment.config import flat
from cadre.experiment.trackers.story import Story

# What MLflow takes no name with.
REFUSED = re.compile(r"[^\w\-. :/]")
# The most parameters that it takes at once, and of how many letters each.
AT_ONCE, LETTERS = 100, 6000


class MLflow:
    """A run of the experiment that is named as the project, with the settings as parameters."""

    def __init__(self) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        self.errors: tuple[type[Exception], ...] = (mlflow.MlflowException, OSError)
        self._client: Any = mlflow.MlflowClient
        self._metric: Any = Metric
        self._param: Any = Param

    def begin(self, story: Story) -> None:
        self._client = self._client()
        known = self._client.get_experiment_by_name(story.project)
        experiment = known.experiment_id if known else self._client.create_experiment(story.project)
        self._run = self._client.create_run(experiment, run_name=story.name).info.run_id
        params = [self._param(_plain(key), str(value)[:LETTERS]) for key, value in flat(story.settings)]
        for first in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._run, params=params[first : first + AT_ONCE])

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_plain(name), float(value), now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _plain(name: str) -> str:
    return REFUSED.sub("_", name)
