"""The trees that a run keeps: their JSON format, the stream that holds them, images, and the spelling of tokens.

`trees.jsonl` is only appended to, and `trees.index.jsonl` has the byte offset of each tree. Both can be read while a
run writes them. The index can always be rebuilt: where it was lost, or a crash came between a tree and its index line,
the missing lines are read from the stream itself. docs/trees.md describes the format; TREE_VERSION changes with every
change of meaning. The nodes of a tree are one flat list, parents first, and a branch names its child by number: a tree
of any depth is written and read without recursion, and annotations name a node by its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from cadre import types
from cadre.advantages.batch import TrainingBatch
from cadre.errors import RunError
from cadre.files import (
    copy_plain,
    damaged_file_error,
    explain_disk_errors,
    load_json,
    open_plain,
    path_exists,
    require_no_link,
    sync_to_disk,
    validate_record,
)
from cadre.learn.token_notes import TokenNote
from cadre.rollout import walk
from cadre.rollout.episodes import SampledTrees
from cadre.runs import jsonl
from cadre.runs.annotations import (
    ANNOTATIONS,
    LEFT_OUT,
    annotate_trees,
    annotation_files,
    left_out_lines,
    not_kept_lines,
    truncate_annotations,
    write_annotations,
)
from cadre.runs.records import IndexLine, LeftOutLine, TreeLineHead, VocabularyLine, validate_tree
from cadre.settings import CreditConfig, TrainConfig
from cadre.types import Branch, Image, Message, Node, Observation, Sample, Tree

TREE_VERSION = 2


# {"version": 2, "step": 3, "tree": 0, "task": {...}, "nodes": [{...}, ...]}; steps and trees count from 0.
KeptTree = Mapping[str, Any]


Json = dict[str, Any]


def tree_to_json(step: int, number: int, tree: Tree) -> Json:
    """The tree `number` of a step, as it is written."""
    nodes = list(walk.nodes(tree.root))
    numbers = {id(node): place for place, node in enumerate(nodes)}
    task = {"id": tree.task.id, "data": dict(tree.task.data)}
    written = [_node_to_json(node, numbers) for node in nodes]
    return {"version": TREE_VERSION, "step": step, "tree": number, "task": task, "nodes": written}


def _node_to_json(node: Node, numbers: Mapping[int, int]) -> Json:
    written: Json = {
        "turn": node.turn,
        "share": node.weight,
        "observations": {role: _observation_to_json(seen) for role, seen in node.observations.items()},
        "prompts": {role: list(siblings[0].prompt_ids) for role, siblings in node.samples.items() if siblings},
        "samples": {
            role: [_sample_to_json(sample, siblings[0]) for sample in siblings]
            for role, siblings in node.samples.items()
        },
        "branches": [_branch_to_json(branch, numbers) for branch in node.branches],
    }
    optional = {"privileged": node.privileged, "drawing": node.drawing}
    return written | {name: value for name, value in optional.items() if value}


def _observation_to_json(seen: Observation) -> Json:
    offered = {"tools": [asdict(tool) for tool in seen.tools]} if seen.tools else {}
    return {"role": seen.role, "messages": [_message_to_json(message) for message in seen.messages]} | offered


def _message_to_json(message: Message) -> Json:
    calls = {"tool_calls": [asdict(call) for call in message.tool_calls]} if message.tool_calls else {}
    answers = {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
    seen = {"images": [image_to_json(image) for image in message.images]} if message.images else {}
    return {"role": message.role, "content": message.content, **calls, **answers, **seen}


def tree_images(tree: Tree) -> set[Image]:
    """Every picture that a tree shows."""
    seen = (one for node in walk.nodes(tree.root) for one in node.observations.values())
    return {image for one in seen for image in types.images_of(one.messages)}


def _sample_to_json(sample: Sample, first: Sample) -> Json:
    """The ids of the prompt stand at the decision, once for all siblings; with a sample only where its own differ."""
    written = {
        "policy": sample.policy,
        "text": sample.text,
        "token_ids": list(sample.token_ids),
        "logprobs": list(sample.logprobs),
        "finish": sample.finish,
        "version": sample.version,
        "history": sample.history,
    }
    if sample.message is not None:
        written["message"] = _message_to_json(sample.message)
    return written if sample.prompt_ids == first.prompt_ids else written | {"prompt_ids": list(sample.prompt_ids)}


def _branch_to_json(branch: Branch, numbers: Mapping[int, int]) -> Json:
    reward = branch.reward
    written: Json = {
        "choice": dict(branch.choice),
        "reward": {"team": reward.team, "local": dict(reward.local), "parts": dict(reward.parts)},
        "over": branch.over,
        "success": branch.success,
        "carried": branch.selected,
        "child": None if branch.child is None else numbers[id(branch.child)],
    }
    failure = branch.failure
    if failure is not None:
        written["failure"] = {"reason": failure.reason, "error": failure.error}
    return written | ({"drawing": branch.drawing} if branch.drawing else {})


def upgrade_tree(line: Json, number: int) -> KeptTree:
    """A line of any version as one of this version; `number` is its place in its step. Raises RunError for one of a
    later version."""
    version = line.get("version", 1)
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"version: got {version!r}, expected a number")
    if version > TREE_VERSION:
        raise RunError(
            f"trees.jsonl: got format {version}; expected {TREE_VERSION} or an older one. The run was made by a later "
            "Cadre: read it with that."
        )
    return line if version == TREE_VERSION else _flatten_version_1(line, number)


def _flatten_version_1(line: Json, number: int) -> KeptTree:
    """Version 1 had decisions within branches, and the prompt's ids with every sample."""
    nodes: list[Json] = []
    waiting: list[tuple[Json, Json | None]] = [(line["root"], None)]
    while waiting:
        node, above = waiting.pop()
        if above is not None:
            above["child"] = len(nodes)
        flat = {**node, "branches": [dict(branch) for branch in node["branches"]]}
        flat["prompts"] = {role: siblings[0]["prompt_ids"] for role, siblings in node["samples"].items()}
        nodes.append(flat)
        children = [(branch["child"], branch) for branch in flat["branches"] if branch["child"] is not None]
        waiting += reversed(children)
    return {"version": TREE_VERSION, "step": line["step"], "tree": number, "task": line["task"], "nodes": nodes}


def iterate_samples(tree: KeptTree) -> Iterator[tuple[int, str, int, Json]]:
    """(number of the decision, role, number of the sibling, sample) of every sample."""
    for number, node in enumerate(tree["nodes"]):
        for role, siblings in node["samples"].items():
            for index, sample in enumerate(siblings):
                yield number, role, index, sample


IMAGES = "pictures"


PNG = b"\x89PNG\r\n\x1a\n"


DIGEST = re.compile(r"[0-9a-f]{64}")


def image_to_json(image: Image) -> dict[str, Any]:
    """What JSON says of a picture."""
    return {"digest": image.digest, "width": image.width, "height": image.height}


def save_images(folder: Path, images: Iterable[Image]) -> None:
    """Write the pictures that are not there yet, each whole or not at all. Raises RunError where the disk refuses."""
    for image in images:
        path = folder / IMAGES / f"{image.digest}.png"
        if not path.exists():
            with explain_disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f".partial-{path.name}")
                partial.unlink(missing_ok=True)  # it may be a link to elsewhere
                partial.write_bytes(image.png)
                sync_to_disk(partial)
                partial.rename(path)


def read_image(folder: Path, digest: str) -> bytes:
    """The file of a picture. Raises RunError where there is none of that name."""
    path = folder / IMAGES / f"{digest}.png"
    if not DIGEST.fullmatch(digest) or not path_exists(path):
        raise RunError(
            f"pictures: {folder} holds none that is called {digest[:80]!r}; expected the digest of one that its trees "
            "show. Restore the folder pictures from a copy."
        )
    with open_plain(path, folder) as file:
        png = file.read()
    if not png.startswith(PNG):
        raise RunError(f"pictures: {path} is no PNG file; expected one. Restore it from a copy.")
    return png


class ImageStore:
    """The pictures of a folder and how much they take. Owned by the one who writes there, for as long as it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, images: Collection[Image]) -> None:
        """Write those that are not there yet. Raises RunError where the disk refuses."""
        size, new = self.size_with(images), {image.digest for image in images}
        save_images(self.folder, images)
        self._size = size
        self._digests.update(new)

    def size_with(self, images: Collection[Image]) -> int:
        """Bytes of all of them, were these among them."""
        new = {image.digest: len(image.png) for image in images if image.digest not in self._digests}
        return self._size + sum(new.values())

    @cached_property
    def _digests(self) -> set[str]:
        return {path.stem for path in self._files()}

    @cached_property
    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._files())

    def _files(self) -> Iterator[Path]:
        return (self.folder / IMAGES).glob("*.png")


def load_images(value: Any, folder: Path) -> Any:
    """JSON values with the bytes of every picture put in, as `Image` has them."""
    if isinstance(value, list):
        return [load_images(inner, folder) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"digest", "width", "height"}:
        return {**value, "png": read_image(folder, value["digest"])}
    return {key: load_images(inner, folder) for key, inner in value.items()}


VOCABULARY = "vocabulary.jsonl"


class Speller(Protocol):
    """Spells the tokens of one model."""

    def spell(self, token: int) -> str:
        """Its text; `<0xE2><0x82>` for bytes that are no whole character."""
        ...


class Vocabulary:
    """Writes how the tokens of kept trees are spelt. Owned by the run; `spellers` are by policy, and a policy without
    one, such as a remote one, is left out."""

    def __init__(self, spellers: Mapping[str, Speller]) -> None:
        self._spellers = spellers
        self._known: dict[str, set[int]] | None = None

    def learn(self, folder: Path, tree: KeptTree) -> None:
        """Write the tokens of a tree that the file does not have yet."""
        known = self._read(folder)
        for policy, tokens in tree_tokens(tree).items():
            fresh = sorted(tokens - known.setdefault(policy, set()))
            if fresh and policy in self._spellers:
                spelt = {str(token): self._spellers[policy].spell(token) for token in fresh}
                jsonl.append(folder / VOCABULARY, {"policy": policy, "tokens": spelt})
                known[policy] |= tokens

    def _read(self, folder: Path) -> dict[str, set[int]]:
        if self._known is None:
            self._known = {policy: set(map(int, spelt)) for policy, spelt in read_vocabulary(folder).items()}
        return self._known


def tree_tokens(tree: KeptTree) -> dict[str, set[int]]:
    """By policy: every token of its prompts and of its samples."""
    tokens: dict[str, set[int]] = {}
    for node, role, _, sample in iterate_samples(tree):
        prompt = sample.get("prompt_ids") or tree["nodes"][node]["prompts"].get(role, ())
        tokens.setdefault(sample["policy"], set()).update(sample["token_ids"], prompt)
    return tokens


def read_vocabulary(folder: Path) -> dict[str, dict[str, str]]:
    """By policy: the spelling of each token."""
    words: dict[str, dict[str, str]] = {}
    for line in jsonl.records(folder / VOCABULARY, VocabularyLine):
        words.setdefault(line["policy"], {}).update(line["tokens"])
    return words


TREES, INDEX = "trees.jsonl", "trees.index.jsonl"


MEGABYTE = 1_000_000


@dataclass(frozen=True)
class TreeEntry:
    """One kept tree in short.

    offset, length   the bytes of its line in `trees.jsonl`, newline included
    step, tree       both from 0; `tree` is its place among all that the step sampled
    task             id of its task
    decisions, samples, episodes, wins   how many; wins are the episodes that ended in success
    reward           team and local rewards of an episode, mean
    roles            in the order in which they first act
    """

    offset: int
    length: int
    step: int
    tree: int
    task: str
    decisions: int
    samples: int
    episodes: int
    wins: int
    reward: float
    roles: tuple[str, ...]


ENTRY_FIELDS = tuple(TreeEntry.__dataclass_fields__)


def append_tree(folder: Path, record: KeptTree) -> None:
    """Write a tree behind the last whole one, then its line of the index."""
    offset = jsonl.append(folder / TREES, record)
    length = (folder / TREES).stat().st_size - offset
    jsonl.append(folder / INDEX, asdict(make_entry(record, offset, length)))


def fits_budget(folder: Path, record: KeptTree, most: float, beside: int = 0) -> bool:
    """Whether the stream would stay within `most` megabytes with this tree and so many bytes beside it."""
    path = folder / TREES
    size = path.stat().st_size if path.exists() else 0
    return size + len(json.dumps(record)) + beside < most * MEGABYTE


def read_entries(folder: Path) -> list[TreeEntry]:
    """The whole trees of a run, in the order in which they were kept; none where it keeps none."""
    path = folder / TREES
    if not path_exists(path):
        return []
    known, end = _indexed_entries(folder, jsonl.complete_length(path))
    return [*known, *_unindexed_entries(path, end, known)]


def _indexed_entries(folder: Path, size: int) -> tuple[list[TreeEntry], int]:
    """The lines of the index that fit the stream, and the byte up to which they tell of it."""
    known: list[TreeEntry] = []
    end = 0
    for line in jsonl.records(folder / INDEX, IndexLine):
        entry = TreeEntry(**{name: line[name] for name in ENTRY_FIELDS} | {"roles": tuple(line["roles"])})
        if entry.offset != end or entry.offset + entry.length > size:
            break
        known.append(entry)
        end += entry.length
    return known, end


def _unindexed_entries(path: Path, offset: int, before: list[TreeEntry]) -> Iterator[TreeEntry]:
    """Entries of the trees from a byte on, which the index does not have."""
    made: dict[int, int] = {}
    for entry in before:
        made[entry.step] = made.get(entry.step, 0) + 1
    for end, line in jsonl.records_with_offsets(path, offset, TreeLineHead):
        number = made.get(line["step"], 0)
        made[line["step"]] = number + 1
        yield make_entry(_upgrade_and_validate(path, line, number), offset, end - offset)
        offset = end


def read_tree(folder: Path, entry: TreeEntry) -> KeptTree:
    """The tree that an entry stands for. Raises RunError where it is damaged."""
    path = folder / TREES
    with open_plain(path) as file:
        file.seek(entry.offset)
        text = file.read(entry.length)
    try:
        line: dict[str, Any] = load_json(text)
        validate_record(line, TreeLineHead)
    except ValueError as error:
        raise damaged_file_error(path, f"the tree of step {entry.step} at byte {entry.offset}: {error}") from None
    return _upgrade_and_validate(path, line, entry.tree)


def _upgrade_and_validate(path: Path, line: dict[str, Any], number: int) -> KeptTree:
    """A line in the present format, which holds together."""
    try:
        tree = upgrade_tree(line, number)
        validate_tree(tree)
    except ValueError as error:
        raise damaged_file_error(path, f"a tree of step {line['step']}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise damaged_file_error(path, f"a tree of step {line['step']} is of no known format") from None
    return tree


def make_entry(tree: KeptTree, offset: int, length: int) -> TreeEntry:
    """The entry of a tree whose line stands there."""
    paid, wins = _episode_rewards(tree)
    return TreeEntry(
        offset,
        length,
        step=tree["step"],
        tree=tree["tree"],
        task=tree["task"]["id"],
        decisions=len(tree["nodes"]),
        samples=sum(1 for _ in iterate_samples(tree)),
        episodes=len(paid),
        wins=wins,
        reward=sum(paid) / len(paid) if paid else 0.0,
        roles=tuple(dict.fromkeys(role for node in tree["nodes"] for role in node["samples"])),
    )


def _episode_rewards(tree: KeptTree) -> tuple[list[float], int]:
    """What each episode that was played to its end was paid, and how many of them were solved."""
    paid: list[float] = []
    wins, waiting = 0, [(0, 0.0)]
    while waiting:
        number, so_far = waiting.pop()
        for branch in tree["nodes"][number]["branches"]:
            if not branch["carried"]:
                continue
            reward = so_far + branch["reward"]["team"] + sum(branch["reward"]["local"].values())
            if branch["child"] is not None:
                waiting.append((branch["child"], reward))
            else:
                paid.append(reward)
                wins += branch["success"]
    return paid, wins


def truncate_trees(folder: Path, step: int) -> None:
    """Forget the trees of `step` and of later ones."""
    jsonl.truncate(folder / INDEX, lambda line: line["step"] >= step, IndexLine)
    jsonl.truncate(folder / TREES, lambda line: line["step"] >= step, TreeLineHead)


def rebuild_index(folder: Path) -> None:
    """Write the index of a stream whose lines have changed, or that has lost it."""
    found = read_entries(folder)
    (folder / INDEX).unlink(missing_ok=True)
    for entry in found:
        jsonl.append(folder / INDEX, asdict(entry))


# Megabytes that the first steps may fill, whatever part of the budget is due by then.
INITIAL_MEGABYTES = 16.0


COPIED_FILES = (TREES, INDEX, LEFT_OUT, VOCABULARY)


@dataclass(frozen=True)
class StepRecord:
    """All that a step sampled and made of it, before it is known what of it is kept."""

    sampled: SampledTrees
    batch: TrainingBatch
    notes: Sequence[TokenNote] = ()


@dataclass(frozen=True)
class StepRecorder:
    """Writes what the settings keep of each step into the `folder` of a run, its pictures into `shown`, and how tokens
    are spelt into `words`."""

    folder: Path
    goal: TrainConfig
    chosen: CreditConfig
    words: Vocabulary
    shown: ImageStore

    def keep(self, step: int, record: StepRecord) -> None:
        """Write the kept trees of a step, what is said of their samples, and what was left out."""
        trees, batch = record.sampled.trees, record.batch
        kept = self._trees(step, trees)
        write_annotations(self.folder, step, annotate_trees(trees[:kept], batch, record.notes, self.chosen))
        missing = not_kept_lines(len(trees), kept, self.goal.trees_kept)
        for line in (*left_out_lines(record.sampled, batch, self.chosen), *missing):
            jsonl.append(self.folder / LEFT_OUT, {"step": step, **line})

    def _trees(self, step: int, trees: Sequence[Tree]) -> int:
        """Write as many trees of a step as are to be kept; how many."""
        due = self.due(step)
        for number, tree in enumerate(trees[: self.goal.trees_kept]):
            written, images = tree_to_json(step, number, tree), tree_images(tree)
            if not fits_budget(self.folder, written, due, self.shown.size_with(images)):
                return number
            self.words.learn(self.folder, written)
            self.shown.save(images)
            append_tree(self.folder, written)
        return min(len(trees), self.goal.trees_kept)

    def due(self, step: int) -> float:
        """Megabytes that trees may fill by the end of a step: the budget is spread over the steps, but for AT_ONCE, so
        that a long run is seen to its end. Equal runs keep equal trees."""
        budget = self.goal.trees_megabytes
        return min(budget, max(INITIAL_MEGABYTES, budget * (step + 1) / self.goal.steps))


def forget_steps(folder: Path, step: int) -> None:
    """Forget what was written of `step` and of later ones; what the words of a model are stays true."""
    truncate_trees(folder, step)
    truncate_annotations(folder, step)
    jsonl.truncate(folder / LEFT_OUT, lambda line: line["step"] >= step, LeftOutLine)


def copy_steps(folder: Path, into: Path, step: int) -> None:
    """Copy what was kept of the steps before `step` from one run to another, as the first wrote it."""
    require_no_link(folder / IMAGES)
    streams = [*folder.glob("*.jsonl"), *annotation_files(folder)]
    for path in streams:
        if path.name in COPIED_FILES or path.parent.name == ANNOTATIONS:
            there = into / path.relative_to(folder)
            there.parent.mkdir(exist_ok=True)
            copy_plain(path, there)
    for path in (folder / IMAGES).glob("*.png"):
        (into / IMAGES).mkdir(exist_ok=True)
        copy_plain(path, into / IMAGES / path.name)
    forget_steps(into, step)


def find_tree(folder: Path, step: int, number: int = 0) -> KeptTree:
    """The tree with this number, from 0, that was kept of a step, from 1. Raises RunError where there is none."""
    if not (folder / TREES).is_file():
        raise RunError(f"play: {folder} holds no trees.jsonl; expected the folder of a run that has made a step.")
    entries = read_entries(folder)
    of_step = [entry for entry in entries if entry.step == step - 1]
    if number >= len(of_step):
        raise RunError(_no_tree_message(folder, step, number, entries))
    return read_tree(folder, of_step[number])


def read_all_trees(folder: Path) -> Iterator[KeptTree]:
    """Every tree of a run, in the order in which they were kept; none where it kept none."""
    return (read_tree(folder, entry) for entry in read_entries(folder))


def _no_tree_message(folder: Path, step: int, number: int, entries: Sequence[TreeEntry]) -> str:
    steps = [entry.step + 1 for entry in entries]
    if not steps:
        return f"play: {folder} has kept no tree; expected train.trees_kept of 1 or more. Train with that."
    if step not in steps:
        return f"play --step: got {step}; expected a step of {folder}, {min(steps)} to {max(steps)}. Name one of those."
    return (
        f"play --task: got {number}; expected 0 to {steps.count(step) - 1}, as step {step} has kept "
        f"{steps.count(step)}. Name one of those, or train with a larger train.trees_kept."
    )
