"""What `cadre data NAME` finds out: counts against the published ones, splits that share items, leaks, three items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cadre.data import hub, read
from cadre.data.leaks import consistent, leaks, once
from cadre.data.records import Article, Problem, Program, Record, text_of
from cadre.data.specs import SPECS

SHOWN = 3
WIDTH = 400


@dataclass(frozen=True)
class SplitReport:
    """One split. `judged` rows became records, the others cannot be judged; `contradictory` ones ask what another asks
    and have another answer; `published` are known sizes."""

    split: str
    rows: int
    judged: int
    contradictory: int
    repeated: int
    published: tuple[int, ...]

    @property
    def verdict(self) -> str:
        """ "whole", "unknown" where no size was published, "part" of a training split, or "wrong"."""
        if not self.published:
            return "unknown"
        if self.rows in self.published:
            return "whole"
        return "part" if self.split == "train" and self.rows < max(self.published) else "wrong"


@dataclass(frozen=True)
class Examination:
    """All that is known of a data set. `leaks` counts the training items that are test items, by test set; `unseen` are
    test sets that they could be of too, and that are not here."""

    name: str
    splits: tuple[SplitReport, ...]
    leaks: dict[str, int]
    unseen: tuple[str, ...]
    items: tuple[Record, ...]

    @property
    def sound(self) -> bool:
        """No split of a wrong size, and no leak."""
        return not any(self.leaks.values()) and all(split.verdict != "wrong" for split in self.splits)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sound": self.sound,
            "splits": [{**asdict(split), "verdict": split.verdict} for split in self.splits],
            "leaks": self.leaks,
            "unseen": self.unseen,
        }


def examine(name: str, source: str = "") -> Examination:
    """Read every split that is there and compare. Raises DataError where none is, or a row has another shape."""
    spec, where = read.spec_of(name), read.chosen_source(source)
    there = [split for split in spec.splits if read.is_hub(where) or _is_there(name, split, where)]
    if not there:
        read.local_files(name, next(iter(spec.splits)), Path(where).expanduser())
    reports = tuple(_report(name, split, where) for split in there)
    held = dict(_leaks(name, where)) if "train" in there else {}
    unseen = tuple(other for other in tested(name) if other not in held) if "train" in there else ()
    return Examination(name, reports, held, unseen, read.load(name, there[-1], where)[:SHOWN])


def _report(name: str, split: str, source: str) -> SplitReport:
    pairs = read.parsed(name, split, source)
    judged = [record for _, record in pairs if record is not None]
    agreed = consistent(judged)
    unlike, repeated = len(judged) - len(agreed), len(agreed) - len(once(agreed))
    return SplitReport(split, len(pairs), len(judged), unlike, repeated, SPECS[name].splits[split][1])


def _leaks(name: str, source: str) -> Iterator[tuple[str, int]]:
    """How many training items are test items of the sets that they could be of."""
    train = read.load(name, "train", source)
    for other, where in test_sets(name, source).items():
        yield other, len(leaks(train, read.load(other, "test", where)))


def test_sets(name: str, source: str) -> dict[str, str]:
    """The sets with a test split of a set's kind that are at hand, its own among them, each with its source: of those
    on the hub its own and the ones that were fetched before."""
    if not read.is_hub(source):
        return {other: source for other in tested(name) if _is_at_hand(other, name, source)}
    kept = [other for other in tested(name) if other == name or hub.kept(SPECS[other], "test")]
    return {other: source if other == name else read.HUB for other in kept}


def _is_at_hand(other: str, name: str, source: str) -> bool:
    """Whether a folder has a set's test split; files that lie in the folder itself are those of the set `name`."""
    own = other == name or read.home_of(other, Path(source).expanduser()) is not None
    return own and _is_there(other, "test", source)


def tested(name: str) -> list[str]:
    """The sets with a test split that items of a set could be of."""
    return [other for other, spec in SPECS.items() if spec.kind == SPECS[name].kind and "test" in spec.splits]


def not_compared(unseen: Iterable[str]) -> str:
    """What is said of test sets that are not here."""
    return f"not compared with the test items of {', '.join(unseen)}: not here"


def _is_there(name: str, split: str, source: str) -> bool:
    try:
        read.local_files(name, split, Path(source).expanduser())
    except (read.MissingFilesError, KeyError):
        return False
    return True


def lines(examination: Examination) -> Iterator[str]:
    """The examination as lines to print."""
    for split in examination.splits:
        published = " or ".join(f"{size:,}" for size in split.published) or "unknown"
        yield (
            f"{examination.name} {split.split}: {split.rows:,} rows ({split.verdict}; published {published}), "
            f"{split.judged:,} can be judged, {split.contradictory:,} contradict another, "
            f"{split.repeated:,} repeat another"
        )
    for test, count in examination.leaks.items():
        refused = "; left out of training, or refused with leaks=refuse" if count else ""
        yield f"{examination.name} train against {test} test: {count} leaks{refused}"
    if examination.unseen:
        yield f"{examination.name} train: {not_compared(examination.unseen)}"
    for item in examination.items:
        yield f"\n{item.id}"
        yield from shown(item)


def shown(item: Record) -> Iterator[str]:
    """An item, cut short."""
    yield cut(text_of(item).strip())
    match item:
        case Problem():
            yield f"answer: {item.answer}" + (f" within {item.tolerance}" if item.tolerance else "")
        case Program():
            tests = f"{len(item.public)} shown and {len(item.hidden)} hidden cases" if item.hidden else cut(item.tests)
            yield f"function: {item.entry or 'none, stdin and stdout'}; tests: {tests}"
            yield f"reference: {'yes' if item.reference else 'none'}"
        case Article():
            yield f"references: {len(item.references)}" + "".join(f"\n  {cut(text)}" for text in item.references[:1])


def cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[:WIDTH] + " ..."
