"""A kept tree as lines of text: at every decision what each role saw, and the siblings with what they were paid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cadre.cli.terminal import WIDTH, visible
from cadre.runs.kept_trees import KeptTree

INDENT = 2
# The lines of a prompt that are shown, its last ones: that is where it says what is asked for.
SEEN_LINES = 6


def lines(tree: KeptTree) -> Iterator[str]:
    """The whole tree. `>` marks the branches that sampling went on from."""
    yield visible(f"step {tree['step'] + 1}, task {tree['task']['id']}; > marks what sampling went on from")
    yield from _node(tree, 0, 0)


def _node(tree: KeptTree, number: int, depth: int) -> Iterator[str]:
    node = tree["nodes"][number]
    for role, observation in node["observations"].items():
        yield ""
        yield _clipped(f"{role} sees", depth)
        last = observation["messages"][-1]["content"] if observation["messages"] else ""
        for line in last.rstrip().split("\n")[-SEEN_LINES:]:
            yield _clipped(f"| {line}", depth + 1)
    for branch in node["branches"]:
        yield from _branch(node, branch, depth)
    for branch in node["branches"]:
        if branch["child"] is not None:
            yield ""
            yield _clipped(f"after {_named(branch['choice'])}:", depth + 1)
            yield from _node(tree, branch["child"], depth + 1)


def _branch(node: Mapping[str, Any], branch: Mapping[str, Any], depth: int) -> Iterator[str]:
    """A line for each role of a joint action, the reward on the first."""
    failed = (branch.get("failure") or {}).get("reason")
    ended = (
        f", failed ({failed})" if failed else ", solved" if branch["success"] else ", over" if branch["over"] else ""
    )
    head = f"{'>' if branch['carried'] else ' '} {_paid(branch['reward'])}{ended}"
    several = len(branch["choice"]) > 1
    for role, sibling in branch["choice"].items():
        text = " ".join(node["samples"][role][sibling]["text"].split())
        yield _clipped(f"{head}  {f'{role} ' if several else ''}#{sibling}: {text}", depth)
        head = " " * len(head)
    if failed:
        yield _clipped(f"{head}  {' '.join(str(branch['failure'].get('error', '')).split())}", depth)


def _paid(reward: Mapping[str, Any]) -> str:
    """`team +1.00, tool -0.10`, without what is 0; `+0.00` where nothing was paid."""
    rewards = {"team": reward["team"], **reward["local"]}
    return ", ".join(f"{name} {number:+.2f}" for name, number in rewards.items() if number) or "+0.00"


def _named(choice: Mapping[str, int]) -> str:
    return ", ".join(f"{role} #{sibling}" for role, sibling in choice.items())


def _clipped(text: str, depth: int) -> str:
    line = " " * (INDENT * depth) + visible(text)
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
