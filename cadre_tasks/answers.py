"""Moves on a grid, and numbers, as answers of language models hold them."""

from __future__ import annotations

import re

# Marks of Markdown that a line such as "Moves: RRD" may stand in: the prompts show it in backticks.
MARKS = "`*_"
# A block right behind a word and its colon, and a fence that ends an answer without such a block.
BLOCK = re.compile(rf"[{MARKS}\s]*?^[ \t]*```[^\n`]*\n(?P<inside>.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^[ \t]*(```|~~~)", re.MULTILINE)
Cell = tuple[int, int]  # (row, column)
AROUND = re.compile(rf"""["'\[\](){MARKS}]""")
ENDS = ".!;"
NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")
MOVES: dict[str, Cell] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
# Without an example: a model of half a billion parameters gives that for its answer, whatever the state is.
ASK_MOVES = (
    "Decide on the moves to execute. End your answer with one line that begins with `Moves:`, then all the letters "
    "without spaces."
)


def label(word: str) -> re.Pattern[str]:
    """Return the pattern of a word with its colon, in any case and in bold."""
    return re.compile(rf"{word}[{MARKS}]*\s*:", re.IGNORECASE)


def behind(word: str, text: str) -> str:
    """Return the text behind the last "word:" of an answer, without marks around it, or the whole answer if it has no
    such word. If a code block begins there, return its content, otherwise the text before the next block."""
    *earlier, answer = label(word).split(text)
    if earlier:
        block = BLOCK.match(answer)
        answer = block["inside"] if block else FENCE.split(answer, maxsplit=1)[0]
    return answer.strip(f"{MARKS} \t\r\n")


def parse_moves(text: str) -> str | None:
    """Return the moves of an answer: "RRD", "R, R, D.", "1R 2R 3D", "[R, R, D]" or the like after a last "Moves:". None
    for anything else.

    Quotes, brackets and the mark that ends a sentence are no reason to refuse moves: known models write them, and would
    be trained to leave them out. An answer with other words in it is not guessed at.
    """
    answer = AROUND.sub("", behind("moves", text)).rstrip(f"{ENDS} \t\r\n")
    return "".join(re.findall("[UDLR]", answer)) if re.fullmatch(r"(\d*[UDLR][\s,]*)+", answer) else None


def numbered(moves: str) -> str:
    """Return "RRD" as "1R 2R 3D": the compact wording counts its moves."""
    return " ".join(f"{index}{move}" for index, move in enumerate(moves, 1))


def plain_number(number: str) -> str:
    """Return a number without signs of thousands and zeros at the end."""
    integer, point, digits = number.replace(",", "").partition(".")
    return f"{integer}{point}{digits}".rstrip("0").rstrip(".") if point else integer
