"""What is known of the samples of kept trees beside the trees themselves: a stream for each producer.

`annotations/PRODUCER.jsonl` has lines `{"step": 3, "tree": 0, "samples": [{"node": 2, "role": "tool", "index": 1,
...}]}`: each sample named by the number of its decision in the tree, its role and its place among its siblings, with
what the producer says of it. A stream may come late or be missing; others may write streams of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cadre.advantages.batch import TrainingBatch
from cadre.advantages.filters import cut_off
from cadre.advantages.samples import ScoredSample
from cadre.experiment import jsonl
from cadre.experiment.records import OfStep, refuse_link
from cadre.learn.token_notes import TokenNote
from cadre.settings import CreditConfig
from cadre.types import Node, SamplePosition, Tree

FOLDER = "annotations"
Fields = dict[str, Any]
# By producer, then by number of the tree: what is said of samples.
Annotations = dict[str, dict[int, list[Fields]]]


def annotated(
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
    silent = {scored.tree_sample.position for group in batch.groups if not group.differs for scored in group.samples}
    for scored in batch.judged:
        place = scored.tree_sample.position
        reason = _reason(scored, place in learned, place in silent, chosen)
        say("credit", place, _credit(learned.get(place, scored), reason))
        if scored.values:
            say("critic", place, {"values": list(scored.values), "return": scored.returns})
    for note in notes:
        say("tokens", note.position, {"logprobs": list(note.logprobs), "entropy": list(note.entropy)})
    return streams


def _credit(scored: ScoredSample, reason: str | None) -> Fields:
    advantages = scored.advantages
    return {
        "return": scored.returns,
        "penalty": sum(scored.costs),
        "advantage": sum(advantages) / len(advantages),
        "weight": 0.0 if reason else scored.weight,
        **({"advantages": list(advantages)} if len(advantages) > 1 else {}),
        **({"left_out": reason} if reason else {}),
    }


def _reason(scored: ScoredSample, learned: bool, silent: bool, chosen: CreditConfig) -> str | None:
    """Why an update does not learn from a sample, None where it does."""
    if cut_off(scored, chosen):
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


def write(folder: Path, step: int, streams: Mapping[str, Mapping[int, list[Fields]]]) -> None:
    """Append a step's annotations, a line a tree, to the stream of each producer."""
    for producer, by_tree in streams.items():
        (folder / FOLDER).mkdir(exist_ok=True)
        for tree in sorted(by_tree):
            line = {"step": step, "tree": tree, "samples": by_tree[tree]}
            jsonl.append(folder / FOLDER / f"{producer}.jsonl", line)


def producers(folder: Path) -> list[Path]:
    """The streams of a run, by name. Raises RunError where their folder is a link."""
    refuse_link(folder / FOLDER)
    return sorted((folder / FOLDER).glob("*.jsonl"))


def cut(folder: Path, step: int) -> None:
    """Forget what was said of `step` and of later ones."""
    for path in producers(folder):
        jsonl.cut(path, lambda line: line["step"] >= step, OfStep)
