"""HTML and short texts for the cells of a notebook. Whatever a model or a file wrote is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cadre.types import Branch, Node, Tree

MAX_REPR = 400
# Decisions of a tree that are shown; a cell with more is slow to open.
MAX_DECISIONS = 200
# By node, role and index of a sample: its tokens as text, and an advantage for each; none if they were not kept.
TokenTexts = Mapping[tuple[int, str, int], tuple[Sequence[str], Sequence[float]]]


def shorten(text: str) -> str:
    """Return the text of a `__repr__`, of at most MAX_REPR characters."""
    return text if len(text) <= MAX_REPR else f"{text[: MAX_REPR - 4]}...)"


def table_html(rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return a table whose first row is its head."""
    tagged = zip(rows, ["th", *["td"] * (len(rows) - 1)], strict=True)
    head, *body = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for row, tag in tagged]
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody><tr>{'</tr><tr>'.join(body)}</tr></tbody></table>"


def tree_html(tree: Tree, title: str, tokens: TokenTexts | None = None) -> str:
    """Return a tree whose decisions and samples open on a click. Tokens are green where their advantage is positive and
    red where it is negative, the stronger the larger it is in this tree."""
    texts = tokens or {}
    largest = max((abs(a) for _, advantages in texts.values() for a in advantages), default=0.0) or 1.0
    # Each decision closes after those that follow it; the stack replaces recursion, as trees may be deep.
    lines, number = [f"<details open><summary>{escape(title)}</summary>"], 0
    waiting: list[Node | str] = [tree.root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            lines.append(node)
            continue
        if number < MAX_DECISIONS:
            waiting.append("</div></details>")
            head = f"decision {number + 1}: {', '.join(node.samples)}"
            style = 'style="margin-left: 1.5em"'
            lines.append(f"<details {'' if number else 'open'} {style}><summary>{escape(head)}</summary><div>")
            lines += _node_lines(node, number, texts, largest)
        elif number == MAX_DECISIONS:
            lines.append(f"<p>The first {MAX_DECISIONS} decisions; cadre view shows all.</p>")
        number += 1
        waiting.extend(branch.child for branch in reversed(node.branches) if branch.child is not None)
    return "\n".join([*lines, "</details>"])


def _node_lines(node: Node, number: int, texts: TokenTexts, largest: float) -> list[str]:
    lines = []
    for role, samples in node.samples.items():
        if role in node.observations:
            prompt = "\n".join(f"{m.role}: {m.content}" for m in node.observations[role].messages)
            lines.append(f"<details><summary>prompt of {escape(role)}</summary>{_pre(escape(prompt))}</details>")
        for index, sample in enumerate(samples):
            branches = [branch for branch in node.branches if branch.choice.get(role) == index]
            words, advantages = texts.get((number, role, index), ((), ()))
            if words and advantages:
                # One advantage may be that of all tokens.
                by_token = advantages if len(advantages) == len(words) else [advantages[0]] * len(words)
                text = "".join(_coloured(word, value / largest) for word, value in zip(words, by_token, strict=True))
            else:
                text = escape(sample.text)
            head = f"{role} #{index}{_outcome(role, branches)}"
            if advantages:
                head += f", advantage {sum(advantages) / len(advantages):+.2f}"
            lines.append(
                f"<details><summary>{escape(head)}: {escape(sample.text[:60])}</summary>{_pre(text)}</details>"
            )
    return lines


def _outcome(role: str, branches: Sequence[Branch]) -> str:
    """Return what the branches of a sample came to: its mean reward, and whether it was selected or solved the task."""
    if not branches:
        return ""
    rewards = [branch.reward.team + branch.reward.local.get(role, 0.0) for branch in branches]
    selected = ", selected" if any(branch.selected for branch in branches) else ""
    solved = ", solved" if any(branch.success for branch in branches) else ""
    return f" reward {sum(rewards) / len(rewards):+.2f}{selected}{solved}"


def _coloured(word: str, strength: float) -> str:
    rgb = "0, 150, 0" if strength > 0 else "200, 0, 0"
    return f'<span style="background: rgba({rgb}, {min(1.0, abs(strength)) * 0.5:.2f})">{escape(word)}</span>'


def _pre(inner: str) -> str:
    return f'<pre style="white-space: pre-wrap; margin-left: 1.5em">{inner}</pre>'
