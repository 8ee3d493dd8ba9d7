"""An environment of Cadre as a server of OpenEnv (package `openenv-core`, 0.3), for whoever trains by its client.

    app = make_openenv_app("plan-path", {"prompts": "compact"})      # in served.py; then: uvicorn served:app

`reset(seed=7)` begins the task 7 of the split. An action is `{"texts": {role: text}}`, with a text for every role that
acts; an observation has the messages of those roles, the local rewards by role and the parts, and the reward is the
team's. Each session has an episode of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from cadre.concurrency import run_coroutine
from cadre.env import Env, Split
from cadre.envs.spec import EnvSpec
from cadre.envs.validation import valid_observations, valid_reward
from cadre.plugins import package
from cadre.types import Reward
from cadre_tasks.integrations import plain_messages, served_spec


class ServedEpisode:
    """One episode at a time of an environment, as plain values. `numbers` are those of tasks that follow each other;
    the sessions of a server share them, as many clients open a session an episode."""

    def __init__(self, spec: EnvSpec, split: Split, numbers: Iterator[int] | None = None) -> None:
        self.spec, self.tasks = spec, spec.tasks(split)
        self.env: Env | None = None
        self.steps, self._numbers = 0, numbers if numbers is not None else itertools.count()

    def reset(self, seed: int | None = None) -> None:
        """Begin the task of that number, modulo the number of tasks; without one the next task."""
        self.close()
        number = next(self._numbers) if seed is None else seed
        self.env, self.steps = self.spec.make(self.tasks[number % len(self.tasks)]), 0

    async def observe(self, reward: Reward) -> dict[str, Any]:
        """Return the state after a step with this reward."""
        assert self.env is not None
        await self.env.until_ready()
        observations = valid_observations(self.env, self.spec.roles)
        messages = {role: plain_messages(observation, "OpenEnv") for role, observation in observations.items()}
        return {
            "messages": messages,
            "local": {role: float(value) for role, value in reward.local.items()},
            "parts": {name: float(value) for name, value in reward.parts.items()},
            "success": bool(self.env.success) if not observations else False,
            "task": self.env.task.id,
            "reward": float(reward.team),
            "done": not observations,
        }

    async def step(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Apply a text of every acting role. Raises ValueError for other roles, or before `reset`."""
        if self.env is None:
            raise ValueError("step: there is no episode; expected reset first.")
        acting = self.env.observe()
        if not acting or set(texts) != set(acting):
            raise ValueError(
                f"action.texts: got the roles {', '.join(texts) or 'none'}; expected a text of each role that acts: "
                f"{', '.join(acting) or 'none, as the episode is over'}."
            )
        self.steps += 1
        reward = await self.env.step(dict(texts))
        return await self.observe(valid_reward(self.env, reward, acting, self.spec.roles))

    def close(self) -> None:
        """Release the episode."""
        if self.env is not None:
            self.env.close()
            self.env = None


def make_openenv_app(
    env: str, settings: Mapping[str, Any] | None = None, split: Split = "train", sessions: int = 64
) -> Any:
    """Return the server's app (FastAPI) for an environment, by its name or `FILE.py:CLASS`, with its settings. Raises
    ConfigError if the environment takes no such settings or has tools, or openenv-core is not installed."""
    server = package("openenv.core.env_server", "openenv")
    types = package("openenv.core.env_server.types", "openenv")
    spec, _ = served_spec(env, settings or {}, split, "OpenEnv")
    numbers = itertools.count()

    class TeamAction(types.Action):  # type: ignore[misc, name-defined]
        texts: dict[str, str]

    class TeamObservation(types.Observation):  # type: ignore[misc, name-defined]
        messages: dict[str, list[dict[str, str]]] = {}
        local: dict[str, float] = {}
        parts: dict[str, float] = {}
        success: bool = False
        task: str = ""

    class ServedEnvironment(server.Environment):  # type: ignore[misc, name-defined]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.episode, self.episode_id = ServedEpisode(spec, split, numbers), ""

        async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            self.episode.reset(seed)
            self.episode_id = episode_id or ""
            return TeamObservation(**await self.episode.observe(Reward()))

        async def step_async(self, action: Any, **_: Any) -> Any:
            return TeamObservation(**await self.episode.step(action.texts))

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
            return run_coroutine(self.reset_async(seed, episode_id))

        def step(self, action: Any, **_: Any) -> Any:
            return run_coroutine(self.step_async(action))

        @property
        def state(self) -> Any:
            return types.State(episode_id=self.episode_id, step_count=self.episode.steps)

        def close(self) -> None:
            self.episode.close()

    return server.create_app(ServedEnvironment, TeamAction, TeamObservation, env, max_concurrent_envs=sessions)
