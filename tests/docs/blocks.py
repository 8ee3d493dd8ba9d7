"""The blocks of the documentation, and the commands in them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Further files with commands for a reader.
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".yaml"))
COMMAND_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *EXAMPLES]
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
    """Return the blocks of a language, "" for those that name none, in the order of the pages."""
    return [block for page in PAGES for block in blocks_of(page) if block.language == language]


def blocks_of(page: Path) -> Iterator[Block]:
    name = str(page.relative_to(ROOT))
    for number, (indent, language, text) in enumerate(FENCED.findall(page.read_text(encoding="utf-8"))):
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        yield Block(name, number, language, "\n".join(lines) + "\n")


@dataclass(frozen=True)
class Command:
    """A command on a page: its text, its words from the program on, and if it stands in a sentence (`inline`)."""

    page: str
    text: str
    words: tuple[str, ...]
    inline: bool = False

    @staticmethod
    def parse(page: str, text: str, inline: bool = False) -> Command:
        return Command(page, text, split_command(text), inline)


# What may stand before a command: variables, folders, a job's or a container's launcher.
BEFORE = r"(?:[A-Z_]+=\S+ |ray job submit .* -- |systemd-run .* )*(?:\S*bin/)?"
PROGRAM = re.compile(rf"{BEFORE}(cadre|python3?|make|pip|pytest)(?: (.*))?$")


def split_command(text: str) -> tuple[str, ...]:
    """Return the words of a command from its program on; none if it is of no program of ours. Job scripts take the
    arguments of `cadre train`."""
    match = PROGRAM.match(re.sub(r"^sbatch \S+\.sbatch ", "cadre train ", text))
    return (match[1].replace("python3", "python"), *shlex.split(match[2] or "")) if match else ()


def commands_of(page: Path) -> Iterator[Command]:
    """Yield the commands in the blocks and the sentences of a page, or in the explanation of an example."""
    name, text = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    if page.suffix != ".md":
        yield from commands_of_example(name, text)
        return
    for block in blocks_of(page):
        if block.language in ("", "bash"):
            for line in re.sub(r"\s*\\\n\s*", " ", block.text).splitlines():
                # Explanations stand two spaces or more behind the command, or behind a #.
                command = re.split(r" {2,}| # ", re.sub(r"^\$ ", "", line.strip()))[0]
                for part in command.split(" && "):
                    if split_command(part):
                        yield Command.parse(name, part)
    for span in re.findall(r"`([^`]+)`", FENCED.sub("", text)):
        for part in " ".join(span.split()).split(" && "):
            if len(words := split_command(part)) > 1 or words == ("cadre",):
                yield Command.parse(name, part, inline=True)


# A command of an example is a line of its own, stands in backticks, or ends a sentence after a colon.
IN_EXAMPLE = re.compile(r"(?:^ *|: |`)((?:cadre|python3?|make|pip) [^`(\n]+)", re.MULTILINE)


def commands_of_example(name: str, text: str) -> Iterator[Command]:
    """Yield the commands in the docstring of a Python file, or in the comments of another one."""
    if name.endswith(".py"):
        explanation = ast.get_docstring(ast.parse(text)) or ""
    else:
        explanation = "\n".join(line.removeprefix("#") for line in text.splitlines() if line.startswith("#"))
    for result in IN_EXAMPLE.findall(explanation):
        for part in re.split(r" {2,}", result)[0].rstrip(" .").split(" && "):
            if split_command(part):
                yield Command.parse(name, part)


def commands(block: Block) -> list[list[str]]:
    """The words of every `cadre` command of a block, without what explains it."""
    messages = []
    for line in re.sub(r"\s*\\\n\s*", " ", block.text).splitlines():
        words = re.split(r" {2,}| # ", re.sub(r"^\$ ", "", line.strip()))[0]
        if command := re.match(r"(?:\S*/|ray job submit .* )?(cadre .*)", words):
            messages.append(shlex.split(command[1])[1:])
    return messages
