"""Examples to imitate: answers of a role to what it saw, from a file or from the team's own successful episodes.

An example is a line of JSON: `{"role": "tool", "prompt": text or messages, "answer": text}`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cadre import random_keys
from cadre.data.jsonl import rows_of
from cadre.data.prompts import prompt_of, refuse_more_than_text
from cadre.errors import DataError, RunError, nearest
from cadre.experiment.build import build_team
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.experiment import Experiment
from cadre.plugins import configure_sandbox
from cadre.rollout import tree_shape, walk
from cadre.rollout.episodes import grow_many
from cadre.types import Message, Tree

log = logging.getLogger("cadre.experiment")
FIELDS = ("role", "prompt", "answer")
FORM = 'expected {"role": name, "prompt": text or messages, "answer": text}'


@dataclass(frozen=True)
class Example:
    """What a role saw, and what it should have said: `Example("tool", (Message("user", "2 + 2?"),), "4")`; `where` is
    the file and line that it was read from."""

    role: str
    prompt: tuple[Message, ...]
    answer: str
    where: str = field(default="", compare=False)


def read_examples(path: Path, roles: Sequence[str]) -> list[Example]:
    """The examples of a file, all of them checked; repeated ones count once. Raises DataError that names the first bad
    line."""
    if not path.is_file():
        raise DataError(f"examples: there is no file {path}; expected one JSON object a line. Fix the path.")
    found = [_example(raw, f"examples: {path}, line {number}", roles) for number, raw in rows_of(path)]
    if not found:
        raise DataError(f"examples: {path} is empty; {FORM} a line. Name another file.")
    kept = list(dict.fromkeys(found))
    if len(kept) < len(found):
        log.warning("examples: %s repeats %d of its examples; each counts once.", path, len(found) - len(kept))
    return kept


def _example(raw: Mapping[str, Any], where: str, roles: Sequence[str]) -> Example:
    if sorted(raw) != sorted(FIELDS):
        raise DataError(f"{where}: got {list(raw)}; {FORM}. Fix it.")
    if raw["role"] not in roles:
        raise DataError(
            f"{where}: got the role {raw['role']!r}; expected one that is trained, {', '.join(roles)}. Fix or remove "
            f"the line.{nearest(str(raw['role']), roles)}"
        )
    for name in ("prompt", "answer"):
        if not raw[name]:
            raise DataError(f"{where}: got the {name} {raw[name]!r}; {FORM}. Fix or remove the line.")
    if not isinstance(raw["answer"], str) or not raw["answer"].strip():
        raise DataError(f"{where}: got the answer {raw['answer']!r}; {FORM}. Fix or remove the line.")
    return Example(raw["role"], prompt_of(raw["prompt"], where), raw["answer"], where)


def line_of(example: Example) -> str:
    """An example as `read_examples` reads it."""
    told = [{"role": message.role, "content": message.content} for message in example.prompt]
    return json.dumps({"role": example.role, "prompt": told, "answer": example.answer})


def own_successes(experiment: Experiment, tasks: int, attempts: int = 8) -> tuple[list[Example], int]:
    """What the untrained team says in the episodes that it wins, playing so many training tasks `attempts` times each
    as it is sampled in training; and how many episodes it played. Raises RunError where it wins none."""
    config = experiment.config
    configure_sandbox(config.sandbox.level, config.sandbox.cgroup)
    team = build_team(experiment)
    key = random_keys.key(config.train.seed, "own successes")
    rollout = replace(experiment.rollout(team), shape=tree_shape.independent(attempts))
    trees, _ = run_to_end(grow_many(experiment.env_spec.tasks("train")[:tasks], rollout, key))
    team.close()
    roles = set(experiment.trained_roles)
    found = list(dict.fromkeys(example for tree in trees for example in won(tree) if example.role in roles))
    episodes = sum(1 for tree in trees for _ in walk.episodes(tree.root))
    if not found:
        raise RunError(
            f"warm-start: the team won none of {episodes} episodes, so nothing of its own can be imitated; expected "
            "one at least. Ask for more tasks with --own, or give examples with --on."
        )
    return found, episodes


def won(tree: Tree) -> Iterator[Example]:
    """What was said on the paths that end in success; answers that were cut at max_tokens are left out."""
    for path in walk.episodes(tree.root):
        if not path[-1][1].success:
            continue
        for node, branch in path:
            for role, index in branch.choice.items():
                sample = node.samples[role][index]
                if sample.finish == "stop" and sample.text:
                    refuse_more_than_text(node.observations[role], "warm-start --own")
                    yield Example(role, tuple(node.observations[role].messages), sample.text)
