"""Refusals of trackers."""

from __future__ import annotations

from importlib.util import find_spec

from cadre.errors import ConfigError
from cadre.experiment.experiment import Experiment
from cadre.experiment.trackers import missing


def trackers_names(experiment: Experiment) -> None:
    """A tracker that is named is installed."""
    absent = [name for name in dict.fromkeys(experiment.config.trackers.names) if not _installed(name)]
    if absent:
        raise ConfigError(missing(absent))


def _installed(name: str) -> bool:
    """Whether there is such a package; a folder of that name, as W&B leaves where it ran, is none."""
    spec = find_spec(name)
    return spec is not None and spec.origin is not None
