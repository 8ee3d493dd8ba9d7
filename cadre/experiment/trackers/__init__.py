"""Who draws the metrics of a run beside its own files: trackers by name, each a package that is imported when used.

A tracker is told and never asked: the run's own files are what counts. A run that goes on is drawn anew from them, as a
new run of the tracker that has all steps so far. What this leaves out: pictures, texts, weights, what is printed.

Each package reads its own environment variables: where it writes, who is logged in, whether it is offline.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence

from cadre.errors import ConfigError
from cadre.experiment.trackers.mlflow import MLflow
from cadre.experiment.trackers.story import Story, Tracker
from cadre.experiment.trackers.tensorboard import TensorBoard
from cadre.experiment.trackers.trackio import Trackio
from cadre.experiment.trackers.wandb import WeightsAndBiases

log = logging.getLogger(__name__)

TRACKERS: Mapping[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}
# What a user may do where one cannot begin.
ADVICE = {
    "wandb": "Log in with `wandb login`, or set WANDB_MODE=offline",
    "mlflow": "Set MLFLOW_TRACKING_URI to a server that answers, or to sqlite:///mlflow.db",
    "trackio": "Set TRACKIO_DIR to a folder that can be written to",
}


class Trackers:
    """The trackers of one run; owned by it, closed with it."""

    def __init__(self, story: Story) -> None:
        """Raises ConfigError where one cannot begin."""
        names = dict.fromkeys(story.config.trackers.names)
        self._open = {name: begun(name, story) for name in names}

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        """Draw everywhere what is a finite number. One that fails is left out from there on, with a warning: training
        is worth more."""
        drawn = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        for name, tracker in list(self._open.items()):
            try:
                tracker.draw(step, drawn)
            except tracker.errors as error:
                del self._open[name]
                log.warning("%s is told no more of this run, which goes on: %s", name, _told(error))

    def close(self) -> None:
        for name, tracker in self._open.items():
            try:
                tracker.close()
            except tracker.errors as error:
                log.warning("%s could not be closed: %s", name, _told(error))
        self._open = {}


def begun(name: str, story: Story) -> Tracker:
    """The tracker of that name, ready to draw. Raises ConfigError where it is not installed or cannot begin."""
    try:
        tracker = TRACKERS[name]()
    except ImportError:
        raise ConfigError(missing([name])) from None
    try:
        tracker.begin(story)
    except tracker.errors as error:
        raise ConfigError(
            f"trackers.names: {name} could not begin ({_told(error)}); expected it to answer. {ADVICE[name]}, or leave "
            "it out of trackers.names."
        ) from None
    return tracker


def missing(names: Sequence[str]) -> str:
    """What is said of trackers whose packages are not installed."""
    are = "is" if len(names) == 1 else "are"
    return (
        f"trackers.names: got {', '.join(names)}, which {are} not installed; expected the extra of that name. "
        f"Run: pip install 'cadre-rl[{','.join(names)}]', or leave it out of trackers.names."
    )


def _told(error: Exception) -> str:
    """`CommError: the server does not answer`, on a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
