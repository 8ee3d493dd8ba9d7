"""What benchmarks of real models read off played episodes: values by task, paired intervals, the papers' metrics.

Episodes are the JSON lines that `cadre eval --episodes` writes: a tree a task, one branch a decision and episode.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from cadre.evaluation.evaluate import pass_at_k
from cadre.runs.tree_format import decode_tree
from cadre.statistics import with_floor

RESAMPLES = 10_000


def trees_of(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The trees of files, in order; one that is cut off in the middle of a line has no whole slice and is an error."""
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [asdict(decode_tree(json.loads(line))) for line in lines]


def steps(tree: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(node, branch) of the first episode of a tree, first to last."""
    node = tree["root"]
    while node is not None:
        branch = node["branches"][0]
        yield node, branch
        node = branch["child"]


def reward(tree: Mapping[str, Any]) -> float:
    """All that the episode pays: the team, and every role."""
    return sum(branch["reward"]["team"] + sum(branch["reward"]["local"].values()) for _, branch in steps(tree))


def success(tree: Mapping[str, Any]) -> float:
    return float(list(steps(tree))[-1][1]["success"])


def at_first(tree: Mapping[str, Any]) -> float:
    """Whether the first step solves it, whatever becomes of that."""
    return float(next(steps(tree))[1]["success"])


def repaired(tree: Mapping[str, Any]) -> float:
    """Whether what the first step did not solve is solved in the end."""
    return float(success(tree) > at_first(tree))


def passes(k: int) -> Callable[[Mapping[str, Any]], float]:
    """pass@k of a task that was played k times or more, from its root on."""

    def value(tree: Mapping[str, Any]) -> float:
        episodes = [{"root": {**tree["root"], "branches": [branch]}} for branch in tree["root"]["branches"]]
        return pass_at_k(len(episodes), int(sum(map(success, episodes))), k)

    return value


def part(name: str) -> Callable[[Mapping[str, Any]], float]:
    """A part of the reward as the last step that has it names it; 0 where none does."""

    def value(tree: Mapping[str, Any]) -> float:
        named = [branch["reward"]["parts"][name] for _, branch in steps(tree) if name in branch["reward"]["parts"]]
        return float(named[-1]) if named else 0.0

    return value


def tokens(tree: Mapping[str, Any]) -> float:
    """Sampled in the episode."""
    return float(sum(len(s["token_ids"]) for node, _ in steps(tree) for told in node["samples"].values() for s in told))


def whole(tree: Mapping[str, Any]) -> float:
    """The share of the answers that ended by themselves."""
    ends = [s["finish"] == "stop" for node, _ in steps(tree) for told in node["samples"].values() for s in told]
    return fmean(ends)


def calls(tree: Mapping[str, Any]) -> float:
    """Whether main calls aux in a program that passes a test (pairs)."""
    return float(part("calls")(tree) > 0)


def helps(tree: Mapping[str, Any]) -> float:
    """Whether that call also changes what the tests say (pairs)."""
    return float(part("calls")(tree) > 0 and part("ignored")(tree) == 0)


def aloud(title: str, files: Sequence[Path], count: int) -> list[str]:
    """The first episodes of the files under a title, as lines of Markdown."""
    lines = ["", f"## {title}"]
    for tree in trees_of(files)[:count]:
        lines += _aloud(tree)
    return lines


def _aloud(tree: Mapping[str, Any]) -> list[str]:
    """What everybody said."""
    lines = ["", f"### {tree['task']['id']}: reward {reward(tree):.2f}"]
    for node, _ in steps(tree):
        for role, (said,) in node["samples"].items():
            told = [f"> {line}".rstrip() for line in said["text"].splitlines() or [""]]
            lines += ["", f"`{role}` ({len(said['token_ids'])} tokens, {said['finish']}):", "", *told]
    return lines


def gain(before: Sequence[float], after: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high) of after - before over tasks, with the 95% interval of a paired bootstrap, and some width where
    all tasks gain alike.

    Raises ValueError where the two are not of the same tasks by number.
    """
    differences = [second - first for first, second in zip(before, after, strict=True)]
    generator, count = random.Random(seed), len(differences)
    means = sorted(fmean(generator.choices(differences, k=count)) for _ in range(RESAMPLES))
    found = fmean(differences), means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
    return with_floor(found, count, max(1.0, *map(abs, before), *map(abs, after)))
