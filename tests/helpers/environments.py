"""Environments as the contract check takes them."""

from __future__ import annotations

from cadre.env import Env
from cadre.envs.spec import EnvSpec


def game_of(env: type[Env]) -> EnvSpec:
    return EnvSpec(env, {})
