"""The generators of reasoning-gym as a team of solver and verifier: one answers, the other reads it and answers too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar

from cadre.env import Env, GeneratedTasks, Split
from cadre.envs.adapters import package
from cadre.errors import ConfigError, nearest
from cadre.types import Message, Observation, Reward, Task

ASKED = "Put your final answer between <answer> and </answer>."
CHECKED = "Somebody answered:\n{said}\nCheck it. If it is right, repeat its final answer, else give the right one. "
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(Env):
    """One problem of the generator `dataset`, scored from 0 to 1 by the package; solved is a score of 1. `options` are
    the generator's own, such as `{max_terms: 3}` of chain_sum.

    The solver is paid the score of its own answer, the team that of the verifier's. The same problem is never drawn for
    both splits: they have seeds of their own.
    """

    roles: ClassVar[tuple[str, ...]] = ("solver", "verifier")

    def __init__(
        self, task: Task, dataset: str = "basic_arithmetic", options: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        super().__init__(task)
        self.problems = _problems(dataset, options, task.data["seed"])
        self.said: list[str] = []
        self.score = 0.0

    def observe(self) -> dict[str, Observation]:
        if len(self.said) == len(self.roles):
            return {}
        question = f"{self.problems[0]['question']}\n"
        more = CHECKED.format(said=self.said[0]) if self.said else ""
        role = self.roles[len(self.said)]
        return {role: Observation(role, (Message("user", f"{question}{more}{ASKED}"),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        found = ANSWER.findall(text)
        answer = found[-1].strip() if found else text.strip()
        self.score = float(self.problems.score_answer(answer=answer, entry=self.problems[0]))
        self.said.append(text)
        parts = {f"{role}/score": self.score, f"{role}/tagged": float(bool(found))}
        if role == "solver":
            return Reward(local={role: self.score}, parts=parts)
        return Reward(team=self.score, parts=parts)

    @property
    def success(self) -> bool:
        return len(self.said) == len(self.roles) and self.score == 1.0

    @classmethod
    def tasks(cls, split: Split, **settings: Any) -> Sequence[Task]:
        return GeneratedTasks(10_000, lambda index: {"seed": 2 * index + (split == "test")}, split)


def _problems(dataset: str, options: Mapping[str, Any], seed: int) -> Any:
    """The generator's data set of one problem. Raises ConfigError for a generator or an option that there is not, and
    for options that the generator refuses."""
    gym, known = package("reasoning_gym", "reasoning-gym"), package("reasoning_gym.factory", "reasoning-gym").DATASETS
    if dataset not in known:
        raise ConfigError(
            f"settings.dataset: got {dataset!r}; expected one of the {len(known)} generators of reasoning-gym, such as "
            f"basic_arithmetic. Fix the name.{nearest(dataset, known)}"
        )
    names = {field.name for field in fields(known[dataset][1])} - {"seed", "size"}
    for name in options:
        if name not in names:
            raise ConfigError(
                f"settings.options: got {name!r}; expected options of {dataset}: {', '.join(sorted(names))}. "
                f"Fix the name.{nearest(name, names)}"
            )
    try:
        return gym.create_dataset(dataset, seed=seed, size=1, **options)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"settings.options: got {dict(options)}; expected what {dataset} takes, which says: {error}. "
            "Change the options, or take another generator."
        ) from error
