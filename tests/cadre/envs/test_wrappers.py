"""Environments that stand for others pass on all that an environment may say, what is added to it later too."""

from __future__ import annotations

import pytest

from cadre.env import Env
from cadre.envs.wrappers import Central
from cadre.rollout.deadlines import TimedEnv
from cadre_analysis.one_agent import OneAgent
from cadre_ray.remote import RemoteEnv

# By default `step_samples` goes by way of `step`, which they pass on.
SAID = {
    name
    for name, value in vars(Env).items()
    if not name.startswith("_") and (callable(value) or isinstance(value, property))
} - {"step_samples"}


def test_there_is_something_to_pass_on() -> None:
    assert {"observe", "step", "until_ready", "fork", "close", "success", "privileged", "render"} <= SAID


@pytest.mark.parametrize("wrapper", [Central, OneAgent, RemoteEnv, TimedEnv])
def test_a_wrapper_passes_on_everything(wrapper: type[Env]) -> None:
    written = {name for kind in wrapper.__mro__ if kind not in (Env, object) for name in vars(kind)}
    assert written >= SAID
