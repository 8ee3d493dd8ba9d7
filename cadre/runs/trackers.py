"""Trackers that plot a run's metrics beside its own files: TensorBoard, W&B, MLflow, Trackio.

Each package is imported when it is used, and reads its own environment variables. A tracker is only written to: the
run's own files are the record, from which a resumed run is plotted again as a new run of the tracker.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cadre.config.experiment import Config
from cadre.errors import ConfigError, one_line
from cadre.plugins import install_command
from cadre.settings.run import TrackersConfig
from cadre.settings.yaml_file import flatten


@dataclass(frozen=True)
class TrackedRun:
    """A run, as a tracker receives it when it starts."""

    folder: Path
    config: Config

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def project(self, variable: str = "") -> str:
        """Return the project: that of the settings, or while they have the default what the package's own environment
        `variable` names."""
        named = self.config.trackers.project
        is_default = named == TrackersConfig.model_fields["project"].default
        return (is_default and os.environ.get(variable)) or named

    @property
    def settings(self) -> dict[str, Any]:
        return self.config.model_dump(mode="json")


class Tracker(Protocol):
    """Plots one run, from its first step to its last. Constructing it imports its package, and begins to plot."""

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        """Plot the numbers after `step` updates. Steps never decrease."""

    def close(self) -> None: ...


# ---- One class per package


class TensorBoard:
    """One file of events in `tensorboard/` of the run's folder; each number is in it when `draw` returns.

    Written without a thread, a queue, or the machine's name in the file's.
    """

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = Event
        self._summary: Any = Summary
        folder = run.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        # Unbuffered: each number is in the file when `draw` returns, and a killed process loses none.
        self._file = (folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("ab", buffering=0)
        self._records: Any = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            shown = self._summary.Value(tag=name, simple_value=value)
            self._write(step=step, summary=self._summary(value=[shown]))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: Any) -> None:
        try:
            self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        except OSError:  # it is dropped
            self.close()
            raise


class WeightsAndBiases:
    """A run of the project, grouped under the run's name; unsent data are in `wandb/` of the run's folder."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=run.project("WANDB_PROJECT"),
            name=run.name,
            group=run.name,
            dir=run.folder,
            config=run.settings,
            settings=wandb.Settings(console="off"),
            reinit="create_new",
        )

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


# Characters that MLflow does not accept in names.
INVALID_CHARACTERS = re.compile(r"[^\w\-. :/]")
# The most parameters that it accepts at once, and the most letters of each.
MAX_PARAMS, MAX_LETTERS = 100, 6000


class MLflow:
    """A run of the experiment that is named as the project, with the settings as parameters."""

    def __init__(self, run: TrackedRun) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        self._metric: Any = Metric
        self._client: Any = mlflow.MlflowClient()
        project = run.project("MLFLOW_EXPERIMENT_NAME")
        existing = self._client.get_experiment_by_name(project)
        experiment = existing.experiment_id if existing else self._client.create_experiment(project)
        self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
        settings = ((INVALID_CHARACTERS.sub("_", key), str(value)) for key, value in flatten(run.settings))
        params = [Param(key, text[:MAX_LETTERS]) for key, text in settings]
        # A configuration has more settings than MLflow accepts at once.
        for first in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run, params=params[first : first + MAX_PARAMS])

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)  # milliseconds
        valid = {INVALID_CHARACTERS.sub("_", name): float(value) for name, value in numbers.items()}
        metrics = [self._metric(name, value, now, step) for name, value in valid.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Trackio:
    """A run of the project, grouped under the run's name."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._trackio: Any = trackio
        trackio.init(project=run.project(), name=run.name, group=run.name, config=run.settings, embed=False)

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        self._trackio.log(dict(numbers), step=step)

    def close(self) -> None:
        self._trackio.finish()


# ---- The trackers of a run

TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}
log = logging.getLogger(__name__)


class Trackers:
    """The trackers of one run; owned by it, closed with it. One that fails is dropped with a warning, whatever its
    error: training is worth more."""

    def __init__(self, run: TrackedRun) -> None:
        """Raises ConfigError where one is not installed or cannot begin."""
        self._open: dict[str, Tracker] = {}
        for name in dict.fromkeys(run.config.trackers.names):
            try:
                self._open[name] = TRACKERS[name](run)
            except ImportError:
                advice = f"Run {install_command(name)}, or leave it out."
                raise ConfigError(f"trackers.names: {name} is not installed; expected its extra. {advice}") from None
            except Exception as error:
                advice = "Log in (wandb login), name a server (MLFLOW_TRACKING_URI), or leave it out."
                got = f"{name} could not begin ({type(error).__name__}: {error})"
                raise ConfigError(f"trackers.names: {got}; expected it to answer. {advice}") from error

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        """Plot all finite numbers in every tracker."""
        # JSON null stands for numbers that are not finite, and no tracker plots those.
        finite = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        for name, tracker in list(self._open.items()):
            try:
                tracker.draw(step, finite)
            except Exception as error:  # noqa: BLE001 - of the network, of a server, of a package
                # A tracker that failed once may fail at every step, each time after a long timeout.
                del self._open[name]
                reason = one_line(f"{type(error).__name__}: {error}")
                log.warning("%s is told no more of this run, which goes on: %s", name, reason)

    def close(self) -> None:
        for name, tracker in self._open.items():
            try:
                tracker.close()
            except Exception as error:  # noqa: BLE001 - as above
                log.warning("%s could not be closed: %s", name, one_line(f"{type(error).__name__}: {error}"))
        self._open = {}
