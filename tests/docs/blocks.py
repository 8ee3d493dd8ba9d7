"""The blocks of the documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block; `number` counts those of its page from 0."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def blocks(language: str) -> list[Block]:
    """All blocks of a language, "" for those that name none, in the order of the pages."""
    return [block for page in PAGES for block in blocks_of(page) if block.language == language]


def blocks_of(page: Path) -> Iterator[Block]:
    name = str(page.relative_to(ROOT))
    for number, (indent, language, text) in enumerate(FENCED.findall(page.read_text(encoding="utf-8"))):
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        yield Block(name, number, language, "\n".join(lines) + "\n")


def commands(block: Block) -> list[list[str]]:
    """The words of every `cadre` command of a block, without what explains it."""
    told = []
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        # Explanations stand two spaces or more behind the command, or behind a #.
        words = re.split(r" {2,}| # ", re.sub(r"^\$ ", "", line.strip()))[0]
        if command := re.match(r"(?:\S*/|ray job submit .* )?(cadre .*)", words):
            told.append(shlex.split(command[1])[1:])
    return told
