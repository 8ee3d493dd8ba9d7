"""Clean JSON lines of a data set: what `cadre data NAME --out FILE.jsonl` writes, and `settings.data` reads again.

Left out are rows that cannot be judged, problems of one question and several answers, items that repeat another, and,
of a training split, items that are test items of any set of their kind that is at hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cadre.data import read
from cadre.data.examine import not_compared, test_sets, tested
from cadre.data.leaks import consistent, leaks, once
from cadre.data.records import Program, Record
from cadre.files import publish_atomically


@dataclass(frozen=True)
class Prepared:
    """What was written, and what was left out of how many rows: those that cannot be judged, contradict, repeat, or
    leak by test set; and the test sets that they were not compared with, as these are not here."""

    rows: int
    written: int
    unjudged: int
    contradictory: int
    repeated: int
    leaks: dict[str, int]
    unseen: tuple[str, ...]

    def line(self, out: Path) -> str:
        leaked = "".join(f", {count:,} that are in {name}" for name, count in self.leaks.items() if count)
        told = f"; {not_compared(self.unseen)}" if self.unseen else ""
        return (
            f"wrote {self.written:,} of {self.rows:,} items to {out}; left out {self.unjudged:,} that cannot be "
            f"judged, {self.contradictory:,} that contradict another, {self.repeated:,} that repeat another"
            f"{leaked}{told}"
        )


def prepare(name: str, split: str, source: str, out: Path) -> Prepared:
    """Write a split, whole or not at all. Raises ConfigError or DataError as reading it does."""
    where = read.chosen_source(source)
    read.load(name, split, where)
    records = [record for _, record in read.parsed(name, split, where)]
    judged = [record for record in records if record is not None]
    agreed = consistent(judged)
    kept = once(agreed)
    contradictory, repeated = len(judged) - len(agreed), len(agreed) - len(kept)
    leaking: dict[str, int] = {}
    sets = test_sets(name, where) if split == "train" else {}
    for other, there in sets.items():
        leaked = {leak.train for leak in leaks(kept, read.load(other, "test", there))}
        leaking[other] = len(leaked)
        kept = [record for place, record in enumerate(kept) if place not in leaked]
    _write(kept, out)
    unseen = tuple(other for other in tested(name) if split == "train" and other not in sets)
    return Prepared(len(records), len(kept), len(records) - len(judged), contradictory, repeated, leaking, unseen)


def _write(records: Sequence[Record], out: Path) -> None:
    with publish_atomically(out) as (built,):
        built.write_text("".join(f"{json.dumps(row(record), ensure_ascii=False)}\n" for record in records), "utf-8")


def row(record: Record) -> dict[str, Any]:
    """A record as a line of a user's own file: its fields, without those that are empty and may be missing."""
    kept = {name: value for name, value in asdict(record).items() if value not in ("", (), 0.0)}
    return {"statement": "", **kept} if isinstance(record, Program) else kept
