"""Annotations of kept trees, and what a step left out: written beside `trees.jsonl`, read by the viewer and exports.

`annotations/PRODUCER.jsonl` has lines `{"step": 3, "tree": 0, "samples": [{"node": 2, "role": "tool", "index": 1,
...}]}`: each sample is named by the number of its decision in the tree, its role and its index among its siblings. A
stream may come late or be missing, and other programs may write streams of their own.

`left_out.jsonl` has a line per reason and tree, with `step`, `kind` and `reason`; those of one task also have `task`,
and `tree`, its index among the step's trees. The kinds: `failed` (with the `error`), `no spread` (with the
zero-variance `groups`), `cut off` (with the number of `samples` by role that reached max_tokens and are not trained),
`replacement` (a task that replaced one without a gradient), `not kept` (with the number of `trees`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cadre.advantages.batch import TrainingBatch, is_cut_off
from cadre.files import require_no_link
from cadre.learn.token_notes import TokenNote
from cadre.rollout.episodes import SampledTrees
from cadre.runs import jsonl
from cadre.runs.records import StepLine
from cadre.settings import CreditConfig
from cadre.types import Node, SamplePosition, Tree

ANNOTATIONS = "annotations"
Fields = dict[str, Any]
# By producer, then by number of the tree: the fields of samples.
Annotations = dict[str, dict[int, list[Fields]]]


def annotate_trees(
    trees: Sequence[Tree], batch: TrainingBatch, notes: Iterable[TokenNote], settings: CreditConfig
) -> Annotations:
    """Return a step's annotations of the samples of these trees, its first ones: `credit`, `critic` and `tokens`."""
    numbers = [node_numbers(tree.root) for tree in trees]
    streams: Annotations = defaultdict(lambda: defaultdict(list))

    def add(producer: str, position: SamplePosition, fields: Fields) -> None:
        tree, path, role, index = position
        if tree < len(trees):
            streams[producer][tree].append({"node": numbers[tree][path], "role": role, "index": index} | fields)

    # `judged` are all samples with a return, `learned` those that the update uses, with its weights and advantages.
    learned = {scored.tree_sample.position: scored for scored in batch.learned}
    equal = [group for group in batch.groups if not group.has_variance or group.is_dropped(settings.without_std)]
    zero_variance = {scored.tree_sample.position for group in equal for scored in group.samples}
    lowest = set[SamplePosition]()  # of the groups that `credit.drop_groups` left out whole
    if settings.drop_fraction is not None:
        for group in batch.groups:
            positions = {scored.tree_sample.position for scored in group.samples}
            if not positions & learned.keys():
                lowest |= positions
    for judged in batch.judged:
        position = judged.tree_sample.position
        reason = None
        if is_cut_off(judged, settings):
            reason = "cut off"
        elif not (position in learned and judged.trains):
            reason = (
                "no spread" if position in zero_variance else "lowest group" if position in lowest else "not positive"
            )
        elif position in zero_variance and judged.advantages == (0.0,):
            reason = "no spread"
        scored = learned.get(position, judged)
        credit: Fields = {
            "return": scored.returns,
            "penalty": sum(scored.costs),
            "advantage": sum(scored.advantages) / len(scored.advantages),
            "weight": 0.0 if reason else scored.weight,
        }
        if len(scored.advantages) > 1:
            credit["advantages"] = list(scored.advantages)
        if reason:
            credit["left_out"] = reason
        add("credit", position, credit)
        if judged.values:
            add("critic", position, {"values": list(judged.values), "return": judged.returns})
    for note in notes:
        add("tokens", note.position, {"logprobs": list(note.logprobs), "entropy": list(note.entropy)})
    return streams


def node_numbers(root: Node) -> dict[tuple[int, ...], int]:
    """Return the number of each node, in the order of `walk.nodes`, by the indices of the branches above it."""

    def paths(node: Node, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield path
        for index, branch in enumerate(node.branches):
            if branch.child is not None:
                yield from paths(branch.child, (*path, index))

    return {path: number for number, path in enumerate(paths(root, ()))}


def write_annotations(folder: Path, step: int, streams: Mapping[str, Mapping[int, list[Fields]]]) -> None:
    """Append a step's annotations, one line per tree, to the stream of each producer."""
    for producer, by_tree in streams.items():
        (folder / ANNOTATIONS).mkdir(exist_ok=True)
        for tree in sorted(by_tree):
            line = {"step": step, "tree": tree, "samples": by_tree[tree]}
            jsonl.append(folder / ANNOTATIONS / f"{producer}.jsonl", line)


def annotation_files(folder: Path) -> list[Path]:
    """Return the annotation files of a run, by name. Raises RunError if their folder is a link."""
    require_no_link(folder / ANNOTATIONS)
    return sorted((folder / ANNOTATIONS).glob("*.jsonl"))


def truncate_annotations(folder: Path, step: int) -> None:
    """Remove the annotations of `step` and of later ones."""
    for path in annotation_files(folder):
        jsonl.truncate(path, lambda line: line["step"] >= step, StepLine)


# ---- What a step left out

LEFT_OUT = "left_out.jsonl"
EQUAL_RETURNS = "samples with equal returns have no advantage over each other"
EQUAL_REWARDS = "groups with equal rewards are dropped (credit.without_std)"
Line = dict[str, Any]


def left_out_lines(sampled: SampledTrees, batch: TrainingBatch, settings: CreditConfig) -> Iterator[Line]:
    """Yield all that a step left out of its update, and its replacements, without the number of the step."""
    trees = sampled.trees
    for failure in sampled.failures:
        yield {
            "kind": "failed",
            "task": failure.task.id,
            "reason": f"{failure.reason}: {failure.error}",
            "error": failure.traceback,
        }

    # Zero-variance groups, by tree. A grouping by role alone compares several trees, and is of none of them.
    within_trees = [group for group in batch.groups if len({scored.tree_sample.tree for scored in group.samples}) == 1]
    compared = Counter(group.samples[0].tree_sample.tree for group in within_trees)
    zero_variance: dict[int, list[Line]] = defaultdict(list)
    for group in within_trees:
        if not group.has_variance or group.is_dropped(settings.without_std):
            first = group.samples[0]
            zero_variance[first.tree_sample.tree].append(
                {
                    "role": first.sample.role,
                    "decision": len(first.tree_sample.path),
                    "samples": len(group.samples),
                    "return": first.return_after_costs,
                }
            )
    for tree, groups in sorted(zero_variance.items()):
        is_all = len(groups) == compared[tree]
        reason = "every group of the tree" if is_all else f"{len(groups)} of {compared[tree]} groups"
        yield {
            "kind": "no spread",
            "task": trees[tree].task.id,
            "tree": tree,
            "reason": f"{reason}: {EQUAL_REWARDS if settings.without_std == 'drop' else EQUAL_RETURNS}",
            "whole": is_all,
            "groups": groups,
        }

    # Samples that reached their limit.
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for scored in batch.judged:
        if is_cut_off(scored, settings):
            counts[scored.tree_sample.tree][scored.sample.role] += 1
    for tree, by_role in sorted(counts.items()):
        yield {
            "kind": "cut off",
            "task": trees[tree].task.id,
            "tree": tree,
            "reason": "reached sampling.max_tokens, and credit.truncated is mask",
            "samples": dict(by_role),
        }

    # The last trees of a step are those of the replacement tasks that did not fail.
    failed = sum(1 for _ in sampled.failures)
    first_replacement = max(0, len(trees) + failed - sampled.replaced)
    for index, replacement in enumerate(trees[first_replacement:], first_replacement):
        yield {
            "kind": "replacement",
            "task": replacement.task.id,
            "tree": index,
            "reason": "stood in for a task that taught nothing (train.replacements)",
        }
