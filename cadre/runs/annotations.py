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
from cadre.advantages.groups import AdvantageGroup
from cadre.advantages.returns import ScoredSample
from cadre.files import require_no_link
from cadre.learn.token_notes import TokenNote
from cadre.rollout.episodes import SampledTrees
from cadre.runs import jsonl
from cadre.runs.records import StepLine
from cadre.settings import CreditConfig
from cadre.types import Node, SamplePosition, Tree

ANNOTATIONS = "annotations"


Fields = dict[str, Any]


# By producer, then by number of the tree: what is said of samples.
Annotations = dict[str, dict[int, list[Fields]]]


def annotate_trees(
    trees: Sequence[Tree], batch: TrainingBatch, notes: Iterable[TokenNote], chosen: CreditConfig
) -> Annotations:
    """What a step says of the samples of these trees, its first ones: `credit`, `critic` and `tokens`."""
    places = [node_numbers(tree.root) for tree in trees]
    streams: Annotations = defaultdict(lambda: defaultdict(list))

    def say(producer: str, place: SamplePosition, fields: Fields) -> None:
        tree, path, role, index = place
        if tree < len(trees):
            streams[producer][tree].append({"node": places[tree][path], "role": role, "index": index} | fields)

    learned = {scored.tree_sample.position: scored for scored in batch.learned}
    silent = {
        scored.tree_sample.position for group in batch.groups if not group.has_variance for scored in group.samples
    }
    for scored in batch.judged:
        place = scored.tree_sample.position
        reason = _left_out_reason(scored, place in learned, place in silent, chosen)
        say("credit", place, _credit_fields(learned.get(place, scored), reason))
        if scored.values:
            say("critic", place, {"values": list(scored.values), "return": scored.returns})
    for note in notes:
        say("tokens", note.position, {"logprobs": list(note.logprobs), "entropy": list(note.entropy)})
    return streams


def _credit_fields(scored: ScoredSample, reason: str | None) -> Fields:
    advantages = scored.advantages
    return {
        "return": scored.returns,
        "penalty": sum(scored.costs),
        "advantage": sum(advantages) / len(advantages),
        "weight": 0.0 if reason else scored.weight,
        **({"advantages": list(advantages)} if len(advantages) > 1 else {}),
        **({"left_out": reason} if reason else {}),
    }


def _left_out_reason(scored: ScoredSample, learned: bool, silent: bool, chosen: CreditConfig) -> str | None:
    """Why an update does not learn from a sample, None where it does."""
    if is_cut_off(scored, chosen):
        return "cut off"
    if not (learned and scored.trains):
        return "no spread" if silent else "not positive"
    return "no spread" if silent and scored.advantages == (0.0,) else None


def node_numbers(root: Node) -> dict[tuple[int, ...], int]:
    """By the numbers of the branches above it: which decision of the tree, in the order of `walk.nodes`, a node is."""
    return {path: number for number, path in enumerate(_paths(root, ()))}


def _paths(node: Node, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    yield path
    for number, branch in enumerate(node.branches):
        if branch.child is not None:
            yield from _paths(branch.child, (*path, number))


def write_annotations(folder: Path, step: int, streams: Mapping[str, Mapping[int, list[Fields]]]) -> None:
    """Append a step's annotations, a line a tree, to the stream of each producer."""
    for producer, by_tree in streams.items():
        (folder / ANNOTATIONS).mkdir(exist_ok=True)
        for tree in sorted(by_tree):
            line = {"step": step, "tree": tree, "samples": by_tree[tree]}
            jsonl.append(folder / ANNOTATIONS / f"{producer}.jsonl", line)


def annotation_files(folder: Path) -> list[Path]:
    """The streams of a run, by name. Raises RunError where their folder is a link."""
    require_no_link(folder / ANNOTATIONS)
    return sorted((folder / ANNOTATIONS).glob("*.jsonl"))


def truncate_annotations(folder: Path, step: int) -> None:
    """Forget what was said of `step` and of later ones."""
    for path in annotation_files(folder):
        jsonl.truncate(path, lambda line: line["step"] >= step, StepLine)


LEFT_OUT = "left_out.jsonl"


Line = dict[str, Any]


def left_out_lines(sampled: SampledTrees, batch: TrainingBatch, chosen: CreditConfig) -> Iterator[Line]:
    """All that a step left out of its update, and its replacements, without the number of the step."""
    for failure in sampled.failures:
        yield {
            "kind": "failed",
            "task": failure.task.id,
            "reason": f"{failure.reason}: {failure.error}",
            "error": failure.traceback,
        }
    yield from _zero_variance_lines(sampled.trees, batch)
    yield from _cut_off_lines(sampled.trees, batch, chosen)
    yield from _replacement_lines(sampled)


def _zero_variance_lines(trees: Sequence[Tree], batch: TrainingBatch) -> Iterator[Line]:
    silent: dict[int, list[Line]] = defaultdict(list)
    for group in batch.groups:
        if not group.has_variance and _is_within_tree(group):
            silent[group.samples[0].tree_sample.tree].append(_group_record(group))
    compared = Counter(group.samples[0].tree_sample.tree for group in batch.groups if _is_within_tree(group))
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


def _is_within_tree(group: AdvantageGroup) -> bool:
    """Whether no other task was compared with it, as all are under a grouping by role alone."""
    return len({scored.tree_sample.tree for scored in group.samples}) == 1


def _group_record(group: AdvantageGroup) -> Line:
    first = group.samples[0]
    return {
        "role": first.sample.role,
        "decision": len(first.tree_sample.path),
        "samples": len(group.samples),
        "return": first.return_after_costs,
    }


def _cut_off_lines(trees: Sequence[Tree], batch: TrainingBatch, chosen: CreditConfig) -> Iterator[Line]:
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for scored in batch.judged:
        if is_cut_off(scored, chosen):
            counts[scored.tree_sample.tree][scored.sample.role] += 1
    for tree, by_role in sorted(counts.items()):
        yield {
            "kind": "cut off",
            "task": trees[tree].task.id,
            "tree": tree,
            "reason": "reached sampling.max_tokens, and credit.truncated is mask",
            "samples": dict(by_role),
        }


def _replacement_lines(sampled: SampledTrees) -> Iterator[Line]:
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


def not_kept_lines(sampled: int, kept: int, wanted: int) -> Iterator[Line]:
    """That of the trees that a step sampled only some were kept, and why; `wanted` should have been."""
    if kept < sampled:
        full = kept < min(wanted, sampled)
        yield {
            "kind": "not kept",
            "trees": sampled - kept,
            "reason": "train.trees_megabytes is used up so far" if full else f"train.trees_kept is {wanted}",
        }
