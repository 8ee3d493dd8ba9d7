"""Examples to imitate: answers of a role to what it saw, from a file or from the team's own successful episodes.

An example is a line of JSON: `{"role": "tool", "prompt": text or messages, "answer": text}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cadre import random_keys, sandbox
from cadre.errors import ConfigError, RunError, nearest
from cadre.experiment.build import build_team
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.experiment import Experiment
from cadre.rollout import tree_shape, walk
from cadre.rollout.episodes import grow_many
from cadre.types import Message, Tree

FIELDS = ("role", "prompt", "answer")
FORM = 'expected {"role": name, "prompt": text or messages, "answer": text}'


@dataclass(frozen=True)
class Example:
    """What a role saw, and what it should have said: `Example("tool", (Message("user", "2 + 2?"),), "4")`."""

    role: str
    prompt: tuple[Message, ...]
    answer: str


def read_examples(path: Path, roles: Sequence[str]) -> list[Example]:
    """The examples of a file, all of them checked. Raises ConfigError that names the first bad line."""
    if not path.is_file():
        raise ConfigError(f"examples: there is no file {path}; expected one JSON object a line. Fix the path.")
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [_example(line, f"{path}, line {number}", roles) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"examples: {path} is empty; {FORM} a line. Name another file.")
    return found


def _example(line: str, where: str, roles: Sequence[str]) -> Example:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"examples: {where}: not JSON ({error}); {FORM}. Fix the line.") from None
    if not isinstance(raw, dict) or sorted(raw) != sorted(FIELDS):
        raise ConfigError(f"examples: {where}: got {list(raw) if isinstance(raw, dict) else raw!r}; {FORM}. Fix it.")
    if raw["role"] not in roles:
        raise ConfigError(
            f"examples: {where}: got the role {raw['role']!r}; expected one that is trained, {', '.join(roles)}. Fix "
            f"or remove the line.{nearest(str(raw['role']), roles)}"
        )
    if not isinstance(raw["answer"], str) or not raw["answer"]:
        raise ConfigError(f"examples: {where}: got the answer {raw['answer']!r}; {FORM}. Fix or remove the line.")
    return Example(raw["role"], _messages(raw["prompt"], where), raw["answer"])


def _messages(raw: Any, where: str) -> tuple[Message, ...]:
    if isinstance(raw, str) and raw:
        return (Message("user", raw),)
    listed = raw if isinstance(raw, list) else []
    if not listed or not all(isinstance(m, dict) and sorted(m) == ["content", "role"] for m in listed):
        raise ConfigError(f"examples: {where}: got the prompt {str(raw)[:80]!r}; {FORM}. Fix the line.")
    return tuple(Message(message["role"], message["content"]) for message in listed)


def line_of(example: Example) -> str:
    """An example as `read_examples` reads it."""
    told = [{"role": message.role, "content": message.content} for message in example.prompt]
    return json.dumps({"role": example.role, "prompt": told, "answer": example.answer})


def own_successes(experiment: Experiment, tasks: int, attempts: int = 8) -> tuple[list[Example], int]:
    """What the untrained team says in the episodes that it wins, playing so many training tasks `attempts` times each
    as it is sampled in training; and how many episodes it played. Raises RunError where it wins none."""
    config = experiment.config
    sandbox.configure(config.sandbox.level, cgroup=config.sandbox.cgroup)
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
                    yield Example(role, tuple(node.observations[role].messages), sample.text)
