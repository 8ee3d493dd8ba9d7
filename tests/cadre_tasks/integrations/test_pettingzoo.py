"""Cadre's environments by PettingZoo's own tests, against the real package."""

import warnings
from typing import Any

import numpy as np
import pytest

from tests.helpers.coordination import GAMES

pytest.importorskip("pettingzoo", reason="the extra pettingzoo is not installed")
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

from cadre_tasks.integrations.pettingzoo import Aec, Parallel

# Turns, several at once with turns after them, and somebody who acts twice.
ENVS: list[tuple[str, dict[str, Any]]] = [
    (f"{GAMES}:Relay", {"turns": 2}),
    (f"{GAMES}:Handshake", {"turns": 3}),
    (f"{GAMES}:Trio", {}),
]


@pytest.mark.parametrize(("env", "settings"), ENVS)
def test_their_own_tests_pass(env: str, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # spaces of text and names of agents are not those that they expect
        api_test(Aec(env, longest=64, **settings), num_cycles=50)
        parallel_api_test(Parallel(env, longest=64, **settings), num_cycles=50)
        seed_test(lambda: Aec(env, longest=64, **settings), num_cycles=50)
        parallel_seed_test(lambda: Parallel(env, longest=64, **settings), num_cycles=50)


def test_turns_pay_when_they_are_made() -> None:
    env = Aec(f"{GAMES}:Relay", turns=1)
    env.reset(seed=1)
    assert env.agent_selection == "scout"
    env.step("abc")
    assert (env.agent_selection, env.rewards) == ("runner", {"scout": 3.0, "runner": 0.0})
    assert bytes(env.observe("runner")).rstrip(b"\0").decode() == env.infos["runner"]["text"] != ""
    assert not env.observe("scout").any()
    env.step("abc")
    assert env.rewards == {"scout": 1.0, "runner": 1.0}
    assert env._cumulative_rewards == {"scout": 4.0, "runner": 1.0}
    assert all(env.terminations.values())


def test_those_who_act_at_once_are_asked_one_after_the_other() -> None:
    env = Aec(f"{GAMES}:Handshake")
    env.reset(seed=0)
    digit = env.infos["left"]["text"]
    env.step(digit)
    assert (env.agent_selection, sum(env.rewards.values())) == ("right", 0.0)
    env.step(digit)
    assert env.rewards == {"left": 1.0, "right": 1.0}


def test_all_at_once_pay_the_same_and_end_together() -> None:
    env = Parallel(f"{GAMES}:Handshake", longest=16)
    recorded, infos = env.reset(seed=0)
    assert recorded["left"].dtype == np.uint8
    digit = infos["left"]["text"]
    _, rewards, over, cut, _ = env.step({"left": digit, "right": "x"})
    assert rewards == {"left": 0.5, "right": 0.5}
    assert (list(over.values()), list(cut.values()), env.agents) == ([True] * 2, [False] * 2, [])
