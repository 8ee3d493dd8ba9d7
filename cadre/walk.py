"""Reading trees: the paths from root to leaf, and what an evaluation asks of them."""

from __future__ import annotations

from collections.abc import Iterator

from cadre.types import Branch, Node, Sample

Path = tuple[tuple[Node, Branch], ...]


def nodes(root: Node) -> Iterator[Node]:
    """Every decision point, parents first."""
    yield root
    for branch in root.branches:
        if branch.child is not None:
            yield from nodes(branch.child)


def samples(root: Node) -> Iterator[Sample]:
    """Every completion in the tree, once."""
    for node in nodes(root):
        for siblings in node.samples.values():
            yield from siblings


def episodes(root: Node) -> Iterator[Path]:
    """The paths that were played to the end; branches that the shape left behind are not episodes."""
    for branch in root.branches:
        if branch.child is not None:
            for rest in episodes(branch.child):
                yield ((root, branch), *rest)
        elif branch.carried:
            yield ((root, branch),)
