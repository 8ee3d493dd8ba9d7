"""The JSON form of trees, derived from `cadre.types`, and the images and sounds that they name (docs/view.md).

It has the fields of the records, except that

- the nodes of a tree are one flat list in the order of `walk.nodes`, and a branch has the number of its child;
- the ids of a prompt are at the node, by role, and at a sample only where its own differ;
- a field that has its default is left out;
- the bytes of images and sounds are in files of their own, named by digest;
- a number that is not finite has a name, as JSON has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from cadre.errors import RunError
from cadre.files import (
    OpenRecord,
    explain_disk_errors,
    open_plain,
    path_exists,
    sync_to_disk,
    type_adapter,
    validate_record,
    validation_message,
)
from cadre.rollout import walk
from cadre.types import Media, Node, Sample, Sound, Task, Tree, media_of

Json = dict[str, Any]
NOT_FINITE = "number that is not finite"
DIGEST = re.compile(r"[0-9a-f]{64}")


# ---- Writing


def encode(record: Any, defaults: bool = False) -> Any:
    """Return the JSON form of a tree, or of a record that holds trees; with `defaults` no field is left out."""
    numbers: dict[int, int] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, Tree):
            nodes = list(walk.nodes(value.root))
            numbers.update((id(node), number) for number, node in enumerate(nodes))
            return {"task": convert(value.task), "nodes": [convert_node(node) for node in nodes]}
        if isinstance(value, Node):
            return numbers[id(value)]
        if is_dataclass(value):
            return convert_fields(value)
        if isinstance(value, Mapping):
            return {key: convert(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return list(value) if _is_plain(value) else [convert(inner) for inner in value]
        if isinstance(value, float) and not math.isfinite(value):
            return {NOT_FINITE: repr(float(value))}
        return value

    def convert_fields(value: Any) -> Json:
        field_defaults: Mapping[str, Any] = _defaults(type(value))  # type: ignore[arg-type]  # mypy 11469
        return {
            name: convert(inner)
            for name, default in field_defaults.items()
            if not isinstance(inner := getattr(value, name), bytes) and (defaults or inner != default)
        }

    def convert_node(node: Node) -> Json:
        converted = convert_fields(node)
        converted["prompts"] = {}
        for role, siblings in converted["samples"].items():
            prompt = converted["prompts"][role] = siblings[0]["prompt_ids"] if siblings else []
            for sample in siblings:
                if sample["prompt_ids"] == prompt:
                    del sample["prompt_ids"]
        return converted

    return convert(record)


@cache
def _defaults(record: type) -> Mapping[str, Any]:
    """Return the default of every field of a dataclass, or MISSING."""
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(record)
    }


def _is_plain(values: Collection[Any]) -> bool:
    """Return True for numbers and texts that JSON has as they are: long lists of them need not be walked."""
    types = set(map(type, values))
    return types <= {int, str, bool} or (types == {float} and all(map(math.isfinite, values)))


# ---- Reading


class StoredNode(OpenRecord):
    """A node as it is written, as far as it differs from `Node`."""

    prompts: dict[str, list[int]] = {}
    samples: dict[str, list[Json]]
    branches: list[Json]


class StoredTree(OpenRecord):
    task: Json
    nodes: list[StoredNode] = Field(min_length=1)


def decode_tree(value: Any) -> Tree:
    """Return a tree from its JSON form; its images and sounds are without their bytes (`load_media`). Raises ValueError
    with a message of one line for a tree that does not fit the types or contradicts itself: a branch that chooses what
    is not there or leads back, or a node that is reached twice or never."""
    stored = validate_record(restore_numbers(value), StoredTree)
    nodes: list[Any] = [None] * len(stored.nodes)
    # From the last to the first, so that each child is there before its parent.
    for number in reversed(range(len(nodes))):
        record = stored.nodes[number]
        for branch in record.branches:
            if (child := branch.get("child")) is not None:
                if type(child) is not int or not number < child < len(nodes):
                    raise ValueError(f"nodes.{number}.branches: leads to {child!r}, no decision below it")
                branch["child"] = nodes[child]
        for role, prompt in record.prompts.items():
            for sample in record.samples.get(role, ()):
                sample.setdefault("prompt_ids", prompt)
        values = {**(record.model_extra or {}), "samples": record.samples, "branches": record.branches}
        node = nodes[number] = _validate(Node, values, f"nodes.{number}")
        if not node.samples or node.samples.keys() - node.observations.keys():
            raise ValueError(f"nodes.{number}.samples: not of the roles of observations")
        for branch in node.branches:
            for role, index in branch.choice.items():
                if not 0 <= index < len(node.samples.get(role, ())):
                    raise ValueError(f"nodes.{number}.branches: chooses {role!r} number {index}, which is not there")
    tree = Tree(_validate(Task, stored.task, "task"), nodes[0])
    # Each node once, in the order of a walk, which ends therefore.
    for number, (walked, node) in enumerate(zip_longest(walk.nodes(tree.root), nodes)):
        if walked is not node:
            raise ValueError(f"nodes.{number}: not in the order of a walk in which each decision is reached once")
    for medium in iterate_media(tree):
        if not DIGEST.fullmatch(medium.digest):
            raise ValueError(f"images and sounds: got the digest {medium.digest[:80]!r}, expected a SHA-256")
    return tree


def _validate(record: type, value: Any, where: str) -> Any:
    try:
        return type_adapter(record).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{where}.{validation_message(error)}") from None


def restore_numbers(value: Any) -> Any:
    """Return JSON values with the numbers that are not finite in place of their names."""
    if isinstance(value, dict):
        if value.keys() == {NOT_FINITE} and value[NOT_FINITE] in ("nan", "inf", "-inf"):
            return float(value[NOT_FINITE])
        return {key: restore_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list) and not _is_plain(value):
        return [restore_numbers(inner) for inner in value]
    return value


def iterate_samples(tree: Tree) -> Iterator[tuple[int, Node, str, int, Sample]]:
    """Yield (number of the node, node, role, index among its siblings, sample) of every sample."""
    for number, node in enumerate(walk.nodes(tree.root)):
        for role, siblings in node.samples.items():
            for index, sample in enumerate(siblings):
                yield number, node, role, index, sample


def iterate_media(tree: Tree) -> Iterator[Media]:
    """Yield every image and sound of a tree, as often as it occurs."""
    for node in walk.nodes(tree.root):
        for observation in node.observations.values():
            yield from media_of(observation.messages)
        for siblings in node.samples.values():
            for sample in siblings:
                yield from sample.images


# ---- Images and sounds: `pictures/DIGEST.png` and `sounds/DIGEST.wav`, each once, however often it was observed
#
# Files are named by their content, so none is ever rewritten, and one that nothing names any more does no harm.

IMAGES, SOUNDS = "pictures", "sounds"
# By folder the ending of its files, and the bytes with which each begins.
FORMATS = {IMAGES: (".png", b"\x89PNG\r\n\x1a\n"), SOUNDS: (".wav", b"RIFF")}


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
        expected = "expected the digest of one that its trees show. Restore the folder from a copy."
        raise RunError(f"{name}: {folder} holds none that is called {digest[:80]!r}; {expected}")
    with open_plain(path, folder) as file:
        data = file.read()
    if not data.startswith(start):
        raise RunError(f"{name}: {path} is no {ending[1:].upper()} file; expected one. Restore it from a copy.")
    return data


def load_media(tree: Tree, folder: Path) -> None:
    """Put the bytes of its images and sounds into a tree that `decode_tree` made. Raises RunError if one is missing."""
    for medium in iterate_media(tree):
        name, field = (SOUNDS, "wav") if isinstance(medium, Sound) else (IMAGES, "png")
        object.__setattr__(medium, field, read_medium(folder, medium.digest, name))  # the record is nobody else's yet


@dataclass
class MediaStore:
    """The images and sounds of a folder and their total size.

    Owned by the writer of the folder, for as long as it writes.
    """

    folder: Path

    def save(self, media: Collection[Media]) -> None:
        """Write those that do not exist yet. Raises RunError if the disk refuses."""
        save_media(self.folder, media)
        self._sizes.update((medium.digest, len(medium_bytes(medium))) for medium in media)

    def size_with(self, media: Collection[Media]) -> int:
        """Return the bytes of all of them, with these among them."""
        return sum({**self._sizes, **{medium.digest: len(medium_bytes(medium)) for medium in media}}.values())

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {path.stem: path.stat().st_size for path in media_files(self.folder)}
