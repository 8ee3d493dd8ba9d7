"""Reads the annotations of one tree from a file that may be long, and may still be written."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from cadre.errors import RunError
from cadre.file_limits import lines_of, parse_json
from cadre.files import open_plain, validate_record
from cadre.runs.records import AnnotationLine
from cadre.runs.tree_format import Json

# How Cadre's own annotation lines begin, so that most lines need not be parsed.
LINE_HEAD = re.compile(rb'\{"step": (\d+), "tree": (\d+), ')


class AnnotationIndex:
    """Finds the lines about one tree in a growing file of annotations without reading the others.

    Owned by the reader of a run, and used from several threads at once.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._end, self._last_line = path, 0, b""
        # (offset, length) of lines, by step and tree
        self._spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._lock = Lock()

    def read(self, step: int, tree: int) -> Iterator[Json]:
        """Yield the lines about a tree that are in the file now."""
        with self._lock:
            self._update()
            spans = list(self._spans[step, tree])
        with open_plain(self._path) as file:
            for offset, length in spans:
                file.seek(offset)
                yield self._parse(file.read(length))

    def _update(self) -> None:
        """Index the lines that were written since. A file that was cut off since is indexed anew."""
        with open_plain(self._path) as file:
            file.seek(self._end - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:
                self._end, self._last_line = 0, b""
                self._spans.clear()
                file.seek(0)
            for line in lines_of(file):
                if not line.endswith(b"\n"):
                    return
                if line.strip():
                    if head := LINE_HEAD.match(line):
                        key = int(head[1]), int(head[2])
                    else:  # another program's line, with its fields in another order
                        parsed = self._parse(line)
                        key = parsed["step"], parsed["tree"]
                    self._spans[key].append((self._end, len(line)))
                self._end, self._last_line = self._end + len(line), line

    def _parse(self, line: bytes) -> Json:
        try:
            parsed: Json = parse_json(line)
            validate_record(parsed, AnnotationLine)
        except ValueError as error:
            expected = f"expected an object with step and tree, and a list of samples ({error})"
            raise RunError(f"{self._path}: got the line {line[:80]!r}; {expected}. Fix or remove it.") from None
        return parsed
