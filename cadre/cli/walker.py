"""Walking through kept trees with keys: where one stands, what a key does, and what is shown of that place.

It knows trees as the page is told of them (`cadre.view.reading`) and nothing of terminals but how wide and high one is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.text import Text

from cadre.cli.terminal import visible
from cadre.view.reading import RunReader

# What terminals send for a key, both ways that arrows are sent.
KEYS = {
    **{f"\x1b{kind}{letter}": name for kind in "[O" for letter, name in zip("ABCD", ("k", "j", "l", "h"), strict=True)},
    "\x1b[5~": "b",
    "\x1b[6~": " ",
    "\r": "l",
    "\x7f": "h",
    "\x03": "q",
    "\x1b": "q",
}
HELP = "up down: siblings   right left: on, back   space b: text   p: prompt   ] [: trees   q: quit"
PROMPT, ANSWER = "prompt", "answer"


@dataclass(frozen=True)
class Spot:
    """A sibling of a decision; `line` is the first line of its text that is shown."""

    node: int
    role: str
    index: int
    view: str = ANSWER
    line: int = 0


class Walker:
    """One walk through the kept trees of a run, from the tree with this number in the order in which they were kept."""

    def __init__(self, run: RunReader, number: int) -> None:
        self._run, self._count = run, len(run.entries(0)["rows"])
        self._alpha = float(run.about()["alpha"])
        self._enter(number)

    def _enter(self, number: int) -> None:
        self.number, self.tree = number, self._run.tree(number)
        self.trail: list[Spot] = []
        self.spot = self._first(0)

    def press(self, key: str) -> bool:
        """Do what a key asks for; whether the walk goes on."""
        key = KEYS.get(key, key)
        if key in "jk":
            self._sibling(1 if key == "j" else -1)
        elif key == "l":
            self._on()
        elif key == "h" and self.trail:
            self.spot = self.trail.pop()
        elif key in " b":
            self.spot = replace(self.spot, line=max(0, self.spot.line + (10 if key == " " else -10)))
        elif key == "p":
            self.spot = replace(self.spot, view=ANSWER if self.spot.view == PROMPT else PROMPT, line=0)
        elif key in "[]" and 0 <= (number := self.number + (1 if key == "]" else -1)) < self._count:
            self._enter(number)
        return key != "q"

    def _first(self, node: int) -> Spot:
        """The sibling of a decision that is looked at first: one that the tree went on from."""
        told = self.tree["nodes"][node]
        branches = told["branches"]
        branch = next((branch for branch in branches if branch["carried"]), branches[0] if branches else None)
        role = next(iter(told["samples"]))
        return Spot(node, role, branch["choice"][role] if branch else 0)

    def _sibling(self, by: int) -> None:
        siblings = list(self._siblings())
        here = siblings.index((self.spot.role, self.spot.index))
        role, index = siblings[min(len(siblings) - 1, max(0, here + by))]
        self.spot = replace(self.spot, role=role, index=index, line=0)

    def _siblings(self) -> Iterator[tuple[str, int]]:
        for role, drawn in self.tree["nodes"][self.spot.node]["samples"].items():
            yield from ((role, index) for index in range(len(drawn)))

    def _on(self) -> None:
        """To the decision that followed, if one did: after the branch that went on, where a sibling has several."""
        branches = sorted(self._branches(self.spot.role, self.spot.index), key=lambda branch: not branch["carried"])
        child = next((branch["child"] for branch in branches if branch["child"] is not None), None)
        if child is not None:
            self.trail.append(self.spot)
            self.spot = self._first(child)

    def _branches(self, role: str, index: int) -> list[Mapping[str, Any]]:
        node = self.tree["nodes"][self.spot.node]
        return [branch for branch in node["branches"] if branch["choice"].get(role) == index]

    def shown(self, width: int, height: int) -> list[Text]:
        """The lines of the screen, at most `height` of them, none longer than `width`."""
        siblings = [self._row(role, index) for role, index in self._siblings()]
        here = list(self._siblings()).index((self.spot.role, self.spot.index))
        room = max(3, (height - 6) // 2)
        first = max(0, min(here - room // 2, len(siblings) - room))
        head = [Text(line, "bold" if number == 0 else "dim") for number, line in enumerate(self._head())]
        rows = siblings[first : first + room]
        text = self._text(width, height - len(head) - len(rows) - 2)
        lines = [*head, *rows, Text("─" * width, "dim"), *text]
        lines += [Text("")] * (height - 1 - len(lines))
        for line in [*lines, foot := Text(HELP, "dim")]:
            line.truncate(width, overflow="ellipsis")
        return [*lines[: height - 1], foot]

    def _head(self) -> tuple[str, str]:
        tree, depth = self.tree, len(self.trail)
        way = " > ".join(f"{spot.role} #{spot.index + 1}" for spot in self.trail) or "the first decision"
        return (
            visible(
                f"step {tree['step'] + 1}, task {tree['task']['id']}: decision {depth + 1} of this path, "
                f"{len(tree['nodes'])} in the tree; tree {self.number + 1} of {self._count}"
            ),
            f"after {way}" if depth else way,
        )

    def _row(self, role: str, index: int) -> Text:
        """A sibling in a line: what it was paid, what it is worth, what became of it, how it begins."""
        sample = self.tree["nodes"][self.spot.node]["samples"][role][index]
        branches = self._branches(role, index)
        paid = [
            self._alpha * branch["reward"]["team"] + branch["reward"]["local"].get(role, 0.0) for branch in branches
        ]
        pay = f"pay {sum(paid) / len(paid):+.2f}" if paid else "not paid"
        credit = sample["said"].get("credit")
        worth = f"  adv {credit['advantage']:+.2f}" if credit else ""
        chosen = (role, index) == (self.spot.role, self.spot.index)
        carried = any(branch["carried"] for branch in branches)
        line = f"{'>' if carried else ' '} {role} #{index + 1}  {pay}{worth}{_end(branches)}  "
        return Text(
            visible(line + " ".join(sample["text"].split())), "reverse" if chosen else "bold" if carried else ""
        )

    def _text(self, width: int, height: int) -> list[Text]:
        """What is to be read of the sibling, from the line where the reader is; what is above and below is counted."""
        wrapped = [part for line in self._whole().split("\n") for part in _wrapped(line, width)]
        first = min(self.spot.line, max(0, len(wrapped) - height + 1))
        self.spot = replace(self.spot, line=first)
        left = len(wrapped) - first - (height - 1)
        above = f"{first} lines above" if first else ""
        below = f"{left} lines below" if left > 0 else ""
        title = ", ".join(filter(None, [f"{self.spot.role}: {self.spot.view}", above, below]))
        return [Text(title, "dim"), *(Text(line) for line in wrapped[first : first + height - 1])]

    def _whole(self) -> str:
        node, spot = self.tree["nodes"][self.spot.node], self.spot
        if spot.view == ANSWER:
            return visible(node["samples"][spot.role][spot.index]["text"])
        messages = node["observations"][spot.role]["messages"]
        return "\n\n".join(visible(f"{message['role']}:\n{message['content']}") for message in messages)


def _wrapped(line: str, width: int) -> list[str]:
    """A line in pieces that fit, also where its letters are two columns wide."""
    if cell_len(line) > len(line):
        return chop_cells(line, width)
    return textwrap.wrap(line, width, replace_whitespace=False, drop_whitespace=False) or [""]


def _end(branches: list[Mapping[str, Any]]) -> str:
    if any(branch["success"] for branch in branches):
        return "  solved"
    return "  over" if any(branch["over"] for branch in branches) else ""
