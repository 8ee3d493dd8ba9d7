"""Where the lines of an annotation stream stand, found once each while the stream grows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from cadre.errors import RunError
from cadre.file_limits import lines_of
from cadre.files import load_json, open_plain, validate_record
from cadre.runs.records import AnnotationLineHead

HEAD = re.compile(rb'\{"step": (\d+), "tree": (\d+), ')


class AnnotationIndex:
    """Finds the lines about one tree without reading the others. Owned by the reader of a run; the server asks it from
    several threads at once."""

    def __init__(self, path: Path) -> None:
        self._path, self._end, self._last = path, 0, b""
        self._places: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._following = Lock()

    def of(self, step: int, tree: int) -> Iterator[dict[str, Any]]:
        """The lines about a tree, as they stand now."""
        with self._following:
            self._follow()
            places = list(self._places[step, tree])
        with open_plain(self._path) as file:
            for offset, length in places:
                file.seek(offset)
                yield self._parsed(file.read(length))

    def _follow(self) -> None:
        """Take in what was written since; a stream that was cut off, whatever was written after that, is read anew."""
        with open_plain(self._path) as file:
            file.seek(self._end - len(self._last))
            if file.read(len(self._last)) != self._last:
                self._end, self._last = 0, b""
                self._places.clear()
                file.seek(0)
            for line in lines_of(file):
                if not line.endswith(b"\n"):
                    return
                head = HEAD.match(line)
                if line.strip():
                    place = (int(head[1]), int(head[2])) if head else self._place(line)
                    self._places[place].append((self._end, len(line)))
                self._end, self._last = self._end + len(line), line

    def _place(self, line: bytes) -> tuple[int, int]:
        """Of a line that another program wrote, with its fields in another order."""
        told = self._parsed(line)
        return told["step"], told["tree"]

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            told: dict[str, Any] = load_json(line)
            validate_record(told, AnnotationLineHead)
        except ValueError as error:
            raise RunError(
                f"{self._path}: got the line {line[:80]!r}; expected an object with step and tree, and a list of "
                f"samples ({error}). Fix or remove it."
            ) from None
        return told
