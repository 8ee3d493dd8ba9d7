"""Reading trees: every sample where it stands, and the paths from root to leaf that an evaluation asks about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cadre.types import Branch, Node, Sample, SamplePosition, Tree

# The decisions that lead to a place, each with the branch that was taken.
Path = tuple[tuple[Node, Branch], ...]


@dataclass(frozen=True)
class TreeSample:
    """One sample where it stands: sibling `index` of `role` at `node`.

    `tree` numbers its tree in the batch. `above` leads from the root to `node`; `path` are the numbers of the branches
    on it.
    """

    tree: int
    above: Path
    path: tuple[int, ...]
    node: Node
    role: str
    index: int

    @property
    def sample(self) -> Sample:
        return self.node.samples[self.role][self.index]

    @property
    def position(self) -> SamplePosition:
        """What tells it apart from all others of the batch."""
        return self.tree, self.path, self.role, self.index

    @property
    def branches(self) -> list[Branch]:
        """The branches whose joint action holds the sample."""
        return [self.node.branches[number] for number in self.numbers]

    @property
    def numbers(self) -> list[int]:
        """Which of the decision's branches those are."""
        return [number for number, branch in enumerate(self.node.branches) if branch.choice[self.role] == self.index]


def decisions(trees: Sequence[Tree]) -> Iterator[TreeSample]:
    """Every sample of the trees where it stands, parents before their children."""
    for number, tree in enumerate(trees):
        yield from _decisions(number, tree.root, (), ())


def _decisions(tree: int, node: Node, above: Path, path: tuple[int, ...]) -> Iterator[TreeSample]:
    for role, siblings in node.samples.items():
        for index in range(len(siblings)):
            yield TreeSample(tree, above, path, node, role, index)
    for number, branch in enumerate(node.branches):
        if branch.child is not None:
            yield from _decisions(tree, branch.child, (*above, (node, branch)), (*path, number))


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
        if not branch.selected:
            continue
        if branch.child is None:
            yield ((root, branch),)
        else:
            yield from (((root, branch), *rest) for rest in episodes(branch.child))
