"""Environments of Gymnasium whose observations are text, and of packages with its interface (`reset` and `step`)."""

from __future__ import annotations

import copy
import importlib
import re
from typing import Any, Literal, Self

from cadre.errors import ConfigError
from cadre.plugins import package
from cadre.types import Reward, Task
from cadre_tasks.integrations import OneAgentGame, expect_equal

# Numbers in an answer, with whatever marks around them; a fraction is one number and no action.
NUMBER = re.compile(r"(?<![^\W_])-?[0-9]+(?:\.[0-9]+)?(?![^\W_])")
INTEGER = re.compile(r"-?[0-9]{1,9}")


class Gymnasium(OneAgentGame):
    """Settings:

    id            a registered environment, MODULE:ID to import its package first
    args          arguments of `gymnasium.make`
    observation   the entry of an observation that is a dict, which is shown; without it, texts as they are and others
                  as `str` writes them
    prompt        a system message, as environments seldom describe their actions
    turns         an episode that takes more steps is over
    invalid       reward of an answer that is no action, which ends the episode
    solved        sum of rewards from which an episode that is over is a success
    fork          copy: deepcopy of the environment; replay: a new one that is given the recorded actions
    count         tasks of the training split; a tenth as many for testing, with other seeds

    An answer is the action of a text space; of a discrete space it is the action's number, or the last number in it.
    """

    plain_text = {"id": r"[\w-]+(/[\w-]+)?", "observation": ".*", "prompt": ".*"}  # without the MODULE: of an id

    def __init__(
        self,
        task: Task,
        id: str,
        args: dict[str, Any] | None = None,
        observation: str = "",
        prompt: str = "",
        turns: int = 20,
        invalid: float = 0.0,
        solved: float = 1.0,
        fork: Literal["copy", "replay"] = "copy",
    ) -> None:
        super().__init__(task, observation, turns, solved)
        self.id, self.arguments, self.invalid, self.fork_by = id, dict(args or {}), invalid, fork
        self.game, shown = self._start()
        self.begin(prompt, shown)

    def _start(self) -> tuple[Any, Any]:
        """Return a new game after the recorded actions, and its observation. Raises ConfigError for unknown games."""
        gymnasium = package("gymnasium", "gymnasium")
        module, colon, name = self.id.rpartition(":")
        try:
            if colon:
                importlib.import_module(module)
            game = gymnasium.make(name, **self.arguments)
        except (ImportError, TypeError, gymnasium.error.Error) as error:
            raise ConfigError(
                f"settings.id: gymnasium cannot make {self.id!r} with {self.arguments!r} ({error}); expected a "
                "registered environment, or MODULE:ID of an installed package."
            ) from None
        if not isinstance(game.action_space, (gymnasium.spaces.Text, gymnasium.spaces.Discrete)):
            raise ConfigError(
                f"settings.id: {self.id!r} takes actions of {game.action_space}; expected a Text or Discrete space."
            )
        shown, _ = game.reset(seed=self.task.data["seed"])
        for action in self.actions:
            shown, *_ = game.step(action)
        return game, shown

    def written(self, shown: Any) -> str:
        return str(shown)

    def _action_of(self, text: str) -> Any:
        """Return the action of an answer, or None."""
        space = self.game.action_space
        if not hasattr(space, "n"):
            return text if text in space else None
        numbers = NUMBER.findall(text)
        action = int(numbers[-1]) if numbers and INTEGER.fullmatch(numbers[-1]) else None
        return action if action is not None and action in space else None

    async def step(self, actions: dict[str, str]) -> Reward:
        (text,) = actions.values()
        if self.game is None:
            self.game, shown = self._start()
            if self.actions:
                remedy = "Take fork: copy, or an environment that draws from its seed alone."
                expect_equal("gymnasium", self.messages[-1].content, self.text_of(shown), remedy)
        action = self._action_of(text)
        if action is None:
            self.over = True
            return Reward(self.invalid, parts={"valid": 0.0})
        shown, reward, terminated, truncated, _ = self.game.step(action)
        return self.took(text, action, shown, float(reward), bool(terminated or truncated))

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin.game = None if self.fork_by == "replay" else copy.deepcopy(self.game)
        return twin
