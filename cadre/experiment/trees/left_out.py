"""What a step sampled and did not learn from, or did not keep: `left_out.jsonl`, a line a reason and tree.

Every line has `step`, `kind` and `reason`; those of one task also `task`, and `tree`, its place among what the step
sampled. The kinds: `failed` (with the `error`), `no spread` (with the `groups` whose samples were all worth the same),
`cut off` (with the number of `samples` by role that reached their limit and are not trained), `replacement` (a task
that stood in for one that taught nothing), `not kept` (with the number of `trees`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from cadre.advantages.batch import TrainingBatch
from cadre.advantages.filters import cut_off
from cadre.advantages.group_relative import AdvantageGroup
from cadre.rollout.dynamic_sampling import Sampled
from cadre.settings import CreditConfig
from cadre.types import Tree

FILE = "left_out.jsonl"
Line = dict[str, Any]


def lines(sampled: Sampled, batch: TrainingBatch, chosen: CreditConfig) -> Iterator[Line]:
    """All that a step left out of its update, and its replacements, without the number of the step."""
    for failure in sampled.failures:
        yield {
            "kind": "failed",
            "task": failure.task.id,
            "reason": f"{failure.reason}: {failure.error}",
            "error": failure.traceback,
        }
    yield from _without_spread(sampled.trees, batch)
    yield from _cut_off(sampled.trees, batch, chosen)
    yield from _replacements(sampled)


def _without_spread(trees: Sequence[Tree], batch: TrainingBatch) -> Iterator[Line]:
    silent: dict[int, list[Line]] = defaultdict(list)
    for group in batch.groups:
        if not group.differs and _of_one_tree(group):
            silent[group.samples[0].tree_sample.tree].append(_group(group))
    compared = Counter(group.samples[0].tree_sample.tree for group in batch.groups if _of_one_tree(group))
    for tree, groups in sorted(silent.items()):
        all_of_them = len(groups) == compared[tree]
        reason = "every group of the tree" if all_of_them else f"{len(groups)} of {compared[tree]} groups"
        yield {
            "kind": "no spread",
            "task": trees[tree].task.id,
            "tree": tree,
            "reason": f"{reason}: samples worth the same teach nothing about each other",
            "whole": all_of_them,
            "groups": groups,
        }


def _of_one_tree(group: AdvantageGroup) -> bool:
    """Whether no other task was compared with it, as all are under a grouping by role alone."""
    return len({scored.tree_sample.tree for scored in group.samples}) == 1


def _group(group: AdvantageGroup) -> Line:
    first = group.samples[0]
    return {
        "role": first.sample.role,
        "decision": len(first.tree_sample.path),
        "samples": len(group.samples),
        "return": first.paid,
    }


def _cut_off(trees: Sequence[Tree], batch: TrainingBatch, chosen: CreditConfig) -> Iterator[Line]:
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for scored in batch.judged:
        if cut_off(scored, chosen):
            counts[scored.tree_sample.tree][scored.sample.role] += 1
    for tree, by_role in sorted(counts.items()):
        yield {
            "kind": "cut off",
            "task": trees[tree].task.id,
            "tree": tree,
            "reason": "reached sampling.max_tokens, and credit.truncated is mask",
            "samples": dict(by_role),
        }


def _replacements(sampled: Sampled) -> Iterator[Line]:
    """The last trees of a step are those of the replacement tasks that did not fail."""
    failed = sum(1 for _ in sampled.failures)
    first = max(0, len(sampled.trees) + failed - sampled.replaced)
    for place, tree in enumerate(sampled.trees[first:], first):
        yield {
            "kind": "replacement",
            "task": tree.task.id,
            "tree": place,
            "reason": "stood in for a task that taught nothing (train.replacements)",
        }


def not_kept(sampled: int, kept: int, wanted: int) -> Iterator[Line]:
    """That of the trees that a step sampled only some were kept, and why; `wanted` should have been."""
    if kept < sampled:
        full = kept < min(wanted, sampled)
        yield {
            "kind": "not kept",
            "trees": sampled - kept,
            "reason": "train.trees_megabytes is used up so far" if full else f"train.trees_kept is {wanted}",
        }
