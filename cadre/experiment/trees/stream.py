"""`trees.jsonl`, a stream that is only appended to, and `trees.index.jsonl`, which says where in it each tree stands.

Both are readable while a run writes them. The index can always be made anew: where it was lost, or a crash came between
the tree and its line, what is missing is read from the stream itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cadre.experiment import jsonl
from cadre.experiment.records import IndexLine, TreeHead, check_tree, checked, damaged, exists, loads, open_plain
from cadre.experiment.trees.format import KeptTree, samples, upgraded

TREES, INDEX = "trees.jsonl", "trees.index.jsonl"
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Entry:
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


FIELDS = tuple(Entry.__dataclass_fields__)


def append(folder: Path, record: KeptTree) -> None:
    """Write a tree behind the last whole one, then its line of the index."""
    offset = jsonl.append(folder / TREES, record)
    length = (folder / TREES).stat().st_size - offset
    jsonl.append(folder / INDEX, asdict(entry_of(record, offset, length)))


def fits(folder: Path, record: KeptTree, most: float, beside: int = 0) -> bool:
    """Whether the stream would stay within `most` megabytes with this tree and so many bytes beside it."""
    path = folder / TREES
    size = path.stat().st_size if path.exists() else 0
    return size + len(json.dumps(record)) + beside < most * MEGABYTE


def entries(folder: Path) -> list[Entry]:
    """The whole trees of a run, in the order in which they were kept; none where it keeps none."""
    path = folder / TREES
    if not exists(path):
        return []
    known, end = _indexed(folder, jsonl.whole_length(path))
    return [*known, *_unindexed(path, end, known)]


def _indexed(folder: Path, size: int) -> tuple[list[Entry], int]:
    """The lines of the index that fit the stream, and the byte up to which they tell of it."""
    known: list[Entry] = []
    end = 0
    for line in jsonl.records(folder / INDEX, IndexLine):
        entry = Entry(**{name: line[name] for name in FIELDS} | {"roles": tuple(line["roles"])})
        if entry.offset != end or entry.offset + entry.length > size:
            break
        known.append(entry)
        end += entry.length
    return known, end


def _unindexed(path: Path, offset: int, before: list[Entry]) -> Iterator[Entry]:
    """Entries of the trees from a byte on, which the index does not have."""
    made: dict[int, int] = {}
    for entry in before:
        made[entry.step] = made.get(entry.step, 0) + 1
    for end, line in jsonl.numbered(path, offset, TreeHead):
        number = made.get(line["step"], 0)
        made[line["step"]] = number + 1
        yield entry_of(_checked(path, line, number), offset, end - offset)
        offset = end


def read(folder: Path, entry: Entry) -> KeptTree:
    """The tree that an entry stands for. Raises RunError where it is damaged."""
    path = folder / TREES
    with open_plain(path) as file:
        file.seek(entry.offset)
        text = file.read(entry.length)
    try:
        line: dict[str, Any] = loads(text)
        checked(line, TreeHead)
    except ValueError as error:
        raise damaged(path, f"the tree of step {entry.step} at byte {entry.offset}: {error}") from None
    return _checked(path, line, entry.tree)


def _checked(path: Path, line: dict[str, Any], number: int) -> KeptTree:
    """A line in the present format, which holds together."""
    try:
        tree = upgraded(line, number)
        check_tree(tree)
    except ValueError as error:
        raise damaged(path, f"a tree of step {line['step']}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise damaged(path, f"a tree of step {line['step']} is of no known format") from None
    return tree


def entry_of(tree: KeptTree, offset: int, length: int) -> Entry:
    """The entry of a tree whose line stands there."""
    paid, wins = _episodes(tree)
    return Entry(
        offset,
        length,
        step=tree["step"],
        tree=tree["tree"],
        task=tree["task"]["id"],
        decisions=len(tree["nodes"]),
        samples=sum(1 for _ in samples(tree)),
        episodes=len(paid),
        wins=wins,
        reward=sum(paid) / len(paid) if paid else 0.0,
        roles=tuple(dict.fromkeys(role for node in tree["nodes"] for role in node["samples"])),
    )


def _episodes(tree: KeptTree) -> tuple[list[float], int]:
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


def cut(folder: Path, step: int) -> None:
    """Forget the trees of `step` and of later ones."""
    jsonl.cut(folder / INDEX, lambda line: line["step"] >= step, IndexLine)
    jsonl.cut(folder / TREES, lambda line: line["step"] >= step, TreeHead)


def index_anew(folder: Path) -> None:
    """Write the index of a stream whose lines have changed, or that has lost it."""
    found = entries(folder)
    (folder / INDEX).unlink(missing_ok=True)
    for entry in found:
        jsonl.append(folder / INDEX, asdict(entry))
