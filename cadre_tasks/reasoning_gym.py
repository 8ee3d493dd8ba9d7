"""The generators of reasoning-gym as a team of solver and verifier: one answers, the other reads it and answers too.

Answers are scored in a child of the sandbox (`cadre_sandbox.inside.reasoning`), as some generators evaluate them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar

from cadre import random_keys
from cadre.env import Env, Split
from cadre.envs.splits import drawn_tasks, in_split
from cadre.errors import ConfigError, nearest
from cadre.plugins import package
from cadre.types import Message, Observation, Reward, Task
from cadre_sandbox import Limits
from cadre_sandbox.inside import codec
from cadre_tasks.judging_package import JudgingPackage

ASKED = "Put your final answer between <answer> and </answer>."
CHECKED = "Somebody answered:\n{said}\nCheck it. If it is right, repeat its final answer, else give the right one. "
GYM = JudgingPackage("reasoning_gym", "reasoning-gym", "scores answers", "inside.reasoning")
LIMITS = Limits(cpu_s=5.0, wall_s=60.0, memory_mb=2048)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(Env):
    """One problem of the generator `dataset`, scored from 0 to 1 by the package; solved is a score of 1. `options` are
    the generator's own, such as `{max_terms: 3}` of chain_sum.

    The solver is paid the score of its own answer, the team that of the verifier's. The question decides the split, so
    no problem is in both. Some generators draw by the order of Python's sets: for them equal seeds give equal problems
    under one PYTHONHASHSEED.
    """

    roles: ClassVar[tuple[str, ...]] = ("solver", "verifier")
    plain_text = {"dataset": r"\w+", "options": r"[\w -]*"}

    def __init__(
        self, task: Task, dataset: str = "basic_arithmetic", options: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        super().__init__(task)
        self.dataset, self.options = dataset, dict(options)
        self.problem = _problem(dataset, options, task.data["seed"])
        self.said: list[str] = []
        self.score = 0.0

    def observe(self) -> dict[str, Observation]:
        if len(self.said) == len(self.roles):
            return {}
        question = f"{self.problem['question']}\n"
        more = CHECKED.format(said=self.said[0]) if self.said else ""
        role = self.roles[len(self.said)]
        return {role: Observation(role, (Message("user", f"{question}{more}{ASKED}"),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        tagged = ANSWER.findall(text)
        # Models often repeat the tags of the prompt before they answer: the last ones count.
        answer = tagged[-1].strip() if tagged else text.strip()
        self.score = await self.worth(answer)
        self.said.append(text)
        parts = {f"{role}/score": self.score, f"{role}/tagged": float(bool(tagged))}
        if role == "solver":
            return Reward(local={role: self.score}, parts=parts)
        return Reward(team=self.score, parts=parts)

    async def worth(self, answer: str) -> float:
        """Return the package's score of an answer, 0 to 1; 0 if scoring takes more than LIMITS."""

        def plain_alone(value: Any) -> int:
            # An object may be a plain value too, such as a text of numpy's.
            return 0 if isinstance(value, str | int | float | tuple) else codec.no_reference(value)

        try:
            problem = codec.encode(self.problem, plain_alone)
        except codec.CodecError as error:
            got = f"problems of {self.dataset} are no plain values for the sandbox: {error}"
            raise ConfigError(f"settings.dataset: {got}. Take another.") from None
        request = {"dataset": self.dataset, "options": self.options, "problem": problem, "said": answer}
        score = await GYM.call("score", request, LIMITS)
        return 0.0 if score is None else float(score)

    @property
    def success(self) -> bool:
        return len(self.said) == len(self.roles) and self.score == 1.0

    @classmethod
    def tasks(
        cls,
        split: Split,
        dataset: str = "basic_arithmetic",
        options: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> Sequence[Task]:
        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            seed = random_keys.key("reasoning-gym", split, index, attempt) % (1 << 32)
            question = _problem(dataset, options, seed)["question"]
            return {"seed": seed, "question": question} if in_split(split, question) else None

        return drawn_tasks(split, draw, {"dataset": dataset, "options": dict(options)}, f"{split}-{dataset}")


def _problem(dataset: str, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a problem of the generator, with its `question` and its `answer`. Raises ConfigError for an unknown
    generator or option, and for options that the generator rejects."""
    generators = package("reasoning_gym.factory", "reasoning-gym").DATASETS
    if dataset not in generators:
        raise ConfigError(
            f"settings.dataset: got {dataset!r}, which is none of the {len(generators)} generators of reasoning-gym."
            f"{nearest(dataset, generators)}"
        )
    option_names = {field.name for field in fields(generators[dataset][1])} - {"seed", "size"}
    for name in options:
        if name not in option_names:
            raise ConfigError(
                f"settings.options: got {name!r}; expected options of {dataset}: {', '.join(sorted(option_names))}. "
                f"Fix the name.{nearest(name, option_names)}"
            )
    try:
        problem: dict[str, Any] = package("reasoning_gym", "reasoning-gym").create_dataset(
            dataset, seed=seed, size=1, **options
        )[0]
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"settings.options: got {dict(options)}; {dataset} says: {error}.") from error
    return problem
