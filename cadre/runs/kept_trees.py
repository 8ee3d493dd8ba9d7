"""The trees that a run keeps: their JSON format, the stream that holds them, images, and the spelling of tokens.

`trees.jsonl` is only appended to, and `trees.index.jsonl` has the byte offset of each tree. Both can be read while a
run writes them. The index can always be rebuilt: where it was lost, or a crash came between a tree and its index line,
the missing lines are read from the stream itself. docs/view.md describes the format; TREE_VERSION changes with every
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
from cadre.file_limits import parse_json
from cadre.files import (
    copy_plain,
    damaged_file_error,
    explain_disk_errors,
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
from cadre.types import Media, Message, Node, Sound, Tree

TREE_VERSION = 2
# {"version": 2, "step": 3, "tree": 0, "task": {...}, "nodes": [{...}, ...]}; steps and trees count from 0.
KeptTree = Mapping[str, Any]
Json = dict[str, Any]


# ---- Trees as JSON


def tree_to_json(step: int, number: int, tree: Tree) -> Json:
    """Return tree `number` of a step, as it is written."""
    nodes = list(walk.nodes(tree.root))
    numbers = {id(node): index for index, node in enumerate(nodes)}
    return {
        "version": TREE_VERSION,
        "step": step,
        "tree": number,
        "task": {"id": tree.task.id, "data": dict(tree.task.data)},
        "nodes": [_node_to_json(node, numbers) for node in nodes],
    }


def _node_to_json(node: Node, numbers: Mapping[int, int]) -> Json:
    observations: Json = {}
    for role, observation in node.observations.items():
        messages = [_message_to_json(message) for message in observation.messages]
        observations[role] = {"role": observation.role, "messages": messages}
        if observation.tools:
            observations[role]["tools"] = [asdict(tool) for tool in observation.tools]

    # The ids of the prompt are at the node, once for all siblings, and with a sample only if its own differ.
    prompts = {role: list(siblings[0].prompt_ids) for role, siblings in node.samples.items() if siblings}
    samples: Json = {}
    for role, siblings in node.samples.items():
        samples[role] = []
        for sample in siblings:
            fields: Json = {
                "policy": sample.policy,
                "text": sample.text,
                "token_ids": list(sample.token_ids),
                "logprobs": list(sample.logprobs),
                "finish": sample.finish,
                "version": sample.version,
                "history": sample.history,
            }
            if sample.message is not None:
                fields["message"] = _message_to_json(sample.message)
            if sample.prompt_ids != siblings[0].prompt_ids:
                fields["prompt_ids"] = list(sample.prompt_ids)
            samples[role].append(fields)

    branches = []
    for branch in node.branches:
        reward = branch.reward
        fields = {
            "choice": dict(branch.choice),
            "reward": {"team": reward.team, "local": dict(reward.local), "parts": dict(reward.parts)},
            "over": branch.over,
            "success": branch.success,
            "carried": branch.selected,
            "child": None if branch.child is None else numbers[id(branch.child)],
        }
        if branch.ablated:
            fields["ablated"] = {absent: asdict(reward) for absent, reward in branch.ablated.items()}
        if branch.failure is not None:
            fields["failure"] = {"reason": branch.failure.reason, "error": branch.failure.error}
        if branch.drawing:
            fields["drawing"] = branch.drawing
        branches.append(fields)

    record: Json = {
        "turn": node.turn,
        "share": node.weight,
        "observations": observations,
        "prompts": prompts,
        "samples": samples,
        "branches": branches,
    }
    optional = {"privileged": node.privileged, "drawing": node.drawing, "signature": node.signature}
    return record | {name: value for name, value in optional.items() if value}


def _message_to_json(message: Message) -> Json:
    calls = {"tool_calls": [asdict(call) for call in message.tool_calls]} if message.tool_calls else {}
    answers = {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
    images = {"images": [medium_to_json(image) for image in message.images]} if message.images else {}
    sounds = {"sounds": [medium_to_json(sound) for sound in message.sounds]} if message.sounds else {}
    thinking = {"thinking": message.thinking} if message.thinking else {}
    return {"role": message.role, "content": message.content, **thinking, **calls, **answers, **images, **sounds}


def tree_media(tree: Tree) -> set[Media]:
    """Return all images and sounds of a tree's observations."""
    observations = (observation for node in walk.nodes(tree.root) for observation in node.observations.values())
    return {medium for observation in observations for medium in types.media_of(observation.messages)}


def iterate_samples(tree: KeptTree) -> Iterator[tuple[int, str, int, Json]]:
    """Yield (number of the node, role, index among its siblings, sample) of every sample."""
    for number, node in enumerate(tree["nodes"]):
        for role, siblings in node["samples"].items():
            for index, sample in enumerate(siblings):
                yield number, role, index, sample


IMAGES, SOUNDS = "pictures", "sounds"
# By folder the ending of its files, and the bytes with which each begins.
FORMATS = {IMAGES: (".png", b"\x89PNG\r\n\x1a\n"), SOUNDS: (".wav", b"RIFF")}
DIGEST = re.compile(r"[0-9a-f]{64}")


# ---- Images and sounds: `pictures/DIGEST.png` and `sounds/DIGEST.wav`, each once, however often it was observed
#
# A record in JSON is `{"digest": ..., "width": ..., "height": ...}` or `{"digest": ..., "rate": ..., "length": ...}`.
# Files are named by their content, so none is ever rewritten, and one that nothing names any more does no harm.


def medium_to_json(medium: Media) -> dict[str, Any]:
    """Return what JSON has of an image or a sound; its bytes are in a file of its own."""
    if isinstance(medium, Sound):
        return {"digest": medium.digest, "rate": medium.rate, "length": medium.length}
    return {"digest": medium.digest, "width": medium.width, "height": medium.height}


def medium_bytes(medium: Media) -> bytes:
    return medium.wav if isinstance(medium, Sound) else medium.png


def media_files(folder: Path) -> Iterator[Path]:
    """Yield the files of all images and sounds."""
    for name, (ending, _) in FORMATS.items():
        yield from (folder / name).glob(f"*{ending}")


def save_media(folder: Path, media: Iterable[Media]) -> None:
    """Write the files that do not exist yet, each whole or not at all. Raises RunError if the disk refuses."""
    for medium in media:
        name = SOUNDS if isinstance(medium, Sound) else IMAGES
        path = folder / name / f"{medium.digest}{FORMATS[name][0]}"
        if not path.exists():  # a file is named by its content, so an existing one is equal
            with explain_disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f".partial-{path.name}")
                partial.unlink(missing_ok=True)  # it may be a link to elsewhere
                partial.write_bytes(medium_bytes(medium))
                sync_to_disk(partial)
                partial.rename(path)


def read_medium(folder: Path, digest: str, name: str = IMAGES) -> bytes:
    """Return the file of an image, or with `name` SOUNDS of a sound. Raises RunError if there is none of that name."""
    ending, start = FORMATS[name]
    path = folder / name / f"{digest}{ending}"
    if not DIGEST.fullmatch(digest) or not path_exists(path):
        raise RunError(
            f"{name}: {folder} holds none that is called {digest[:80]!r}; expected the digest of one that its trees "
            f"show. Restore the folder {name} from a copy."
        )
    with open_plain(path, folder) as file:
        data = file.read()
    if not data.startswith(start):
        raise RunError(f"{name}: {path} is no {ending[1:].upper()} file; expected one. Restore it from a copy.")
    return data


class MediaStore:
    """The images and sounds of a folder and their total size.

    Owned by the writer of the folder, for as long as it writes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, media: Collection[Media]) -> None:
        """Write those that do not exist yet. Raises RunError if the disk refuses."""
        size, new = self.size_with(media), {medium.digest for medium in media}
        save_media(self.folder, media)
        self._size = size
        self._digests.update(new)

    def size_with(self, media: Collection[Media]) -> int:
        """Return the bytes of all of them, with these among them."""
        new = {medium.digest: len(medium_bytes(medium)) for medium in media if medium.digest not in self._digests}
        return self._size + sum(new.values())

    @cached_property
    def _digests(self) -> set[str]:
        return {path.stem for path in media_files(self.folder)}

    @cached_property
    def _size(self) -> int:
        return sum(path.stat().st_size for path in media_files(self.folder))


def load_media(value: Any, folder: Path) -> Any:
    """Return JSON values with the bytes of every image and sound put in, as `Image` and `Sound` have them."""
    if isinstance(value, list):
        return [load_media(inner, folder) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"digest", "width", "height"}:
        return {**value, "png": read_medium(folder, value["digest"])}
    if value.keys() == {"digest", "rate", "length"}:
        return {**value, "wav": read_medium(folder, value["digest"], SOUNDS)}
    return {key: load_media(inner, folder) for key, inner in value.items()}


# ---- The spelling of tokens: `vocabulary.jsonl`
#
# Lines `{"policy": "planner", "tokens": {"12": "the", "91": "<0xE2>"}}`, each token once per policy, so that a run can
# be read without its models. A token that is a part of a character is spelt by its bytes.

VOCABULARY = "vocabulary.jsonl"


class Speller(Protocol):
    """Spells the tokens of one model."""

    def spell(self, token: int) -> str:
        """Return its text; `<0xE2><0x82>` for bytes that are no whole character."""
        ...


class Vocabulary:
    """Writes the spelling of the tokens of kept trees. Owned by the run; `spellers` are by policy, and a policy without
    one, such as a remote one, is left out."""

    def __init__(self, spellers: Mapping[str, Speller]) -> None:
        self._spellers = spellers
        self._known: dict[str, set[int]] | None = None

    def learn(self, folder: Path, tree: KeptTree) -> None:
        """Write the tokens of a tree that the file does not have yet."""
        written = self._read(folder)
        for policy, tokens in tree_tokens(tree).items():
            new = sorted(tokens - written.setdefault(policy, set()))
            if new and policy in self._spellers:
                spelt = {str(token): self._spellers[policy].spell(token) for token in new}
                jsonl.append(folder / VOCABULARY, {"policy": policy, "tokens": spelt})
                written[policy] |= tokens

    def _read(self, folder: Path) -> dict[str, set[int]]:
        if self._known is None:
            self._known = {policy: set(map(int, spelt)) for policy, spelt in read_vocabulary(folder).items()}
        return self._known


def tree_tokens(tree: KeptTree) -> dict[str, set[int]]:
    """Return, by policy, every token of its prompts and of its samples."""
    tokens: dict[str, set[int]] = {}
    for node, role, _, sample in iterate_samples(tree):
        prompt = sample.get("prompt_ids") or tree["nodes"][node]["prompts"].get(role, ())
        tokens.setdefault(sample["policy"], set()).update(sample["token_ids"], prompt)
    return tokens


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
    """Write a tree after the last complete one, then its line of the index."""
    offset = jsonl.append(folder / TREES, record)
    length = (folder / TREES).stat().st_size - offset
    jsonl.append(folder / INDEX, asdict(make_entry(record, offset, length)))


def fits_budget(folder: Path, record: KeptTree, megabytes: float, image_bytes: int = 0) -> bool:
    """Return True if the stream stays within `megabytes` with this tree and so many bytes of images."""
    path = folder / TREES
    size = path.stat().st_size if path.exists() else 0
    return size + len(json.dumps(record)) + image_bytes < megabytes * MEGABYTE


def read_entries(folder: Path) -> list[TreeEntry]:
    """Return the complete trees of a run, in the order in which they were kept; none if it keeps none."""
    path = folder / TREES
    if not path_exists(path):
        return []
    # The lines of the index, as far as they cover the stream without a gap.
    size, offset = jsonl.complete_length(path), 0
    entries: list[TreeEntry] = []
    for line in jsonl.records(folder / INDEX, IndexLine):
        entry = TreeEntry(**{name: line[name] for name in ENTRY_FIELDS} | {"roles": tuple(line["roles"])})
        if entry.offset != offset or entry.offset + entry.length > size:
            break
        entries.append(entry)
        offset += entry.length
    # The trees after these, read from the stream.
    for end, line in jsonl.records_with_offsets(path, offset, TreeLineHead):
        entries.append(make_entry(_validate(path, line), offset, end - offset))
        offset = end
    return entries


def read_tree(folder: Path, entry: TreeEntry) -> KeptTree:
    """Return the tree of an entry. Raises RunError if it is damaged."""
    path = folder / TREES
    with open_plain(path) as file:
        file.seek(entry.offset)
        text = file.read(entry.length)
    try:
        line: dict[str, Any] = parse_json(text)
        validate_record(line, TreeLineHead)
    except ValueError as error:
        raise damaged_file_error(path, f"the tree of step {entry.step} at byte {entry.offset}: {error}") from None
    return _validate(path, line)


def _validate(path: Path, line: Json) -> KeptTree:
    """Return the line if it is a consistent tree of this format. Raises RunError if it is not."""
    if line.get("version") != TREE_VERSION:
        raise RunError(
            f"{path.name}: got format {line.get('version', 1)!r}; expected {TREE_VERSION}. The run was made by another "
            "version of Cadre: read it with that."
        )
    try:
        validate_tree(line)
    except ValueError as error:
        raise damaged_file_error(path, f"a tree of step {line['step']}: {error}") from None
    return line


def make_entry(tree: KeptTree, offset: int, length: int) -> TreeEntry:
    """Return the entry of a tree whose line is at that offset."""
    # The reward of each episode that was rolled out to the end, from a walk with the reward above each node.
    rewards: list[float] = []
    wins, waiting = 0, [(0, 0.0)]
    while waiting:
        number, reward_above = waiting.pop()
        for branch in tree["nodes"][number]["branches"]:
            if not branch["carried"]:
                continue
            reward = reward_above + branch["reward"]["team"] + sum(branch["reward"]["local"].values())
            if branch["child"] is not None:
                waiting.append((branch["child"], reward))
            else:
                rewards.append(reward)
                wins += branch["success"]
    return TreeEntry(
        offset,
        length,
        step=tree["step"],
        tree=tree["tree"],
        task=tree["task"]["id"],
        decisions=len(tree["nodes"]),
        samples=sum(1 for _ in iterate_samples(tree)),
        episodes=len(rewards),
        wins=wins,
        reward=sum(rewards) / len(rewards) if rewards else 0.0,
        roles=tuple(dict.fromkeys(role for node in tree["nodes"] for role in node["samples"])),
    )


def truncate_trees(folder: Path, step: int) -> None:
    """Remove the trees of `step` and of later ones."""
    jsonl.truncate(folder / INDEX, lambda line: line["step"] >= step, IndexLine)
    jsonl.truncate(folder / TREES, lambda line: line["step"] >= step, TreeLineHead)


def rebuild_index(folder: Path) -> None:
    """Write the index of a stream whose lines have changed, or whose index was lost."""
    entries = read_entries(folder)
    (folder / INDEX).unlink(missing_ok=True)
    for entry in entries:
        jsonl.append(folder / INDEX, asdict(entry))


# Megabytes that the first steps may fill, whatever their part of the budget.
INITIAL_MEGABYTES = 16.0
COPIED_FILES = (TREES, INDEX, LEFT_OUT, VOCABULARY)


# ---- What is kept of a step


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
        count = self._trees(step, trees)
        write_annotations(self.folder, step, annotate_trees(trees[:count], batch, record.notes, self.credit))
        not_kept = not_kept_lines(len(trees), count, self.settings.trees_kept)
        for line in (*left_out_lines(record.sampled, batch, self.credit), *not_kept):
            jsonl.append(self.folder / LEFT_OUT, {"step": step, **line})

    def _trees(self, step: int, trees: Sequence[Tree]) -> int:
        """Write as many trees of a step as are to be kept; return their number."""
        megabytes = self.due(step)
        for number, tree in enumerate(trees[: self.settings.trees_kept]):
            written, media = tree_to_json(step, number, tree), tree_media(tree)
            if not fits_budget(self.folder, written, megabytes, self.media.size_with(media)):
                return number
            self.vocabulary.learn(self.folder, written)
            self.media.save(media)
            append_tree(self.folder, written)
        return min(len(trees), self.settings.trees_kept)

    def due(self, step: int) -> float:
        """Return the megabytes that trees may fill by the end of a step. The budget is spread over the steps, except
        for the first INITIAL_MEGABYTES, so that a long run is covered to its end. Equal runs keep equal trees."""
        budget = self.settings.trees_megabytes
        return min(budget, max(INITIAL_MEGABYTES, budget * (step + 1) / self.settings.steps))


def forget_steps(folder: Path, step: int) -> None:
    """Remove what was written of `step` and of later ones. The spelling of a model's tokens stays valid."""
    truncate_trees(folder, step)
    truncate_annotations(folder, step)
    jsonl.truncate(folder / LEFT_OUT, lambda line: line["step"] >= step, LeftOutLine)


def copy_steps(folder: Path, into: Path, step: int) -> None:
    """Copy what was kept of the steps before `step` from one run to another, as the first wrote it."""
    for name in FORMATS:
        require_no_link(folder / name)
    streams = [*folder.glob("*.jsonl"), *annotation_files(folder)]
    for path in streams:
        if path.name in COPIED_FILES or path.parent.name == ANNOTATIONS:
            target = into / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            copy_plain(path, target)
    for path in media_files(folder):
        target = into / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        copy_plain(path, target)
    forget_steps(into, step)


# ---- Reading the trees of a run


def find_tree(folder: Path, step: int, number: int = 0) -> KeptTree:
    """Return the tree with this number, from 0, that was kept of a step, from 1. Raises RunError if there is none."""
    if not (folder / TREES).is_file():
        raise RunError(f"play: {folder} holds no trees.jsonl; expected the folder of a run that has made a step.")
    entries = read_entries(folder)
    step_entries = [entry for entry in entries if entry.step == step - 1]
    if number < len(step_entries):
        return read_tree(folder, step_entries[number])
    steps = [entry.step + 1 for entry in entries]
    if not steps:
        raise RunError(f"play: {folder} has kept no tree; expected train.trees_kept of 1 or more. Train with that.")
    if not step_entries:
        raise RunError(
            f"play --step: got {step}; expected a step of {folder}, {min(steps)} to {max(steps)}. Name one of those."
        )
    raise RunError(
        f"play --task: got {number}; expected 0 to {len(step_entries) - 1}, as step {step} has kept "
        f"{len(step_entries)}. Name one of those, or train with a larger train.trees_kept."
    )


def read_all_trees(folder: Path) -> Iterator[KeptTree]:
    """Yield every tree of a run, in the order in which they were kept; nothing if it kept none."""
    return (read_tree(folder, entry) for entry in read_entries(folder))
