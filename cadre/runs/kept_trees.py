"""What a run keeps of its steps: trees, annotations of their samples, the spelling of their tokens, what was left out.

`trees.jsonl` is only appended to, and `trees.index.jsonl` has the byte offset of each tree; both can be read while a
run writes them, and lines that the index lacks are read from the stream itself. TREE_VERSION changes with every change
of the form of a line (`tree_format`).

`annotations/PRODUCER.jsonl` has lines `{"step": 3, "tree": 0, "samples": [{"node": 2, "role": "tool", "index": 1,
...}]}`: each sample is named by the number of its decision in the tree, its role and its index among its siblings.
Other programs may write streams of their own. `left_out.jsonl` has a line per reason and tree: `failed`, `no spread`,
`cut off`, `replacement` or `not kept` (docs/view.md).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from cadre.advantages.batch import TrainingBatch, is_cut_off
from cadre.errors import RunError
from cadre.file_limits import parse_json
from cadre.files import (
    Count,
    copy_plain,
    damaged_file_error,
    open_plain,
    path_exists,
    require_no_link,
    to_json,
    validate_record,
    write_text_atomically,
)
from cadre.learn.token_notes import TokenNote
from cadre.notebook_html import shorten, tree_html
from cadre.rollout import walk
from cadre.rollout.episodes import SampledTrees
from cadre.runs import jsonl
from cadre.runs.annotation_index import AnnotationIndex
from cadre.runs.records import LeftOutLine, Step, StepLine, TreeLine, VocabularyLine
from cadre.runs.tree_format import (
    FORMATS,
    Json,
    MediaStore,
    decode_tree,
    encode,
    iterate_media,
    iterate_samples,
    media_files,
)
from cadre.settings import CreditConfig, TrainConfig
from cadre.types import Node, SamplePosition, Tree

TREE_VERSION = 3


@dataclass(frozen=True)
class KeptTree:
    """A tree that a run kept: number `number` of the trees of step `step`, both from 0."""

    step: int
    number: int
    tree: Tree
    folder: Path | None = field(default=None, compare=False, repr=False)  # of the run, whose annotations are shown

    def __repr__(self) -> str:
        return shorten(f"KeptTree(step={self.step}, number={self.number}, tree={self.tree!r})")

    def _repr_html_(self) -> str:
        tokens, title = {}, f"step {self.step + 1}, tree {self.number}: task {self.tree.task.id}"
        if self.folder is not None:
            spelt, annotations = read_vocabulary(self.folder), read_annotations(self.folder, self.step, self.number, {})
            for node, _, role, index, sample in iterate_samples(self.tree):
                credit = annotations.get((node, role, index), {}).get("credit")
                if credit and (words := spelt.get(sample.policy)):
                    texts = [words.get(str(token), f"[{token}]") for token in sample.token_ids]
                    tokens[node, role, index] = (texts, credit.get("advantages") or [credit["advantage"]])
        return tree_html(self.tree, title, tokens)


class KeptTrees(list[KeptTree]):
    """The trees that a run kept, in the order of their steps. A notebook shows the last ones."""

    SHOWN = 5

    def __repr__(self) -> str:
        steps = sorted({tree.step + 1 for tree in self})
        return f"KeptTrees({len(self)} trees{f' of steps {steps[0]} to {steps[-1]}' if steps else ''})"

    def _repr_html_(self) -> str:
        shown = "".join(tree._repr_html_().replace("<details open>", "<details>", 1) for tree in self[-self.SHOWN :])
        return f"<p>{len(self)} trees, the last {min(len(self), self.SHOWN)} of which are shown.</p>{shown}"


def tree_to_json(entry: KeptTree) -> Json:
    """Return a kept tree as it is written."""
    return {"version": TREE_VERSION, "step": entry.step, "tree": entry.number, **encode(entry.tree)}


# ---- The spelling of tokens: `vocabulary.jsonl`
#
# Lines `{"policy": "planner", "tokens": {"12": "the", "91": "<0xE2>"}}`, each token once per policy, so that a run can
# be read without its models. A token that is a part of a character is spelt by its bytes.

VOCABULARY = "vocabulary.jsonl"


class Speller(Protocol):
    """Spells the tokens of one model."""

    def spell(self, token: int) -> str:
        """Return its text; `<0xE2><0x82>` for bytes that are no whole character."""


class Vocabulary:
    """Writes the spelling of the tokens of kept trees. Owned by the run; `spellers` are by policy, and a policy without
    one, such as a remote one, is left out."""

    def __init__(self, spellers: Mapping[str, Speller]) -> None:
        self._spellers = spellers
        self._known: dict[str, set[int]] | None = None

    def learn(self, folder: Path, tree: Tree) -> None:
        """Write the tokens of a tree that the file does not have yet."""
        written = self._read(folder)
        by_policy: dict[str, set[int]] = {}
        for sample in walk.samples(tree.root):
            by_policy.setdefault(sample.policy, set()).update(sample.token_ids, sample.prompt_ids)
        for policy, tokens in by_policy.items():
            new = sorted(tokens - written.setdefault(policy, set()))
            if new and policy in self._spellers:
                spelt = {str(token): self._spellers[policy].spell(token) for token in new}
                jsonl.append(folder / VOCABULARY, {"policy": policy, "tokens": spelt})
                written[policy] |= tokens

    def _read(self, folder: Path) -> dict[str, set[int]]:
        if self._known is None:
            self._known = {policy: set(map(int, spelt)) for policy, spelt in read_vocabulary(folder).items()}
        return self._known


def read_vocabulary(folder: Path) -> dict[str, dict[str, str]]:
    """Return, by policy, the spelling of each token."""
    words: dict[str, dict[str, str]] = {}
    for line in jsonl.records(folder / VOCABULARY, VocabularyLine):
        words.setdefault(line["policy"], {}).update(line["tokens"])
    return words


# ---- The stream of trees and its index

TREES, INDEX = "trees.jsonl", "trees.index.jsonl"
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class TreeEntry:
    """One kept tree in short.

    offset, length   the bytes of its line in `trees.jsonl`, newline included
    step, tree       both from 0; `tree` is its index among all trees of the step
    task             id of its task
    decisions, samples, episodes, wins   counts; wins are the episodes that ended in success
    reward           mean of team and local rewards of an episode
    roles            in the order in which they first act
    """

    offset: Count
    length: Annotated[int, Field(strict=True, gt=0)]
    step: Step
    tree: Count
    task: str
    decisions: Count
    samples: Count
    episodes: Count
    wins: Count
    reward: float
    roles: tuple[str, ...]


def append_tree(folder: Path, entry: KeptTree) -> None:
    """Write a tree after the last complete one, then its line of the index."""
    offset = jsonl.append(folder / TREES, tree_to_json(entry))
    jsonl.append(folder / INDEX, asdict(make_entry(entry, offset, (folder / TREES).stat().st_size - offset)))


def fits_budget(folder: Path, entry: KeptTree, megabytes: float, media_bytes: int = 0) -> bool:
    """Return True if the stream stays within `megabytes` with this tree and so many bytes of images and sounds."""
    path = folder / TREES
    size = path.stat().st_size if path.exists() else 0
    return size + len(json.dumps(tree_to_json(entry))) + media_bytes < megabytes * MEGABYTE


def read_entries(folder: Path) -> list[TreeEntry]:
    """Return the complete trees of a run, in the order in which they were kept; none if it keeps none."""
    path = folder / TREES
    if not path_exists(path):
        return []
    # The lines of the index, as far as they are whole and cover the stream without a gap.
    size, offset = jsonl.complete_length(path), 0
    entries: list[TreeEntry] = []
    with suppress(jsonl.DamagedLineError):
        for line in jsonl.records(folder / INDEX, TreeEntry):
            entry = validate_record(line, TreeEntry)
            if entry.offset != offset or entry.offset + entry.length > size:
                break
            entries.append(entry)
            offset += entry.length
    # The trees after these, read from the stream.
    for end, line in jsonl.records_with_offsets(path, offset, StepLine):
        entries.append(make_entry(_decode(path, line), offset, end - offset))
        offset = end
    return entries


def read_tree(folder: Path, entry: TreeEntry) -> KeptTree:
    """Return the tree of an entry. Raises RunError if it is damaged."""
    path = folder / TREES
    with open_plain(path) as file:
        file.seek(entry.offset)
        text = file.read(entry.length)
    try:
        line: Json = parse_json(text)
        validate_record(line, StepLine)
    except ValueError as error:
        raise damaged_file_error(path, f"the tree of step {entry.step} at byte {entry.offset}: {error}") from None
    return replace(_decode(path, line), folder=folder)


def _decode(path: Path, line: Json) -> KeptTree:
    """Return the tree of a line. Raises RunError if it is not a consistent one of this format."""
    if line.get("version") != TREE_VERSION:
        got = f"got format {line.get('version', 1)!r}; expected {TREE_VERSION}"
        raise RunError(f"{path.name}: {got}. The run was made by another version of Cadre: read it with that.")
    try:
        head = validate_record(line, TreeLine)
        return KeptTree(head.step, head.tree, decode_tree(line))
    except ValueError as error:
        raise damaged_file_error(path, f"a tree of step {line['step']}: {error}") from None


def make_entry(entry: KeptTree, offset: int, length: int) -> TreeEntry:
    """Return the entry of a tree whose line is at that offset."""
    # The reward of each episode that was rolled out to the end, from a walk with the reward above each node.
    rewards: list[float] = []
    wins, waiting = 0, [(entry.tree.root, 0.0)]
    while waiting:
        node, reward_above = waiting.pop()
        for branch in node.branches:
            if not branch.selected:
                continue
            reward = reward_above + branch.reward.team + sum(branch.reward.local.values())
            if branch.child is not None:
                waiting.append((branch.child, reward))
            else:
                rewards.append(reward)
                wins += branch.success
    nodes = list(walk.nodes(entry.tree.root))
    return TreeEntry(
        offset,
        length,
        step=entry.step,
        tree=entry.number,
        task=entry.tree.task.id,
        decisions=len(nodes),
        samples=sum(len(siblings) for node in nodes for siblings in node.samples.values()),
        episodes=len(rewards),
        wins=wins,
        reward=sum(rewards) / len(rewards) if rewards else 0.0,
        roles=tuple(dict.fromkeys(role for node in nodes for role in node.samples)),
    )


def repair_index(folder: Path) -> bool:
    """Write the index anew unless it covers the stream; return True if it did not."""
    if not path_exists(folder / TREES):
        return False
    index = "".join(f"{to_json(asdict(entry))}\n" for entry in read_entries(folder))
    if path_exists(folder / INDEX):
        with open_plain(folder / INDEX) as file:
            if file.read() == index.encode():
                return False
    write_text_atomically(folder / INDEX, index)
    return True


# ---- Annotations of the samples of kept trees

ANNOTATIONS = "annotations"
# By producer, then by number of the tree: the fields of samples.
Annotations = dict[str, dict[int, list[Json]]]


def annotate_trees(
    trees: Sequence[Tree], batch: TrainingBatch, notes: Iterable[TokenNote], settings: CreditConfig
) -> Annotations:
    """Return a step's annotations of the samples of these trees, its first ones: `credit`, `critic` and `tokens`."""
    numbers = [node_numbers(tree.root) for tree in trees]
    streams: Annotations = defaultdict(lambda: defaultdict(list))

    def add(producer: str, position: SamplePosition, fields: Json) -> None:
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
        is_learned = position in learned and judged.trains
        reason = None
        if is_cut_off(judged, settings):
            reason = "cut off"
        elif position in zero_variance and (not is_learned or judged.advantages == (0.0,)):
            reason = "no spread"
        elif not is_learned:
            reason = "lowest group" if position in lowest else "not positive"
        scored = learned.get(position, judged)
        credit: Json = {"return": scored.returns, "penalty": sum(scored.costs)}
        credit["advantage"] = sum(scored.advantages) / len(scored.advantages)
        credit["weight"] = 0.0 if reason else scored.weight
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


def write_annotations(folder: Path, step: int, streams: Mapping[str, Mapping[int, list[Json]]]) -> None:
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


# Node, role and index of a sample in its tree.
SampleKey = tuple[int, str, int]


def read_annotations(
    folder: Path, step: int, tree: int, indices: dict[str, AnnotationIndex]
) -> Mapping[SampleKey, Json]:
    """Return the annotations of a tree's samples, by producer. `indices` of the files, by name, are kept for other
    trees."""
    annotations: dict[SampleKey, Json] = {}
    for path in annotation_files(folder):
        index = indices.setdefault(path.stem, AnnotationIndex(path))
        for line in index.read(step, tree):
            for fields in line["samples"]:
                key = (fields["node"], fields["role"], fields["index"])
                annotations.setdefault(key, {})[path.stem] = fields
    return annotations


# ---- What a step left out

LEFT_OUT = "left_out.jsonl"
EQUAL_RETURNS = "samples with equal returns have no advantage over each other"
EQUAL_REWARDS = "groups with equal rewards are dropped (credit.without_std)"


def left_out_lines(sampled: SampledTrees, batch: TrainingBatch, settings: CreditConfig) -> Iterator[Json]:
    """Yield all that a step left out of its update, and its replacements, without the number of the step."""
    trees = sampled.trees
    for failure in sampled.failures:
        reason = f"{failure.reason}: {failure.error}"
        yield {"kind": "failed", "task": failure.task.id, "reason": reason, "error": failure.traceback}

    # Zero-variance groups, by tree. A grouping by role alone compares several trees, and is of none of them.
    within_trees = [group for group in batch.groups if len({scored.tree_sample.tree for scored in group.samples}) == 1]
    compared = Counter(group.samples[0].tree_sample.tree for group in within_trees)
    zero_variance: dict[int, list[Json]] = defaultdict(list)
    for group in within_trees:
        if not group.has_variance or group.is_dropped(settings.without_std):
            first = group.samples[0]
            fields: Json = {"role": first.sample.role, "decision": len(first.tree_sample.path)}
            fields |= {"samples": len(group.samples), "return": first.return_after_costs}
            zero_variance[first.tree_sample.tree].append(fields)
    for tree, groups in sorted(zero_variance.items()):
        is_all = len(groups) == compared[tree]
        reason = "every group of the tree" if is_all else f"{len(groups)} of {compared[tree]} groups"
        reason += f": {EQUAL_REWARDS if settings.without_std == 'drop' else EQUAL_RETURNS}"
        head: Json = {"kind": "no spread", "task": trees[tree].task.id, "tree": tree, "reason": reason}
        yield head | {"whole": is_all, "groups": groups}

    # Samples that reached their limit.
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for scored in batch.judged:
        if is_cut_off(scored, settings):
            counts[scored.tree_sample.tree][scored.sample.role] += 1
    for tree, by_role in sorted(counts.items()):
        reason = "reached sampling.max_tokens, and credit.truncated is mask"
        head = {"kind": "cut off", "task": trees[tree].task.id, "tree": tree, "reason": reason}
        yield head | {"samples": dict(by_role)}

    # The last trees of a step are those of the replacement tasks that did not fail.
    failed = sum(1 for _ in sampled.failures)
    first_replacement = max(0, len(trees) + failed - sampled.replaced)
    for index, replacement in enumerate(trees[first_replacement:], first_replacement):
        reason = "stood in for a task that taught nothing (train.replacements)"
        yield {"kind": "replacement", "task": replacement.task.id, "tree": index, "reason": reason}


# ---- What is kept of a step

# Megabytes that the first steps may fill, whatever their part of the budget.
INITIAL_MEGABYTES = 16.0
COPIED_FILES = (TREES, INDEX, LEFT_OUT, VOCABULARY)


@dataclass(frozen=True)
class StepRecord:
    """All that a step sampled and computed from it, before it is decided what is kept."""

    sampled: SampledTrees
    batch: TrainingBatch
    notes: Sequence[TokenNote] = ()


@dataclass(frozen=True)
class StepRecorder:
    """Writes what the settings keep of each step into the `folder` of a run, its images and sounds into `media`, and
    the spelling of tokens into `vocabulary`."""

    folder: Path
    settings: TrainConfig
    credit: CreditConfig
    vocabulary: Vocabulary
    media: MediaStore

    def keep(self, step: int, record: StepRecord) -> None:
        """Write the kept trees of a step, their annotations, and what was left out."""
        trees, batch = record.sampled.trees, record.batch
        count, limit = self._trees(step, trees), self.settings.trees_kept
        write_annotations(self.folder, step, annotate_trees(trees[:count], batch, record.notes, self.credit))
        lines = list(left_out_lines(record.sampled, batch, self.credit))
        if count < len(trees):
            is_full = count < min(limit, len(trees))
            reason = "train.trees_megabytes is used up so far" if is_full else f"train.trees_kept is {limit}"
            lines.append({"kind": "not kept", "trees": len(trees) - count, "reason": reason})
        for line in lines:
            jsonl.append(self.folder / LEFT_OUT, {"step": step, **line})

    def _trees(self, step: int, trees: Sequence[Tree]) -> int:
        """Write as many trees of a step as are to be kept; return their number."""
        megabytes = self.due(step)
        for number, tree in enumerate(trees[: self.settings.trees_kept]):
            entry, media = KeptTree(step, number, tree), set(iterate_media(tree))
            if not fits_budget(self.folder, entry, megabytes, self.media.size_with(media)):
                return number
            self.vocabulary.learn(self.folder, tree)
            self.media.save(media)
            append_tree(self.folder, entry)
        return min(len(trees), self.settings.trees_kept)

    def due(self, step: int) -> float:
        """Return the megabytes that trees may fill by the end of a step. The budget is spread over the steps, except
        for the first INITIAL_MEGABYTES, so that a long run is covered to its end. Equal runs keep equal trees."""
        budget = self.settings.trees_megabytes
        return min(budget, max(INITIAL_MEGABYTES, budget * (step + 1) / self.settings.steps))


def forget_steps(folder: Path, step: int) -> None:
    """Remove what was written of `step` and of later ones. The spelling of a model's tokens stays valid."""
    files: dict[Path, type] = {folder / INDEX: TreeEntry, folder / TREES: StepLine, folder / LEFT_OUT: LeftOutLine}
    files |= dict.fromkeys(annotation_files(folder), StepLine)
    for path, model in files.items():
        jsonl.truncate(path, lambda line: line["step"] >= step, model)


def copy_steps(folder: Path, into: Path, step: int) -> None:
    """Copy what was kept of the steps before `step` from one run to another, as the first wrote it."""
    for name in FORMATS:
        require_no_link(folder / name)
    for path in (*(folder / name for name in COPIED_FILES), *annotation_files(folder), *media_files(folder)):
        if path_exists(path):
            target = into / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            copy_plain(path, target)
    forget_steps(into, step)


# ---- Reading the trees of a run


def find_tree(folder: Path, step: int, number: int = 0) -> KeptTree:
    """Return the tree with this number, from 0, that was kept of a step, from 1. Raises RunError if there is none."""
    entries = read_entries(folder)
    if not entries:
        raise RunError(f"play: {folder} has kept no tree; expected a run with a step and train.trees_kept above 0.")
    step_entries = [entry for entry in entries if entry.step == step - 1]
    if number < len(step_entries):
        return read_tree(folder, step_entries[number])
    tasks = f", and a task from 0 to {len(step_entries) - 1}" if step_entries else ""
    expected = f"expected a step from {entries[0].step + 1} to {entries[-1].step + 1}{tasks}"
    raise RunError(f"play: got --step {step} --task {number}, of which no tree is kept; {expected}. Name one.")


def read_all_trees(folder: Path) -> Iterator[KeptTree]:
    """Yield every tree of a run, in the order in which they were kept; nothing if it kept none."""
    return (read_tree(folder, entry) for entry in read_entries(folder))
