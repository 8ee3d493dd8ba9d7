"""Walk trees: every sample with its position, and the paths from root to leaf that an evaluation counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cadre.types import Branch, Node, Sample, SamplePosition, Tree

# Decisions from the root on, each with the branch that was taken.
TreePath = tuple[tuple[Node, Branch], ...]
# Frames of Python's stack below and in a function on trees: a mean of a generator takes five a decision.
BASE_FRAMES, FRAMES_PER_DECISION = 1_000, 6


@dataclass(frozen=True)
class TreeSample:
    """One sample and its position: completion `index` of `role` at `node`. `tree` is the number of its tree in the
    batch. `above` leads from the root to `node`; `path` are the indices of the branches on it."""

    tree: int
    above: TreePath
    path: tuple[int, ...]
    node: Node
    role: str
    index: int

    @property
    def sample(self) -> Sample:
        return self.node.samples[self.role][self.index]

    @property
    def position(self) -> SamplePosition:
        """Return the position, unique in the batch."""
        return self.tree, self.path, self.role, self.index

    @property
    def branches(self) -> list[Branch]:
        """Return the branches whose joint action contains the sample."""
        return [self.node.branches[number] for number in self.numbers]

    @property
    def numbers(self) -> list[int]:
        """Return the indices of these branches among those of the decision."""
        return [number for number, branch in enumerate(self.node.branches) if branch.choice[self.role] == self.index]


def allow_depth(decisions: int) -> None:
    """Raise Python's recursion limit for functions on trees of this depth, which call themselves once a decision."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), BASE_FRAMES + FRAMES_PER_DECISION * decisions))


def tree_samples(trees: Sequence[Tree]) -> Iterator[TreeSample]:
    """Yield every sample of the trees with its position, parents before their children."""

    def below(tree: int, node: Node, above: TreePath, path: tuple[int, ...]) -> Iterator[TreeSample]:
        for role, siblings in node.samples.items():
            for index in range(len(siblings)):
                yield TreeSample(tree, above, path, node, role, index)
        for number, branch in enumerate(node.branches):
            if branch.child is not None:
                yield from below(tree, branch.child, (*above, (node, branch)), (*path, number))

    for number, tree in enumerate(trees):
        yield from below(number, tree.root, (), ())


def nodes(root: Node) -> Iterator[Node]:
    """Yield every decision, parents first. A tree may be of any depth."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(branch.child for branch in reversed(node.branches) if branch.child is not None)


def samples(root: Node) -> Iterator[Sample]:
    """Yield every completion in the tree once."""
    for node in nodes(root):
        for siblings in node.samples.values():
            yield from siblings


def episodes(root: Node) -> Iterator[TreePath]:
    """Yield the paths that were played to the end; branches that were not selected are not episodes."""
    for branch in root.branches:
        if not branch.selected:
            continue
        if branch.child is None:
            yield ((root, branch),)
        else:
            yield from (((root, branch), *rest) for rest in episodes(branch.child))
