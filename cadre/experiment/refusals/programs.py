"""Refusals of agent programs that are asked for what they cannot do."""

from __future__ import annotations

import random

from cadre.errors import ConfigError
from cadre.experiment.experiment import Experiment

# Decisions of an episode that are looked at for siblings.
DEPTHS = 20


def settings_replayable(experiment: Experiment) -> None:
    """A program that cannot be played again is asked for no tree that plays it again: siblings part at the first
    decision, or each answer is paid by itself and one of them goes on."""
    given, shape = experiment.env_spec.all_settings, experiment.plan.shape
    if given.get("replayable", True) or not shape.parts_later(experiment.env_spec.roles, DEPTHS):
        return
    goes_on = len(shape.expand([0.0, 0.0], random.Random(0)))
    if given.get("turn_reward") and goes_on == 1 and shape.grower is None:
        return
    raise ConfigError(
        f"settings.replayable: got false under {experiment.config.algorithm.name}, whose trees ({shape.name}) branch "
        "behind the first decision, which means to start the program again with the answers that it had; expected "
        "whole episodes side by side. Use algorithm=grpo, or take what changes from run to run out of the prompts "
        "(cadre check shows it) and remove the setting."
    )
