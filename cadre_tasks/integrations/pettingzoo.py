"""Any environment of Cadre as one of PettingZoo's (arXiv 2009.14471): `Aec` with turns, `Parallel` with joint actions.

Importing this module needs the extra pettingzoo. An agent is a role and its action a text. It observes the UTF-8 bytes
of its messages' texts in an array padded with zeros (longer texts are cut); the text itself is `infos[agent]["text"]`,
empty for agents that do not act now. `Aec` skips agents that do not act, `Parallel` ignores their actions.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.env import Split
from cadre.envs.spec import EnvSpec
from cadre.plugins import package

AECEnv: Any = package("pettingzoo", "pettingzoo").AECEnv
ParallelEnv: Any = package("pettingzoo", "pettingzoo").ParallelEnv
spaces = package("gymnasium.spaces", "pettingzoo")


class Played:
    """The base of both: an episode of the Cadre environment `env` with its settings, on a task drawn by the seed.
    Observations have at most `longest` bytes, actions at most so many letters."""

    metadata = {"name": "cadre", "render_modes": [], "is_parallelizable": False}

    def __init__(self, env: str, split: Split = "train", longest: int = 8192, **settings: Any) -> None:
        self.spec, self.split, self.longest = EnvSpec(env, settings), split, longest
        self.luck = random_keys.generator(0)
        self.possible_agents = list(self.spec.roles)
        self.observation_spaces = {agent: spaces.Box(0, 255, (longest,), np.uint8) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Text(longest, charset=string.printable) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def begin(self, seed: int | None) -> None:
        """Start a new episode; equal seeds give equal tasks."""
        self.luck = self.luck if seed is None else random_keys.generator("pettingzoo", seed)
        tasks = self.spec.tasks(self.split)
        self.env, self.agents = self.spec.make(tasks[self.luck.randrange(len(tasks))]), list(self.possible_agents)
        self.look()

    def look(self) -> None:
        """Update who acts now, and the observations."""
        run_coroutine(self.env.until_ready())
        self.acting = self.env.observe()
        texts = {name: "\n".join(message.content for message in now.messages) for name, now in self.acting.items()}
        self.infos = {agent: {"text": texts.get(agent, "")} for agent in self.agents}

    def play(self, actions: dict[str, str]) -> dict[str, float]:
        """Take a step and return each agent's reward: the team's and its own."""
        reward = run_coroutine(self.env.step(actions))
        self.look()
        return {agent: reward.team + reward.local.get(agent, 0.0) for agent in self.agents}

    def observe(self, agent: str) -> Any:
        text = np.frombuffer(self.infos[agent]["text"].encode()[: self.longest], np.uint8)
        return np.pad(text, (0, self.longest - len(text)))

    def close(self) -> None:
        self.env.close()


class Aec(Played, AECEnv):
    """One agent after the other; if several act at once, the step is taken when all have answered."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.begin(seed)
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.said: dict[str, str] = {}
        self.agent_selection = next(iter(self.acting))

    def step(self, action: str | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.said[agent] = str(action)
        if self.said.keys() == self.acting.keys():
            self.rewards, self.said = self.play(self.said), {}
            self.terminations = dict.fromkeys(self.agents, not self.acting)
        self.agent_selection = next((role for role in self.acting if role not in self.said), self.agents[0])
        self._accumulate_rewards()


class Parallel(Played, ParallelEnv):
    """Every agent at once."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        self.begin(seed)
        return {agent: self.observe(agent) for agent in self.agents}, self.infos

    def step(self, actions: dict[str, str]) -> tuple[dict, dict, dict, dict, dict]:
        rewards = self.play({role: str(actions[role]) for role in self.acting})
        over, cut = (dict.fromkeys(self.agents, flag) for flag in (not self.acting, False))
        observations, infos = {agent: self.observe(agent) for agent in self.agents}, self.infos
        self.agents = self.agents if self.acting else []
        return observations, rewards, over, cut, infos
