"""`cadre check RECIPE --labels FILE`: how often a recipe's reward orders two answers as their held-out labels do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

from cadre.concurrency import run_coroutine
from cadre.config.experiment import parse
from cadre.config.recipes import ROWS, read_recipe
from cadre.envs.check import sample_of
from cadre.envs.messages import to_messages
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, DataError
from cadre.rollout.batching import gather
from cadre.rows import read_rows
from cadre.settings.yaml_file import apply_overrides
from cadre.statistics import is_constant, rate_interval
from cadre.types import Task

WORDS = {"yes": 1.0, "no": 0.0}


def label_agreement(recipe: str, labels: str | Path, overrides: Sequence[str] = ()) -> dict[str, float]:
    """Return the fraction of pairs of labelled answers that the reward of a recipe orders as their labels do.

    A row of `labels` has the columns of the recipe's rows, and `completion` with its `label` (a number, yes or no), or
    `chosen` and `rejected`. Answers to one prompt are paired; if no prompt has two labels, one answer of the lower half
    is paired with one of the upper half. Equal rewards count half. `low` and `high` are the 95% interval over prompts,
    or over the pairs if these are of different prompts: Wilson's if no prompt has several pairs.
    """
    config = parse(apply_overrides({"team": "seed", **read_recipe(recipe)}, overrides))
    if config.env != ROWS:
        got = f"got {recipe} with env {config.env}; expected rows with reward functions (docs/ten_lines.md)"
        raise ConfigError(f"--labels: {got}. Name a recipe of these.")
    groups: dict[str, tuple[dict[str, Any], list[tuple[str, float]]]] = {}
    for position, row in read_rows(Path(labels)):
        given = {"chosen": 1, "rejected": 0} if "chosen" in row else {"completion": row.get("label")}
        data = {name: value for name, value in row.items() if name not in (*given, "label")}
        _, answers = groups.setdefault(json.dumps(data, sort_keys=True), (data, []))
        for column, label in given.items():
            number = WORDS.get(label, label) if isinstance(label, str) else label
            if column not in row or not isinstance(number, int | float):
                expected = "expected completion and label (a number, yes or no), or chosen and rejected. Fix the row."
                raise DataError(f"--labels: {position} has {', '.join(row)}, with the label {label!r:.80}; {expected}")
            answers.append((to_messages(row[column], position, DataError)[-1].content, float(number)))
    rows = [data for data, _ in groups.values()]
    env_spec = EnvSpec(config.env, {**config.settings, "tasks": rows, "held_out": 0.0})
    (role,) = env_spec.roles

    async def judge(task: Task, answers: Sequence[tuple[str, float]]) -> list[tuple[float, float]]:
        """Return the label and the reward of each answer to a prompt."""
        env = env_spec.make(task)
        actions = [{role: sample_of(role, text)} for text, _ in answers]
        forks = [env.fork() for _ in actions]
        rewards = await gather(*(fork.step_samples(action) for fork, action in zip(forks, actions, strict=True)))
        compared = await env.compare(forks, actions, rewards)
        return [(label, reward.team) for (_, label), reward in zip(answers, compared, strict=True)]

    prompts = zip(env_spec.tasks("train"), groups.values(), strict=True)
    judged = run_coroutine(gather(*(judge(task, answers) for task, (_, answers) in prompts)))
    units = [[(a, b) for (high, a), (low, b) in permutations(answers, 2) if high > low] for answers in judged]
    if not any(units):
        ordered = sorted((answer for answers in judged for answer in answers), key=lambda answer: answer[0])
        halves = zip(ordered, ordered[(len(ordered) + 1) // 2 :], strict=False)
        units = [[(b, a)] for (low, a), (high, b) in halves if high > low]
    scores = [[0.5 if is_constant(pair) else float(pair[0] > pair[1]) for pair in unit] for unit in units if unit]
    if not scores:
        raise DataError(f"--labels: {labels} has no two answers with different labels; expected some. Add them.")
    agreement, lowest, highest = rate_interval([fmean(unit) for unit in scores])
    flat = [score for unit in scores for score in unit]
    counts = {"pairs": len(flat), "right": flat.count(1.0), "tied": flat.count(0.5)}
    return {"agreement": agreement, "low": lowest, "high": highest, **counts}
