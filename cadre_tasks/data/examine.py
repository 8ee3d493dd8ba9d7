"""`cadre data NAME`: examine a data set, and write clean JSON lines of it.

Examined are the numbers of rows against published ones, contradictions, repetitions and leaks. `cadre data NAME --out
FILE.jsonl` writes the items that remain, in the form that `settings.data` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cadre.files import publish_atomically
from cadre_tasks.data import hub, read
from cadre_tasks.data.leaks import find_leaks, remove_contradictions, remove_repetitions
from cadre_tasks.data.public_sets import SPECS
from cadre_tasks.data.records import Article, CodingProblem, Problem, Record, prompt_text

SHOWN_ITEMS = 3
SHOWN_CHARACTERS = 400


@dataclass(frozen=True)
class SplitReport:
    """Numbers of one split.

    judged          rows that became records; by the others no answer can be judged
    contradictory   items of one question and several answers
    repeated        items that repeat another
    published       known numbers of rows
    """

    split: str
    rows: int
    judged: int
    contradictory: int
    repeated: int
    published: tuple[int, ...]

    @property
    def verdict(self) -> str:
        """ "whole", "unknown" if no number was published, "part" of a training split, or "wrong"."""
        if not self.published:
            return "unknown"
        if self.rows in self.published:
            return "whole"
        return "part" if self.split == "train" and self.rows < max(self.published) else "wrong"


@dataclass(frozen=True)
class Examination:
    """The report on a data set.

    leaks    the number of training items that are test items, by test set
    unseen   test sets of its kind that are not here, so that they were not compared
    items    a few items to look at
    """

    name: str
    splits: tuple[SplitReport, ...]
    leaks: dict[str, int]
    unseen: tuple[str, ...]
    items: tuple[Record, ...]

    @property
    def sound(self) -> bool:
        """True without leaks and without a split of a wrong size."""
        return not any(self.leaks.values()) and all(split.verdict != "wrong" for split in self.splits)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sound": self.sound,
            "splits": [{**asdict(split), "verdict": split.verdict} for split in self.splits],
            "leaks": self.leaks,
            "unseen": self.unseen,
        }

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        for split in self.splits:
            published = " or ".join(f"{size:,}" for size in split.published) or "unknown"
            yield (
                f"{self.name} {split.split}: {split.rows:,} rows ({split.verdict}; published {published}), "
                f"{split.judged:,} can be judged, {split.contradictory:,} contradict another, "
                f"{split.repeated:,} repeat another"
            )
        for test_set, count in self.leaks.items():
            consequence = "; left out of training, or refused with leaks=refuse" if count else ""
            yield f"{self.name} train against {test_set} test: {count} leaks{consequence}"
        if self.unseen:
            yield f"{self.name} train: {describe_unseen(self.unseen)}"
        for item in self.items:
            yield f"\n{item.id}"
            yield from describe_item(item)


def examine(name: str, source: str = "") -> Examination:
    """Read every split that is there and report on it. Raises DataError if there is none, or a row does not fit."""
    spec, source = read.find_spec(name), read.required_source(source)
    splits = [split for split in spec.splits if read.is_hub(source) or has_local_files(name, split, source)]
    if not splits:
        # Raises, and says where files were expected.
        read.find_files(name, next(iter(spec.splits)), Path(source).expanduser())
    reports = tuple(clean_split(name, split, source)[0] for split in splits)
    leaks: dict[str, int] = {}
    unseen: tuple[str, ...] = ()
    if "train" in splits:
        train = read.load(name, "train", source)
        for test_set, test_source in available_test_sets(name, source).items():
            leaks[test_set] = len(find_leaks(train, read.load(test_set, "test", test_source)))
        unseen = tuple(test_set for test_set in comparable_test_sets(name) if test_set not in leaks)
    items = read.load(name, splits[-1], source)[:SHOWN_ITEMS]
    return Examination(name, reports, leaks, unseen, items)


def clean_split(name: str, split: str, source: str) -> tuple[SplitReport, list[Record]]:
    """Return the numbers of a split, and its records without contradictions and repetitions."""
    rows = read.parse_rows(name, split, source)
    judged = [record for _, record in rows if record is not None]
    consistent = remove_contradictions(judged)
    clean = remove_repetitions(consistent)
    contradictory, repeated = len(judged) - len(consistent), len(consistent) - len(clean)
    published = read.find_spec(name).splits[split][1]
    return SplitReport(split, len(rows), len(judged), contradictory, repeated, published), clean


# Test sets


def comparable_test_sets(name: str) -> list[str]:
    """Return the sets with a test split whose items are of the same kind."""
    return [test_set for test_set, spec in SPECS.items() if spec.kind == SPECS[name].kind and "test" in spec.splits]


def available_test_sets(name: str, source: str) -> dict[str, str]:
    """Return those of `comparable_test_sets` that can be read, with their sources. From the hub these are the set's own
    and those in the cache; nothing else is downloaded for a comparison."""
    if read.is_hub(source):
        cached = (each for each in comparable_test_sets(name) if each == name or hub.cached_files(SPECS[each], "test"))
        return {each: source if each == name else read.HUB for each in cached}
    # Files directly in the folder are those of the set `name`.
    folder = Path(source).expanduser()
    own = (each for each in comparable_test_sets(name) if each == name or read.find_home(each, folder) is not None)
    return {each: source for each in own if has_local_files(each, "test", source)}


def has_local_files(name: str, split: str, source: str) -> bool:
    try:
        read.find_files(name, split, Path(source).expanduser())
    except (read.MissingFilesError, KeyError):
        return False
    return True


# Text


def describe_unseen(unseen: Iterable[str]) -> str:
    return f"not compared with the test items of {', '.join(unseen)}: not here"


def describe_item(item: Record) -> Iterator[str]:
    """Yield an item as lines of text, cut short."""

    def cut(text: str) -> str:
        return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " ..."

    yield cut(prompt_text(item).strip())
    match item:
        case Problem():
            yield f"answer: {item.answer}" + (f" within {item.tolerance}" if item.tolerance else "")
        case CodingProblem():
            tests = f"{len(item.public)} shown and {len(item.hidden)} hidden cases" if item.hidden else cut(item.tests)
            yield f"function: {item.entry or 'none, stdin and stdout'}; tests: {tests}"
            yield f"reference: {'yes' if item.reference else 'none'}"
        case Article():
            yield f"references: {len(item.references)}" + "".join(f"\n  {cut(text)}" for text in item.references[:1])


# Clean JSON lines


@dataclass(frozen=True)
class PreparedSplit:
    """The numbers of a split that was written: its rows, how many remain, and what was left out.

    leaks    items that were left out, by test set
    unseen   test sets of its kind that are not here, so that they were not compared
    """

    report: SplitReport
    written: int
    leaks: dict[str, int]
    unseen: tuple[str, ...]

    def line(self, out: Path) -> str:
        report = self.report
        leaks = "".join(f", {count:,} that are in {name}" for name, count in self.leaks.items() if count)
        unseen = f"; {describe_unseen(self.unseen)}" if self.unseen else ""
        return (
            f"wrote {self.written:,} of {report.rows:,} items to {out}; left out {report.rows - report.judged:,} that "
            f"cannot be judged, {report.contradictory:,} that contradict another, {report.repeated:,} that repeat "
            f"another{leaks}{unseen}"
        )


def prepare(name: str, split: str, source: str, out: Path) -> PreparedSplit:
    """Write the clean items of a split, all or nothing. Raises ConfigError or DataError as reading does. Leaks are left
    out of a training split, for every test set that can be read."""
    source = read.required_source(source)
    read.load(name, split, source)
    report, remaining = clean_split(name, split, source)
    leaks: dict[str, int] = {}
    unseen: tuple[str, ...] = ()
    if split == "train":
        for test_set, test_source in available_test_sets(name, source).items():
            leaking = {leak.train for leak in find_leaks(remaining, read.load(test_set, "test", test_source))}
            leaks[test_set] = len(leaking)
            remaining = [record for index, record in enumerate(remaining) if index not in leaking]
        unseen = tuple(test_set for test_set in comparable_test_sets(name) if test_set not in leaks)

    # The fields of a user's file; those that are empty may be missing.
    lines = []
    for record in remaining:
        row = {name: value for name, value in asdict(record).items() if value not in ("", (), 0.0)}
        row = {"statement": "", **row} if isinstance(record, CodingProblem) else row
        lines.append(f"{json.dumps(row, ensure_ascii=False)}\n")
    with publish_atomically(out) as (built,):
        built.write_text("".join(lines), "utf-8")
    return PreparedSplit(report, len(remaining), leaks, unseen)
